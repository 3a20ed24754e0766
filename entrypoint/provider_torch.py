"""Arithmetic on torch's own names: RANK and WORLD_SIZE have two meanings each (kubeflow/trainer#1790)."""

from entrypoint import values
from entrypoint.errors import SettingError
from entrypoint.readers import Reader, Told, Variables, count, either, number, same

user_nodes = same(count("NUM_NODES"), count("NNODES"))


def counts_processes(seen: Variables) -> bool:
    """NODE_RANK (or composer's BASE_RANK) beside WORLD_SIZE: it counts processes; true of every source read."""
    return seen.has_any("NODE_RANK", "BASE_RANK")


def pod_rank(seen: Variables) -> Told[int] | None:
    """RANK where no LOCAL_RANK stands beside it: the index of a pod (Kubeflow v1, Volcano, PAI, Vertex)."""
    return None if seen.has("LOCAL_RANK") else number("RANK")(seen)


def world_as_nodes(seen: Variables) -> Told[int] | None:
    """WORLD_SIZE where it counts pods, as RANK does."""
    told = number("WORLD_SIZE")(seen)
    return told if told and told.value and not counts_processes(seen) and pod_rank(seen) else None


def world_as_processes(seen: Variables) -> Told[int] | None:
    """WORLD_SIZE where it counts processes; where the number of nodes is told, it is never that number again."""
    told = number("WORLD_SIZE")(seen)
    if told is None or counts_processes(seen):
        return told
    nodes = user_nodes(seen)
    if nodes is None and pod_rank(seen):
        return None
    if nodes is None and told.value > 1 and seen.has("JOB_COMPLETION_INDEX"):
        raise SettingError(
            f"{told.quote} may count nodes or processes: neither RANK nor NODE_RANK is set beside it",
            fix="set NUM_NODES to the number of pods",
        )
    says_nothing = told.value == 1 or (nodes is not None and nodes.value == told.value)
    return None if says_nothing else told


def lone_rank(seen: Variables) -> None:
    """Refuses a rank of one process among several where RANK, LOCAL_RANK and WORLD_SIZE are not all there."""
    for name in ("LOCAL_RANK", "RANK"):
        told = number(name)(seen)
        if told and told.value:
            raise SettingError(
                f"{told.quote} belongs to one process of several, but RANK, LOCAL_RANK and WORLD_SIZE are not all set",
                fix="start it with a launcher that sets all three, or unset them",
            )


def composer_node_rank(seen: Variables) -> Told[int] | None:
    """BASE_RANK, the rank of a node's first process, as a node rank (mosaicml/composer launcher)."""
    base, local = number("BASE_RANK")(seen), number("LOCAL_WORLD_SIZE")(seen)
    if base is None or local is None or not local.value:
        return Told(0, base.source, base.quote) if base and not base.value else None
    return quotient(base, local, "is not the first rank of a node")


def quotient(whole: Told[int], part: Told[int], problem: str) -> Told[int]:
    """One number through another; a rest means that one of the two is wrong."""
    if whole.value % part.value:
        raise SettingError(
            f"{whole.quote} {problem}: {part.quote} does not divide it",
            fix=f"correct {whole.source} or {part.source}, or set TRAIN_NODES, TRAIN_NODE_RANK and TRAIN_NPROC",
        )
    result = whole.value // part.value
    return Told(result, f"{whole.source} ÷ {part.source}", f"{whole.quote} ÷ {part.quote} = {result}")


def first_rank_of_node(seen: Variables, rank: str, local_rank: str) -> Told[int] | None:
    """RANK − LOCAL_RANK, the rank of this node's first process under block mapping."""
    whole, local = number(rank)(seen), number(local_rank)(seen)
    if whole is None or local is None:
        return None
    if local.value > whole.value:
        raise SettingError(
            f"{local.quote} is larger than {whole.quote}",
            fix="map ranks to nodes in blocks (mpirun --map-by slot), or correct the two",
        )
    return Told(whole.value - local.value, f"({rank} - {local_rank})", f"({whole.quote} - {local.quote})")


def block_node_rank(rank: str, local_rank: str, local_size: str) -> Reader[int]:
    """The node's index from one process of it; `mpirun --map-by node` breaks the rule and is told so."""

    def read(seen: Variables) -> Told[int] | None:
        first, local = first_rank_of_node(seen, rank, local_rank), count(local_size)(seen)
        return quotient(first, local, "cannot be: ranks are not in blocks by node") if first and local else None

    return read


def torch_local_size(seen: Variables) -> Told[int] | None:
    """Processes per node of a finished process, from its node rank where nothing else tells (Azure ML)."""
    told = count("LOCAL_WORLD_SIZE", "LOCAL_SIZE")(seen)
    nodes_told = seen.has_any("GROUP_WORLD_SIZE", "CROSS_SIZE", "AZUREML_NODE_COUNT")
    first, node_rank = first_rank_of_node(seen, "RANK", "LOCAL_RANK"), number("NODE_RANK")(seen)
    if told or nodes_told or first is None or node_rank is None or not first.value or not node_rank.value:
        return told
    return quotient(first, node_rank, "cannot be: ranks are not in blocks by node")


def torch_node_rank(seen: Variables) -> Told[int] | None:
    """The node rank of a finished process; the launcher's names come before a cloud's NODE_RANK."""
    launcher = number("GROUP_RANK", "CROSS_RANK")(seen)
    if launcher:
        return launcher
    first = first_rank_of_node(seen, "RANK", "LOCAL_RANK")
    if first and not first.value:
        return first
    block = block_node_rank("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return either(block, number("NODE_RANK"))(seen)


def _pet_range(seen: Variables) -> tuple[Told[int], Told[int]] | None:
    text = seen.get("PET_NNODES")
    if text is None:
        return None
    bounds = text.split(":") if text.count(":") == 1 else [text, text]
    least, most = (values.parse_count("PET_NNODES", part.strip(), least=1) for part in bounds)
    if least > most:
        raise SettingError(f"{values.quoted('PET_NNODES', text)} is an empty range", fix="write it as MIN:MAX")
    quote = values.quoted("PET_NNODES", text)
    return Told(least, "PET_NNODES", quote), Told(most, "PET_NNODES", quote)


def pet_nodes(seen: Variables) -> Told[int] | None:
    """The number of nodes, or its maximum where PET_NNODES is MIN:MAX."""
    bounds = _pet_range(seen)
    return bounds[1] if bounds else None


def pet_min_nodes(seen: Variables) -> Told[int] | None:
    """The least number of nodes of an elastic job."""
    bounds = _pet_range(seen)
    return bounds[0] if bounds and bounds[0].value < bounds[1].value else None


def pet_by_arrival(seen: Variables) -> bool:
    """Ranks come from the rendezvous: the operator gives its endpoint, or a range of node counts."""
    return seen.has("PET_RDZV_ENDPOINT") or pet_min_nodes(seen) is not None


def pet_node_rank(seen: Variables) -> Told[int] | None:
    """The pod's index, unless the job may shrink: then an index says nothing about the rank."""
    return None if pet_min_nodes(seen) else same(number("PET_NODE_RANK"), pod_rank)(seen)


def pet_processes(seen: Variables) -> Told[int] | None:
    """torchrun's --nproc-per-node; its words auto, gpu and cpu mean "count the devices"."""
    text = (seen.get("PET_NPROC_PER_NODE") or "").lower()
    return None if text in ("auto", "gpu", "cpu", "xpu") else number("PET_NPROC_PER_NODE")(seen)


def pet_world_size(seen: Variables) -> Told[int] | None:
    """WORLD_SIZE of Kubeflow 1.7-1.9: pods × nproc if nproc is an integer, else pods (trainer#1840)."""
    told, nodes = number("WORLD_SIZE")(seen), pet_nodes(seen)
    counts_pods = pet_processes(seen) is None or pet_by_arrival(seen)
    return None if told is None or counts_pods or (nodes and nodes.value == told.value) else told
