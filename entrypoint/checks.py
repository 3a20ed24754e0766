"""What facts mean for this plan: every question that can be answered without touching the machine. Pure.

`plan` tells those that warn or stop, `train` does not start over one that stops, and `doctor` tells all.
"""

from collections.abc import Iterator

from entrypoint.check_gpus import check_gpus
from entrypoint.check_limits import check_limits, check_names, check_rdma
from entrypoint.check_software import check_software
from entrypoint.cluster import Cluster
from entrypoint.facts import Facts
from entrypoint.reasons import Check
from entrypoint.values import is_loopback
from entrypoint.volume import check_place

ORDER = ("stop", "warn", "ok", "n/a")


def check(
    cluster: Cluster,
    facts: Facts,
    *,
    gpus: int,
    chosen: bool,
    named: bool,
    is_process: bool,
    meeting_port: int | None = None,
) -> tuple[Check, ...]:
    """All answers, in the order in which a person should read them: what stops first.

    `chosen`: CUDA_VISIBLE_DEVICES is set; `named`: TRAIN_VOLUME is.
    """
    # Several nodes on one machine, as for a test, may share its disk.
    elsewhere = cluster.nodes > 1 and not is_loopback(cluster.primary_address or "")
    found = [
        *_process(cluster, is_process),
        *_ranks(cluster, is_process),
        *check_gpus(cluster, facts, gpus=gpus, chosen=chosen),
        *check_place(
            facts.volume, container=facts.container, must_be_shared=elsewhere and not named, user_id=facts.user_id
        ),
        *check_limits(cluster, facts, gpus=gpus),
        *check_names(cluster, facts, meeting_port=meeting_port),
        *check_rdma(facts),
        *check_software(facts),
    ]
    return tuple(sorted(found, key=lambda each: ORDER.index(each.level)))


def _process(cluster: Cluster, is_process: bool) -> Iterator[Check]:
    if is_process:
        yield Check(
            "cluster.process",
            "ok",
            f"one of {cluster.world_size} processes that run already ({cluster.provider}): no launcher, no roll call, "
            "no restarts by us",
        )


def _ranks(cluster: Cluster, is_process: bool) -> Iterator[Check]:
    if cluster.node_rank is None and cluster.nodes > 1 and not is_process:
        text = f"the {cluster.nodes} nodes get their ranks by arrival; the primary is node 0"
        yield Check("cluster.ranks", "ok", text)
