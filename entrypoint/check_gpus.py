"""GPUs, their driver and their links: what facts mean for training on them. Pure."""

from collections.abc import Iterator, Sequence

from entrypoint.cluster import Cluster
from entrypoint.facts import Facts, Gpu
from entrypoint.reasons import Check

# Sources of the number of processes that count no GPUs.
_MEANT_FOR_CPU = ("TRAIN_NPROC", "no GPU", "LOCAL_WORLD_SIZE", "WORLD_SIZE")

# Oldest driver branch for each major version of CUDA; within one, a newer toolkit runs on an older driver
# (docs.nvidia.com/deploy/cuda-compatibility, "minor version compatibility").
MINIMUM_DRIVER = {11: 450, 12: 525, 13: 580}
# Oldest compute capability that the toolkit still compiles for: 13.0 left out Maxwell, Pascal and Volta (CUDA 13.0
# release notes, "deprecated and dropped features").
MINIMUM_CAPABILITY = {11: (3, 5), 12: (5, 0), 13: (7, 5)}


def check_gpus(cluster: Cluster, facts: Facts, *, gpus: int, chosen: bool) -> Iterator[Check]:
    """Questions about GPUs; `gpus` of them are visible, `chosen` by CUDA_VISIBLE_DEVICES or else all."""
    if facts.gpus is None:
        text = "an NVIDIA driver is here, but NVML does not answer"
        yield Check("gpu.count", "warn", text, "run nvidia-smi and read its error")
        return
    if not facts.gpus:
        yield from _without(cluster)
        return
    yield _count(cluster, facts, gpus)
    yield _driver(facts)
    yield from _built_for(facts, gpus)
    yield from _lost(facts.gpus, chosen=chosen)
    answering = [gpu for gpu in facts.gpus if gpu.error is None]
    yield from _models(answering)
    yield from _memory_errors(answering)
    yield from _clocks(answering)
    yield from _fabric(answering)
    yield from _mig(answering)


def _without(cluster: Cluster) -> Iterator[Check]:
    source = cluster.sources.get("processes_per_node", "TRAIN_NPROC")
    if source in _MEANT_FOR_CPU:
        yield Check("gpu.count", "n/a", "no GPU, no driver", value=0)
        return
    yield Check(
        "gpu.count",
        "warn",
        f"{source} counts GPUs and none is seen: {cluster.processes_per_node} processes a node train on the CPU",
        "check that the container was started with its GPUs (docker run --gpus all)",
        0,
    )


def _count(cluster: Cluster, facts: Facts, gpus: int) -> Check:
    here = len(facts.gpus or ())
    value = {"here": here, "visible": gpus, "processes": cluster.processes_per_node}
    if not gpus:
        return Check(
            "gpu.count", "warn", f"CUDA_VISIBLE_DEVICES hides all {here} GPUs", "unset it to train on them", value
        )
    hidden = "" if gpus == here else f", {here - gpus} hidden or in use by MIG"
    return Check("gpu.count", "ok", f"{gpus} visible for {cluster.processes_per_node} processes{hidden}", value=value)


def _driver(facts: Facts) -> Check:
    """Whether the driver is new enough for the CUDA that torch was built with, before torch is imported."""
    software = facts.software
    driver, speaks = facts.driver_version, facts.driver_cuda
    said = f"driver {driver or 'unknown'}" + (f" speaks CUDA {speaks}" if speaks else "")
    value = {"driver": driver, "driver_cuda": speaks, "torch_cuda": software.torch_cuda if software else None}
    if software is None or software.torch_cuda is None:
        return Check("gpu.driver", "ok", said, value=value)
    major = int(software.torch_cuda.partition(".")[0])
    branch = MINIMUM_DRIVER.get(major)
    # What the driver itself says counts first: a compatibility package raises it above the kernel module's branch.
    if speaks:
        enough = int(speaks.partition(".")[0]) >= major
    elif driver and branch:
        enough = int(driver.partition(".")[0]) >= branch
    else:
        enough = True
    needs = f"torch {software.torch} is built with CUDA {software.torch_cuda}"
    if enough:
        return Check("gpu.driver", "ok", f"{said}; {needs}", value=value)
    return Check(
        "gpu.driver",
        "stop",
        f"{said}; {needs}, which wants driver {branch or '(newer)'} or later",
        f"rent a host with driver {branch or '(newer)'} or later (the filter is often called CUDA {major}.0), or use "
        f"a torch built with CUDA {speaks.partition('.')[0] if speaks else major - 1}.x",
        value,
    )


def _built_for(facts: Facts, gpus: int) -> Iterator[Check]:
    software = facts.software
    if software is None or software.torch is None or not gpus:
        return
    if software.torch_cuda is None:
        yield Check(
            "gpu.torch",
            "stop",
            f"torch {software.torch} is built without CUDA, and {gpus} GPUs are here",
            "install the CUDA build of torch (make setup LOCK=cuda), or hide the GPUs: CUDA_VISIBLE_DEVICES=",
            software.torch,
        )
        return
    oldest = MINIMUM_CAPABILITY.get(int(software.torch_cuda.partition(".")[0]))
    for gpu in facts.gpus or ():
        if oldest and gpu.capability and _numbers(gpu.capability) < oldest:
            yield Check(
                "gpu.torch",
                "stop",
                f"GPU {gpu.index} ({gpu.name}) has compute capability {gpu.capability}; CUDA {software.torch_cuda} "
                f"begins with {oldest[0]}.{oldest[1]}: no kernel image would be found",
                "use a torch built with CUDA 12.x, or a newer GPU",
                gpu.capability,
            )
        elif gpu.capability and software.architectures and not has_kernels(gpu.capability, software.architectures):
            yield Check(
                "gpu.ops",
                "warn",
                f"GPU {gpu.index} ({gpu.name}) has compute capability {gpu.capability}; DeepSpeed's ops were built for "
                f"{' '.join(software.architectures)}",
                "use another GPU, or build the image with TORCH_CUDA_ARCH_LIST",
                gpu.capability,
            )


def has_kernels(capability: str, built: Sequence[str]) -> bool:
    """Whether code for these architectures runs on a GPU: the same major version and a minor one that is no newer, or
    PTX of an older one, which the driver compiles (CUDA C++ programming guide, binary and PTX compatibility).

    >>> [has_kernels(c, ("8.0", "9.0", "12.0+PTX")) for c in ("8.6", "7.5", "10.0", "12.1", "13.0")]
    [True, False, False, True, True]
    """
    here = _numbers(capability)
    for each in built:
        number = _numbers(each.removesuffix("+PTX"))
        if (number[0] == here[0] and number <= here) or (each.endswith("+PTX") and number <= here):
            return True
    return False


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _lost(gpus: tuple[Gpu, ...], *, chosen: bool) -> Iterator[Check]:
    for gpu in gpus:
        if gpu.error is not None:
            yield Check(
                "gpu.health",
                "warn" if chosen else "stop",
                f"GPU {gpu.index} does not answer: {gpu.error}",
                "take another machine and report this one; to go on without it, name the others in "
                "CUDA_VISIBLE_DEVICES by their UUIDs",
                gpu.error,
            )


def _models(gpus: list[Gpu]) -> Iterator[Check]:
    names = sorted({gpu.name for gpu in gpus})
    if len(names) > 1:
        text = f"different GPUs in one machine: {', '.join(names)}; all wait for the slowest"
        yield Check("gpu.models", "warn", text, "name the same kind in CUDA_VISIBLE_DEVICES", names)


def _memory_errors(gpus: list[Gpu]) -> Iterator[Check]:
    known = False
    for gpu in gpus:
        known = known or gpu.ecc_uncorrected is not None or gpu.remap_failed is not None
        if gpu.remap_failed:
            said, fix = "has no spare rows of memory left", "take another machine and report this one"
        elif gpu.remap_pending:
            said, fix = "waits for a reset to replace bad memory", "reset it (nvidia-smi -r, on the host) or restart"
        elif gpu.ecc_uncorrected:
            said = f"had {gpu.ecc_uncorrected} memory errors that could not be corrected since its driver was loaded"
            fix = "watch it; if the number grows, take another machine and report this one"
        else:
            continue
        yield Check("gpu.memory", "warn", f"GPU {gpu.index} {said}", fix, gpu.ecc_uncorrected)
        return
    if known:
        yield Check("gpu.memory", "ok", "no memory errors", value=0)


def _clocks(gpus: list[Gpu]) -> Iterator[Check]:
    slow = {gpu.index: gpu.throttled for gpu in gpus if gpu.throttled}
    if slow:
        said = ", ".join(f"GPU {index} ({', '.join(reasons)})" for index, reasons in slow.items())
        text = f"clocks are held down on {said}: every step waits for the slowest"
        yield Check("gpu.clocks", "warn", text, "cooling or power of the host: take another machine", list(slow))
    elif gpus:
        yield Check("gpu.clocks", "ok", "no clock is held down")


def _fabric(gpus: list[Gpu]) -> Iterator[Check]:
    states = {gpu.index: gpu.fabric_state for gpu in gpus if gpu.fabric_state not in (None, "not supported")}
    bad = {index: state for index, state in states.items() if state != "completed"}
    for index, state in bad.items():
        yield Check(
            "gpu.fabric",
            "warn",  # whether CUDA starts all the same is asked of CUDA itself: gpu.cuda
            f"GPU {index}: NVLink fabric is {state}; until it is completed CUDA says 'system not yet initialized'",
            "start nvidia-fabricmanager on the host; on a rented machine take another and tell its support",
            state,
        )
    if states and not bad:
        yield Check("gpu.fabric", "ok", "NVLink fabric is completed", value="completed")


def _mig(gpus: list[Gpu]) -> Iterator[Check]:
    split = [gpu for gpu in gpus if gpu.mig_enabled]
    empty = [gpu.index for gpu in split if not gpu.mig]
    if empty:
        text = f"GPU {', '.join(map(str, empty))} is in MIG mode without an instance: CUDA finds nothing there"
        yield Check("gpu.mig", "warn", text, "nvidia-smi mig -cgi … -C, or nvidia-smi -mig 0, on the host", empty)
    elif split:
        text = "MIG: a process sees one instance, and instances have no NVLink or P2P between them"
        yield Check("gpu.mig", "ok", text, value=len(split))
