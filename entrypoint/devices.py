"""Which GPUs the training processes will see: NVML's list under CUDA_VISIBLE_DEVICES."""

from collections.abc import Sequence

from entrypoint.errors import SettingError
from entrypoint.facts import Gpu


def visible_gpus(wanted: str | None, gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """UUIDs of the devices that CUDA will number 0, 1, …

    As CUDA reads the variable (CUDA C++ programming guide, environment variables): indices, or UUIDs that may be
    shortened as long as they are unique, or MIG UUIDs; the first invalid entry hides itself and all after it; set
    but empty hides all. Devices in MIG mode are seen as their first instance, and a process sees one instance
    at most (NVIDIA MIG user guide, CUDA visible devices).
    """
    if wanted is None:
        devices = [_as_seen(gpu) for gpu in gpus]
        return _one_instance([uuid for uuid in devices if uuid is not None])
    seen: list[str] = []
    for entry in (part.strip() for part in wanted.split(",")):
        uuid = _device(entry, gpus)
        if uuid is None:
            break
        if uuid in seen:
            raise SettingError(
                f"CUDA_VISIBLE_DEVICES={wanted!r} names a device twice ({entry})", fix="name each device once"
            )
        seen.append(uuid)
    return _one_instance(seen)


def _as_seen(gpu: Gpu) -> str | None:
    if gpu.error is not None:
        return None
    return next(iter(gpu.mig), None) if gpu.mig_enabled else gpu.uuid


def _one_instance(uuids: Sequence[str]) -> tuple[str, ...]:
    instances = [uuid for uuid in uuids if uuid.startswith("MIG-")]
    return tuple(uuid for uuid in uuids if uuid not in instances[1:])


def _device(entry: str, gpus: Sequence[Gpu]) -> str | None:
    if entry.isascii() and entry.isdigit():
        index = int(entry) if len(entry) < 6 else len(gpus)
        return _as_seen(gpus[index]) if index < len(gpus) else None
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    known = [uuid for gpu in gpus for uuid in (gpu.uuid, *gpu.mig)]
    matches = [uuid for uuid in known if uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None
