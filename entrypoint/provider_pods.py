"""Arithmetic of batch services and pod controllers: AWS Batch, Lepton, Volcano, TorchX."""

import re
from collections.abc import Callable

from entrypoint import values
from entrypoint.errors import SettingError
from entrypoint.readers import Told, Variables, count, number


def aws_batch_node_rank(seen: Variables) -> Told[int] | None:
    """The node's index, turned so that the main node is 0 wherever the job definition put it."""
    index, nodes = number("AWS_BATCH_JOB_NODE_INDEX")(seen), count("AWS_BATCH_JOB_NUM_NODES")(seen)
    main = number("AWS_BATCH_JOB_MAIN_NODE_INDEX")(seen)
    if index is None or nodes is None or main is None or not main.value:
        return index
    for told in (index, main):
        if told.value >= nodes.value:
            raise SettingError(
                f"{told.quote} is outside 0..{nodes.value - 1} ({nodes.quote})", fix="leave it as AWS Batch set it"
            )
    turned = (index.value - main.value) % nodes.value
    return Told(turned, f"{index.source} - {main.source}", f"{index.quote}, {main.quote}")


def lepton_primary(seen: Variables) -> Told[str] | None:
    """`<prefix>-0.<subdomain>`, as the vendor's script builds it."""
    prefix, domain = seen.get("LEPTON_JOB_WORKER_PREFIX"), seen.get("LEPTON_SUBDOMAIN")
    if prefix is None or domain is None:
        return None
    name = "LEPTON_JOB_WORKER_PREFIX, LEPTON_SUBDOMAIN"
    host = values.parse_address(name, f"{prefix}-0.{domain}")
    return Told(host, name, values.quoted(name, host))


def _volcano_groups(seen: Variables, pattern: str = r"VC_.+_HOSTS") -> list[str]:
    return sorted(name for name in seen.texts if re.fullmatch(pattern, name))


def volcano_peers(seen: Variables) -> Told[tuple[str, ...]] | None:
    """The hosts of the only task group; several groups have no common order."""
    groups = _volcano_groups(seen)
    ranked = seen.has_any("RANK", "NODE_RANK")
    return None if ranked or len(groups) != 1 else Told(*_told_hosts(seen, groups[0]))


def _told_hosts(seen: Variables, name: str) -> tuple[tuple[str, ...], str, str]:
    text = seen.texts[name]
    return values.parse_hosts(name, text), name, values.quoted(name, text)


def volcano_node_rank(seen: Variables) -> Told[int] | None:
    """VC_TASK_INDEX where there is one task group: it starts again at 0 in every group."""
    index, groups = number("VC_TASK_INDEX", "VK_TASK_INDEX")(seen), _volcano_groups(seen)
    if index is None or len(groups) < 2:
        return index
    raise SettingError(
        f"{index.quote} counts inside its task group, and there are {len(groups)}: {', '.join(groups)[:200]}",
        fix="use Volcano's pytorch plugin, which sets RANK and WORLD_SIZE, or set TRAIN_NODES and TRAIN_NODE_RANK",
    )


def torchx_nodes(seen: Variables) -> Told[int] | None:
    """One Volcano task group a replica; elsewhere TorchX puts the number on torchrun's command line only."""
    groups = _volcano_groups(seen, r"VC_.+_[0-9]+_HOSTS")
    first = _volcano_groups(seen, r"VC_.+_0_HOSTS")
    if len(first) == 1:
        return Told(len(groups), f"number of {first[0].replace('_0_', '_*_')}", f"{len(groups)} VC_*_HOSTS")
    host = seen.get("TORCHX_RANK0_HOST") or ""
    raise SettingError(
        f"{values.quoted('TORCHX_RANK0_HOST', host)}, but the number of nodes is not in the environment",
        fix="set TRAIN_NODES (1 for a single node), and TRAIN_NODE_RANK on each node if there are more",
    )


def torchx_node_rank(seen: Variables) -> Told[int] | None:
    """The replica's index, from its own name if need be; TorchX writes "localhost" for replica 0 on itself."""
    told = number("NODE_RANK", "TORCHX_REPLICA_IDX")(seen)
    host, own = seen.get("TORCHX_RANK0_HOST") or "", (seen.get("HOSTNAME") or "").partition(".")[0]
    if told or values.is_loopback(host):
        return told or Told(0, "TORCHX_RANK0_HOST", values.quoted("TORCHX_RANK0_HOST", host))
    for name in _volcano_groups(seen, r"VC_.+_[0-9]{1,6}_HOSTS"):
        if own and own == seen.texts[name].partition(".")[0]:
            return Told(int(name.split("_")[-2]), f"{name} = HOSTNAME", values.quoted(name, seen.texts[name]))
    return None


def torchx_primary(seen: Variables) -> Told[str] | None:
    """Replica 0's host; "localhost" is said on replica 0 alone and means itself."""
    groups = _volcano_groups(seen, r"VC_.+_0_HOSTS")
    if len(groups) == 1:
        hosts, name, quote = _told_hosts(seen, groups[0])
        return Told(hosts[0], name, quote)
    text = seen.get("TORCHX_RANK0_HOST") or ""
    host = values.parse_address("TORCHX_RANK0_HOST", text)
    return (
        None if values.is_loopback(host) else Told(host, "TORCHX_RANK0_HOST", values.quoted("TORCHX_RANK0_HOST", text))
    )


def refuse_bare_mpi(size: str, local_size: str) -> Callable[[Variables], None]:
    """The reader of a size that comes without its share on this node."""

    def read(seen: Variables) -> None:
        told = count(size)(seen)
        if told and told.value > 1:
            raise SettingError(
                f"{told.quote}, but {local_size} is not set: nothing says how many of them run on this node",
                fix="start it with mpirun or srun of the same MPI, or set TRAIN_NODES, TRAIN_NODE_RANK and TRAIN_NPROC",
            )

    return read
