"""Arithmetic on Slurm's variables, after srun's manual (output environment variables)."""

from entrypoint import values
from entrypoint.errors import SettingError
from entrypoint.provider_torch import quotient
from entrypoint.readers import Told, Variables, count, either, first_set, node_list, number, size_of

# slurm.h numbers the batch script, the interactive shell of salloc and the extern step from the top.
_PSEUDO_STEPS = ("4294967290", "4294967291", "4294967292", "4294967293", "batch", "interactive", "extern")
_job_nodes = either(count("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), size_of(node_list("SLURM_JOB_NODELIST")))
_step_nodes = either(count("SLURM_STEP_NUM_NODES"), size_of(node_list("SLURM_STEP_NODELIST")), _job_nodes)
_tasks = count("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
_task_counts = first_set(values.parse_task_counts, ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))


def slurm_job(seen: Variables) -> bool:
    """Inside an allocation."""
    return seen.has_any("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NODELIST")


def slurm_step(seen: Variables) -> bool:
    """Started by srun: a batch script and salloc's shell run on one node of the allocation only."""
    step = seen.get("SLURM_STEP_ID") or seen.get("SLURM_STEPID")
    return slurm_job(seen) and step is not None and step.lower() not in _PSEUDO_STEPS


def slurm_nodes(seen: Variables) -> Told[int] | None:
    """Nodes of the step inside one, else of the allocation."""
    return _step_nodes(seen) if slurm_step(seen) else _job_nodes(seen)


def slurm_peers(seen: Variables) -> Told[tuple[str, ...]] | None:
    """Names of the nodes in the order of SLURM_NODEID."""
    step = ("SLURM_STEP_NODELIST",) if slurm_step(seen) else ()
    return node_list(*step, "SLURM_JOB_NODELIST", "SLURM_NODELIST")(seen)


def slurm_node_rank(seen: Variables) -> Told[int] | None:
    """SLURM_NODEID inside a step; outside one nobody has started the other nodes."""
    nodes = slurm_nodes(seen)
    if nodes and nodes.value > 1 and not slurm_step(seen):
        raise SettingError(
            f"{nodes.quote}, but this is not a step of srun (no SLURM_STEP_ID): the other nodes start nothing",
            fix="start it with srun --ntasks-per-node=1, or set TRAIN_NODES=1 to use this node alone",
        )
    return number("SLURM_NODEID")(seen)


def slurm_step_rank(seen: Variables) -> Told[int] | None:
    """SLURM_NODEID for a contract that srun's tasks brought with them without a rank (PET_RDZV_ENDPOINT)."""
    return number("SLURM_NODEID")(seen) if slurm_step(seen) else None


def slurm_tasks_per_node(seen: Variables) -> Told[int] | None:
    """Tasks that srun started on each node; torchrun and accelerate need the same number everywhere."""
    nodes = slurm_nodes(seen)
    if nodes is None or not slurm_step(seen):
        return None
    tasks, counts = _tasks(seen), _task_counts(seen)
    if counts and _fits(counts.value, nodes.value, tasks.value if tasks else None):
        _refuse_uneven(counts)
        return Told(counts.value[0][0], counts.source, counts.quote)
    return quotient(tasks, nodes, "puts uneven numbers of tasks on the nodes") if tasks else None


def _fits(counts: tuple[tuple[int, int], ...], nodes: int, tasks: int | None) -> bool:
    """Whether the list describes this step: srun may have started fewer nodes or other tasks than sbatch asked for."""
    total = sum(tasks_here * times for tasks_here, times in counts)
    return sum(times for _, times in counts) == nodes and tasks in (None, total)


def _refuse_uneven(counts: Told[tuple[tuple[int, int], ...]]) -> None:
    if len({tasks for tasks, _ in counts.value}) > 1:
        each = [str(tasks) for tasks, times in counts.value for _ in range(min(times, 8))][:16]
        raise SettingError(
            f"{counts.quote} puts {','.join(each)} tasks on the nodes: uneven",
            fix="give srun --ntasks-per-node, so that every node runs the same number",
        )


def slurm_many_tasks(seen: Variables) -> bool:
    """Several tasks on this node: srun is the launcher, one process a GPU."""
    tasks = slurm_tasks_per_node(seen)
    return tasks is not None and tasks.value > 1


def slurm_port(seen: Variables) -> Told[int] | None:
    """A port of the job's own, 15000 and the last four digits of its number: two jobs may share a node."""
    job = first_set(values.parse_count, ("SLURM_JOB_ID", "SLURM_JOBID"))(seen)
    return Told(15000 + job.value % 10_000, job.source, job.quote) if job else None


def slurm_gpus(seen: Variables) -> Told[int] | None:
    """GPUs of this step on this node; SLURM_GPUS_PER_NODE may name a type first: h100:8."""

    def parse(name: str, text: str) -> int:
        return values.parse_count(name, text.rpartition(":")[2])

    return first_set(parse, ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"))(seen)
