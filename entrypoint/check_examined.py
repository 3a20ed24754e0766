"""What only an examination shows: CUDA's own start, links between GPUs, the volume's trial, caches. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from entrypoint.facts import Facts
from entrypoint.reasons import Check, Level
from entrypoint.topology import describe, describe_nics, has_nvlink, parse_topology
from entrypoint.volume import Trial, check_clock, check_trial, size

# cuInit's answers (cuda.h, CUresult) that people meet, and what to do about them.
_CUDA_CODES = {
    35: ("the driver is older than this CUDA", "rent a host with a newer driver"),
    46: ("the devices are busy or reserved", "another process has them for itself: nvidia-smi shows which"),
    100: ("CUDA sees no device", "start the container with its GPUs (docker run --gpus all)"),
    101: ("CUDA finds a device that it cannot use", "look at CUDA_VISIBLE_DEVICES"),
    802: (
        "system not yet initialized: the NVLink fabric of this host is not up",
        "start nvidia-fabricmanager on the host; on a rented machine take another and tell its support",
    ),
    803: (
        "the driver's library and its kernel module are of different versions",
        "restart the container; on the host, reboot after a driver's update",
    ),
    804: (
        "a compatibility library was loaded that this GPU does not support",
        "take the compat folder out of LD_LIBRARY_PATH; a GeForce needs a host with the newer driver itself",
    ),
    999: (
        "unknown error",
        "restart the container: it may have lost its devices (nvidia-container-toolkit: systemctl daemon-reload)",
    ),
}
_OLD_LOCK_SECONDS = 1800  # an op compiles for some minutes


@dataclass(frozen=True, slots=True)
class CudaStart:
    """How cuInit went; `apart` are pairs of visible devices without peer access."""

    code: int | None = None
    devices: int | None = None
    apart: tuple[tuple[int, int], ...] = ()
    error: str | None = None  # no answer in time, or no library


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder where a library keeps files, under the variable that says so."""

    name: str
    path: str
    free_bytes: int | None
    executes: bool | None  # False: mounted noexec
    ours: bool  # we set it; False: it came from outside


@dataclass(frozen=True, slots=True)
class BuildLock:
    """The lock that torch leaves beside an extension while one process compiles it, and for ever if that is killed."""

    path: str
    age_seconds: float
    held: bool  # a process of this machine has it open


@dataclass(frozen=True, slots=True)
class Examined:
    """What was looked at beyond Facts; None: not looked at, or no answer."""

    trial: Trial | None = None
    topology: str | None = None  # nvidia-smi topo -m
    cuda: CudaStart | None = None
    clock_synchronized: bool | None = None
    tmux: str | None = None
    caches: tuple[Cache, ...] = ()
    locks: tuple[BuildLock, ...] = ()


def check_examined(examined: Examined, facts: Facts, *, checkpoint_bytes: int | None, keep: int) -> Iterator[Check]:
    """Every answer of an examination."""
    yield from check_cuda(examined.cuda)
    yield from check_links(examined.topology, facts)
    if examined.trial is not None:
        yield from check_trial(examined.trial, checkpoint_bytes=checkpoint_bytes, keep=keep)
    yield check_clock(examined.trial, examined.clock_synchronized)
    yield from _caches(examined.caches)
    yield from check_locks(examined.locks)


def check_cuda(cuda: CudaStart | None) -> Iterator[Check]:
    """Whether CUDA starts, and whether its devices reach each other."""
    if cuda is None:
        return
    if cuda.error is not None:
        text = f"CUDA was not started: {cuda.error}"
        yield Check("gpu.cuda", "stop", text, "the container needs the driver's library (docker run --gpus all)")
        return
    if cuda.code:
        said, fix = _CUDA_CODES.get(cuda.code, ("see CUresult in cuda.h", "look at dmesg and nvidia-smi on the host"))
        yield Check("gpu.cuda", "stop", f"CUDA does not start: error {cuda.code}, {said}", fix, cuda.code)
        return
    yield Check("gpu.cuda", "ok", f"CUDA starts and sees {cuda.devices}", value=cuda.devices)
    if (cuda.devices or 0) < 2:
        return
    pairs = (cuda.devices or 0) * ((cuda.devices or 0) - 1) // 2
    if cuda.apart:
        yield Check(
            "gpu.p2p",
            "warn",
            f"{len(cuda.apart)} of {pairs} pairs of GPUs cannot reach each other directly (P2P): data takes the way "
            "through system memory",
            "usual for GeForce cards: prefer ddp, or zero with stage 1 or 2; else look at IOMMU and ACS on the host",
            [list(pair) for pair in cuda.apart],
        )
    else:
        yield Check("gpu.p2p", "ok", f"all {pairs} pairs of GPUs reach each other directly (P2P)", value=[])


def check_links(text: str | None, facts: Facts) -> Iterator[Check]:
    """NVLink between the GPUs and NICs beside them, of what `nvidia-smi topo -m` printed."""
    gpus = facts.gpus or ()
    if not gpus:
        return
    found = parse_topology(text) if text else None
    if found is None:
        yield Check("gpu.links", "n/a", "nvidia-smi topo -m does not tell how the GPUs are joined")
        return
    pairs = {f"{a}-{b}": link for (a, b), link in found.pairs().items()}
    sentence = describe(found)
    built_for = next((gpu.name for gpu in gpus if _has_nvlink_board(gpu.name)), None)
    if any(gpu.mig_enabled for gpu in gpus) and len(found.gpus) > 1:
        yield Check("gpu.links", "ok", f"{sentence}; not between MIG instances", value=pairs)
    elif len(found.gpus) > 1 and built_for and not has_nvlink(found):
        fix = "the fabric is down, or the host hides it from this machine: take another and tell its support"
        yield Check("gpu.links", "warn", f"{built_for} is built for NVLink, but {sentence}", fix, pairs)
    elif len(found.gpus) > 1 and not has_nvlink(found):
        fix = "fine for ddp; fsdp and zero-3 move all weights at every step: prefer ddp, or zero with stage 1 or 2"
        yield Check("gpu.links", "warn", sentence, fix, pairs)
    else:
        yield Check("gpu.links", "ok", sentence, value=pairs)
    if near := describe_nics(found):
        yield Check("rdma.distance", "ok", near)


def _has_nvlink_board(name: str) -> bool:
    """Whether this card comes on a board with NVLink, by its name in NVML.

    >>> [_has_nvlink_board(n) for n in ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe")]
    [True, True, False]
    """
    return "SXM" in name or (name.endswith("HBM3") and "NVL" not in name) or name in ("NVIDIA H200", "NVIDIA B200")


def _caches(caches: tuple[Cache, ...]) -> Iterator[Check]:
    for cache in caches:
        value = {"path": cache.path, "free": cache.free_bytes}
        key = f"cache.{cache.name}"
        if cache.executes is False:
            text = f"{cache.name}={cache.path} is mounted noexec: what is compiled there cannot be loaded"
            yield Check(key, "warn", text, f"set {cache.name} or TMPDIR to a folder that may hold programs", value)
        elif cache.free_bytes is not None and cache.free_bytes < 1 << 30:
            text = f"{cache.name}={cache.path} has {size(cache.free_bytes)} left"
            yield Check(key, "warn", text, f"free some, or set {cache.name} to a larger disk", value)
        else:
            yield Check(key, "ok", f"{cache.path} ({size(cache.free_bytes)} free)", value=value)


def check_locks(locks: tuple[BuildLock, ...]) -> Iterator[Check]:
    """Locks of builds that nobody builds any more: every process would wait on them without a word (pytorch#189245)."""
    for lock in locks:
        if lock.held:
            continue
        # On a shared folder the builder may be on another node, which only time can tell.
        level: Level = "stop" if lock.age_seconds > _OLD_LOCK_SECONDS else "warn"
        age = f"{lock.age_seconds / 60:.0f} minutes" if lock.age_seconds >= 120 else f"{lock.age_seconds:.0f} s"
        text = f"{lock.path} is {age} old and no process here holds it: whoever needs this op waits for ever"
        yield Check("cache.lock", level, text, f"if no other node compiles it now: rm {lock.path}", lock.path)
