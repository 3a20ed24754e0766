"""Contracts that a platform writes as a document, in a variable or in a file."""

from typing import Any

from entrypoint import values
from entrypoint.errors import SettingError
from entrypoint.provider_torch import first_rank_of_node, quotient
from entrypoint.readers import Told, Variables, count


def _document(seen: Variables, name: str, text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    found = values.parse_json(name, text)
    if not isinstance(found, dict):
        raise _unlike_the_platform(name, text)
    return found


def _unlike_the_platform(name: str, what: object) -> SettingError:
    return SettingError(
        f"{values.quoted(name, what)} does not have the form that its platform writes",
        fix="leave it as the platform wrote it, or give TRAIN_NODES, TRAIN_NODE_RANK and TRAIN_PRIMARY",
    )


def _hosts(name: str, found: object) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(host, str) for host in found):
        raise _unlike_the_platform(name, found)
    return tuple(values.parse_address(name, host.strip()) for host in found)


def _index(name: str, found: object) -> int:
    if isinstance(found, bool) or not isinstance(found, (int, str)):
        raise _unlike_the_platform(name, found)
    return values.parse_count(name, str(found))


_SAGEMAKER_FILE = "/opt/ml/input/config/resourceconfig.json"


def _sagemaker(seen: Variables, variable: str, key: str) -> tuple[str, Any]:
    """From the toolkit's variable, else from the file that every SageMaker container has."""
    text = seen.get(variable)
    if text is not None:
        return variable, values.parse_json(variable, text) if text.startswith(("[", "{")) else text
    document = _document(seen, "resourceconfig.json", seen.file(_SAGEMAKER_FILE)) or {}
    return f"resourceconfig.json {key}", document.get(key)


def sagemaker(seen: Variables) -> bool:
    """The toolkit's variables, or the file alone in a container without the toolkit."""
    return seen.has("SM_HOSTS") or seen.file(_SAGEMAKER_FILE) is not None


def sagemaker_peers(seen: Variables) -> Told[tuple[str, ...]] | None:
    """Hosts as given: the order is lexicographic (algo-1, algo-10, algo-2), and it is the order of ranks."""
    name, found = _sagemaker(seen, "SM_HOSTS", "hosts")
    return Told(_hosts(name, found), name, values.quoted(name, found)) if found else None


def sagemaker_node_rank(seen: Variables) -> Told[int] | None:
    """The index of this host in the list."""
    peers = sagemaker_peers(seen)
    name, found = _sagemaker(seen, "SM_CURRENT_HOST", "current_host")
    if peers is None or found is None:
        return None
    if found not in peers.value:
        raise SettingError(
            f"{values.quoted(name, found)} is not among {peers.quote}",
            fix="leave both as the platform wrote them, or give TRAIN_NODES, TRAIN_NODE_RANK and TRAIN_PRIMARY",
        )
    return Told(peers.value.index(found), name, values.quoted(name, found))


def sagemaker_interface(seen: Variables) -> Told[str] | None:
    """The network interface that SageMaker names: eth0, ethwe in older containers."""
    name, found = _sagemaker(seen, "SM_NETWORK_INTERFACE_NAME", "network_interface_name")
    if not found:
        return None
    return Told(values.parse_interfaces(name, str(found)), name, values.quoted(name, found))


def _vertex(seen: Variables) -> tuple[dict[str, Any], str, int]:
    """CLUSTER_SPEC as (pools, this task's pool, its index); pools 2 and 3 are servers and evaluators."""
    text = seen.get("CLUSTER_SPEC")
    document = _document(seen, "CLUSTER_SPEC", text) or {}
    pools, task = document.get("cluster"), document.get("task")
    if not isinstance(pools, dict) or not isinstance(task, dict) or not isinstance(task.get("type"), str):
        raise _unlike_the_platform("CLUSTER_SPEC", text)
    role = task["type"]
    if role not in ("workerpool0", "workerpool1"):
        raise SettingError(
            f"{values.quoted('CLUSTER_SPEC task.type', role)} is not a trainer",
            fix="run training in workerpool0 and workerpool1 only; this replica needs a program of its own",
        )
    return pools, role, _index("CLUSTER_SPEC task.index", task.get("index", 0))


def vertex_peers(seen: Variables) -> Told[tuple[str, ...]] | None:
    """Trainers in rank order: the chief pool, then the workers; the ports beside the names are not ours."""
    pools, _, _ = _vertex(seen)
    names = ("workerpool0", "workerpool1")
    chief, workers = (_hosts(f"CLUSTER_SPEC {name}", pools.get(name, [])) for name in names)
    if not chief:
        raise _unlike_the_platform("CLUSTER_SPEC", seen.get("CLUSTER_SPEC"))
    return Told(chief + workers, "CLUSTER_SPEC", f"CLUSTER_SPEC naming {len(chief + workers)} trainers")


def vertex_node_rank(seen: Variables) -> Told[int] | None:
    """The index inside the pool, after the chief pool's nodes."""
    pools, role, index = _vertex(seen)
    size = len(_hosts(f"CLUSTER_SPEC {role}", pools.get(role, [])))
    if index >= size:
        raise SettingError(
            f"CLUSTER_SPEC task.index={index} is outside 0..{size - 1} ({role})", fix="leave it as Vertex AI wrote it"
        )
    before = len(_hosts("CLUSTER_SPEC workerpool0", pools.get("workerpool0", []))) if role == "workerpool1" else 0
    return Told(before + index, "CLUSTER_SPEC", f"CLUSTER_SPEC task {role} {index}")


_DETERMINED_FILE = "/run/determined/info/rendezvous.json"


def _determined(seen: Variables, key: str) -> Any:
    document = _document(seen, "rendezvous.json", seen.file(_DETERMINED_FILE))
    return document.get(key) if document else None


def determined(seen: Variables) -> bool:
    """Determined writes the cluster into a file before the task starts."""
    return seen.file(_DETERMINED_FILE) is not None


def determined_peers(seen: Variables) -> Told[tuple[str, ...]] | None:
    """Addresses in rank order; nodes with unequal numbers of slots are refused."""
    name = "rendezvous.json container_addrs"
    found, slots = _determined(seen, "container_addrs"), _determined(seen, "container_slot_counts")
    if isinstance(slots, list) and len({str(slot) for slot in slots}) > 1:
        raise SettingError(
            f"{values.quoted('rendezvous.json container_slot_counts', slots)}: unequal numbers of GPUs",
            fix="ask for slots in multiples of a whole node, or set TRAIN_NODES, TRAIN_NODE_RANK and TRAIN_NPROC",
        )
    return Told(_hosts(name, found), name, values.quoted(name, found)) if found else None


def determined_node_rank(seen: Variables) -> Told[int] | None:
    """The container's rank."""
    name, found = "rendezvous.json container_rank", _determined(seen, "container_rank")
    return None if found is None else Told(_index(name, found), name, values.quoted(name, found))


def determined_slots(seen: Variables) -> Told[int] | None:
    """The number of GPUs in DET_SLOT_IDS."""
    text = seen.get("DET_SLOT_IDS")
    found = values.parse_json("DET_SLOT_IDS", text) if text else None
    if found is None or isinstance(found, list):
        return Told(len(found), "DET_SLOT_IDS", values.quoted("DET_SLOT_IDS", text)) if found is not None else None
    raise _unlike_the_platform("DET_SLOT_IDS", text)


def lsf_peers(seen: Variables) -> Told[tuple[str, ...]] | None:
    """Hosts of the rank file in order; its first line is the launch node (Lightning lsf.py)."""
    path = seen.get("LSB_DJOB_RANKFILE")
    text = seen.file(path) if path else None
    lines = (text or "").split()
    if not lines:
        return None
    name = "LSB_DJOB_RANKFILE"
    hosts = tuple(values.parse_address(name, host) for host in dict.fromkeys(lines[1:] or lines))
    size, local = count("JSM_NAMESPACE_SIZE")(seen), count("JSM_NAMESPACE_LOCAL_SIZE")(seen)
    used = hosts[: max(size.value // local.value, 1)] if size and local else hosts  # jsrun may take fewer hosts
    return Told(used, name, f"{values.quoted(name, path)} naming {len(used)} hosts")


def lsf_node_rank(seen: Variables) -> Told[int] | None:
    """The host's index, where jsrun gives ranks to hosts in blocks."""
    size, local = count("JSM_NAMESPACE_SIZE")(seen), count("JSM_NAMESPACE_LOCAL_SIZE")(seen)
    peers, first = lsf_peers(seen), first_rank_of_node(seen, "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK")
    if local is None and size and peers:
        hosts = Told(len(peers.value), peers.source, peers.quote)
        local = quotient(size, hosts, "puts uneven numbers of processes on the hosts")
    return quotient(first, local, "cannot be: ranks are not in blocks by host") if first and local else None
