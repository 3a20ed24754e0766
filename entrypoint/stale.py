"""Variables of the process that started us which its children must not inherit.

They describe the parent's place, and libraries believe them: accelerate waits for WORLD_SIZE peers, torchrun takes
every PET_* as a default, DeepSpeed and Intel MPI take PMI_*, timm and open_clip take SLURM_PROCID for the rank. What
scripts only read as data (SLURM_JOB_ID, SLURM_NODEID, SKYPILOT_*, NODE_RANK, NUM_NODES) stays. A finished process
contract is no case for this list: there the script runs with all of them.
"""

from collections.abc import Iterable

STALE_VARIABLES = frozenset(
    {
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),  # every launcher
        *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"),  # torchrun
        *("CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE", "BASE_RANK"),  # DeepSpeed's launch.py, composer
        *("MPI_LOCALRANKID", "MPI_LOCALNRANKS", "OMPI_UNIVERSE_SIZE"),
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NPROCS"),
    }
)
STALE_PREFIXES = (
    "TORCHELASTIC_",
    "PET_",
    "ACCELERATE_",
    "OMPI_COMM_WORLD_",
    "MV2_COMM_WORLD_",
    "PMI_",
    "PMIX_",
    "JSM_NAMESPACE_",
)


def stale_variables(names: Iterable[str]) -> tuple[str, ...]:
    """Those of these names that a child must not inherit, sorted."""
    return tuple(sorted(name for name in set(names) if name in STALE_VARIABLES or name.startswith(STALE_PREFIXES)))
