"""GPUs and their driver as NVML describes them; the library is loaded only when it is asked."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ctypes import byref
from dataclasses import dataclass
from typing import Any

from entrypoint.facts import Gpu

# nvmlClocksEventReasons*: bits of the reasons that say something is wrong, in words.
_SLOWDOWNS = ((0x08, "hardware slowdown"), (0x20, "too warm (software)"), (0x40, "too warm"), (0x80, "power brake"))
_FABRIC_STATES = ("not supported", "not started", "in progress", "completed")  # NVML_GPU_FABRIC_STATE_*, 0 to 3


@dataclass(frozen=True, slots=True)
class Driver:
    """What the GPU driver says of itself and its devices."""

    version: str | None  # "580.65.06"
    cuda: str | None  # "13.0"
    gpus: tuple[Gpu, ...] | None


def ask_nvml() -> Driver | None:
    """The driver and its GPUs; None: there is no NVML here, or it refused."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        with _session(pynvml):
            return read_nvml(pynvml)
    except pynvml.NVMLError:
        return None


@contextmanager
def _session(nvml: Any) -> Iterator[None]:
    nvml.nvmlInit()
    try:
        yield
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def read_nvml(nvml: Any) -> Driver:
    """What an initialised pynvml says; NVMLError if it cannot even count its devices."""
    count = nvml.nvmlDeviceGetCount()
    cuda = _said(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
    return Driver(
        version=_said(nvml, nvml.nvmlSystemGetDriverVersion),
        cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        gpus=tuple(_read_gpu(nvml, index) for index in range(count)),
    )


def _read_gpu(nvml: Any, index: int) -> Gpu:
    try:
        device = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid, name = nvml.nvmlDeviceGetUUID(device), nvml.nvmlDeviceGetName(device)
    except nvml.NVMLError as error:
        # A lost GPU keeps its place: seven of eight must not look like a machine of seven.
        return Gpu(index, uuid="", name="", memory_bytes=None, error=str(error))
    memory = _said(nvml, nvml.nvmlDeviceGetMemoryInfo, device)
    mig_mode = _said(nvml, nvml.nvmlDeviceGetMigMode, device)
    capability = _said(nvml, nvml.nvmlDeviceGetCudaComputeCapability, device)
    remapped = _said(nvml, nvml.nvmlDeviceGetRemappedRows, device)  # corrected, uncorrected, pending, failed
    reasons = _said(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons, device) or 0
    return Gpu(
        index=index,
        uuid=uuid,
        name=name,
        memory_bytes=None if memory is None else memory.total,
        mig=tuple(_mig_uuids(nvml, device)),
        fabric_state=_fabric_state(nvml, device),
        mig_enabled=None if mig_mode is None else mig_mode[0] == nvml.NVML_DEVICE_MIG_ENABLE,
        capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        ecc_uncorrected=_said(
            nvml,
            nvml.nvmlDeviceGetTotalEccErrors,
            device,
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            nvml.NVML_VOLATILE_ECC,
        ),
        remap_pending=None if remapped is None else bool(remapped[2]),
        remap_failed=None if remapped is None else bool(remapped[3]),
        throttled=tuple(word for bit, word in _SLOWDOWNS if reasons & bit),
    )


def _said(nvml: Any, call: Callable[..., Any], *arguments: Any) -> Any | None:
    try:
        return call(*arguments)
    except (nvml.NVMLError, UnicodeDecodeError):
        return None


def _mig_uuids(nvml: Any, device: Any) -> Iterator[str]:
    # The places are fixed (seven on an A100) and most of them empty, in any order.
    for place in range(_said(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, device) or 0):
        instance = _said(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, device, place)
        uuid = None if instance is None else _said(nvml, nvml.nvmlDeviceGetUUID, instance)
        if uuid is not None:
            yield uuid


def _fabric_state(nvml: Any, device: Any) -> str | None:
    """How far the GPU's registration with the NVLink fabric is; until "completed", CUDA fails with error 802."""
    try:
        info = _fabric_info(nvml, device)
    except nvml.NVMLError_NotSupported:  # before Hopper
        return "not supported"
    except (nvml.NVMLError, AttributeError):  # AttributeError: a pynvml from before there were fabrics
        return None
    if info.state >= len(_FABRIC_STATES):
        return None
    failed = info.state == nvml.NVML_GPU_FABRIC_STATE_COMPLETED and info.status != nvml.NVML_SUCCESS
    return "failed" if failed else _FABRIC_STATES[info.state]


def _fabric_info(nvml: Any, device: Any) -> Any:
    info = nvml.c_nvmlGpuFabricInfo_v2_t()
    try:
        nvml.nvmlDeviceGetGpuFabricInfoV(device, byref(info))
    except nvml.NVMLError_FunctionNotFound:  # an older driver knows only the form without a version
        info = nvml.c_nvmlGpuFabricInfo_t()
        nvml.nvmlDeviceGetGpuFabricInfo(device, byref(info))
    return info
