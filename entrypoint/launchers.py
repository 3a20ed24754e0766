"""The command line of each launcher for a cluster and a recipe, and what each training process runs under it."""

from dataclasses import dataclass
from pathlib import Path

from entrypoint.cluster import Cluster
from entrypoint.errors import SettingError
from entrypoint.reasons import Setting
from entrypoint.recipes import Recipe

_ACCELERATE_CONFIG = Path(__file__).resolve().parent.parent / "templates" / "accelerate" / "ddp.yaml"


@dataclass(frozen=True, slots=True)
class Launcher:
    """Its words before the script, what a process runs (`program`), and variables that it needs."""

    words: tuple[str, ...]
    target: tuple[str, ...]  # how it is told what to run
    program: tuple[str, ...]
    settings: tuple[Setting, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """The line for people to copy."""
        return (*self.words, *self.target)


def choose_launcher(name: str, recipe: Recipe, cluster: Cluster, address: str, *, gpus: int) -> Launcher:
    """The launcher that TRAIN_LAUNCHER names; `address`: the primary's."""
    program = _program(recipe)
    if name == "accelerate":
        return _accelerate(recipe, cluster, address, program, gpus=gpus)
    if name == "deepspeed":
        return _deepspeed(recipe, cluster, address, program)
    return Launcher(_torchrun(cluster, address), (*recipe.target, *recipe.arguments), program)


def process_command(recipe: Recipe) -> tuple[str, ...]:
    """What one process of many that somebody else started becomes."""
    return _program(recipe)


def _program(recipe: Recipe) -> tuple[str, ...]:
    if recipe.interpreter is not None:
        return (*recipe.interpreter, str(recipe.script), *recipe.arguments)
    return ("python", "-u", *recipe.target, *recipe.arguments)


def _torchrun(cluster: Cluster, address: str) -> tuple[str, ...]:
    # max-restarts=0: an attempt is a fresh launch; torchrun's own restart cannot bring several nodes back
    # together (pytorch#146371).
    return (
        "torchrun",
        f"--nnodes={cluster.nodes}",
        f"--node-rank={cluster.node_rank or 0}",
        f"--master-addr={address}",
        f"--master-port={cluster.primary_port}",
        f"--nproc-per-node={cluster.processes_per_node}",
        "--max-restarts=0",
    )


def _accelerate(recipe: Recipe, cluster: Cluster, address: str, program: tuple[str, ...], *, gpus: int) -> Launcher:
    target = (*recipe.target, *recipe.arguments)
    if not gpus:
        # On CPU `accelerate launch` starts one process whatever number it is given, and says nothing.
        setting = Setting("ACCELERATE_USE_CPU", "true", "no visible GPU; accelerate's command would start one process")
        return Launcher(_torchrun(cluster, address), target, program, (setting,))
    _refuse_interpreter("accelerate", recipe)
    words = (
        "accelerate",
        "launch",
        f"--config_file={_ACCELERATE_CONFIG}",
        f"--num_processes={cluster.world_size}",  # over all nodes (accelerate#2818)
        f"--num_machines={cluster.nodes}",
        f"--machine_rank={cluster.node_rank or 0}",
        f"--main_process_ip={address}",
        f"--main_process_port={cluster.primary_port}",
    )
    return Launcher(words, target, program)


def _deepspeed(recipe: Recipe, cluster: Cluster, address: str, program: tuple[str, ...]) -> Launcher:
    if cluster.nodes > 1:
        raise SettingError(
            f"TRAIN_LAUNCHER=deepspeed with {cluster.nodes} nodes: it would want ssh between them",
            fix="TRAIN_LAUNCHER=torchrun starts DeepSpeed scripts on any number of nodes",
        )
    _refuse_interpreter("deepspeed", recipe)
    words = (
        "deepspeed",
        f"--num_gpus={cluster.processes_per_node}",
        f"--master_addr={address}",
        f"--master_port={cluster.primary_port}",
        "--no_local_rank",
    )
    script = ("--module", recipe.module) if recipe.module else (str(recipe.script),)
    return Launcher(words, (*script, *recipe.arguments), program)


def _refuse_interpreter(launcher: str, recipe: Recipe) -> None:
    if recipe.interpreter is not None:
        raise SettingError(
            f"TRAIN_LAUNCHER={launcher} starts Python scripts, and {recipe.script} is none",
            fix="TRAIN_LAUNCHER=torchrun starts any program",
        )
