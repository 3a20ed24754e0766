"""The walk over NVML, against pynvml's own structures and errors with the library's calls replaced."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from entrypoint.probe_nvml import ask_nvml, read_nvml

Error = pynvml.NVMLError


def refusing(code: int) -> Callable[..., Any]:
    def refuse(*_arguments: object) -> None:
        raise Error(code)

    return refuse


def filling(**values: int) -> Callable[..., None]:
    def fill(_device: object, reference: Any) -> None:
        for name, value in values.items():
            setattr(reference._obj, name, value)

    return fill


def one_gpu(**calls: Callable[..., Any]) -> SimpleNamespace:
    """A pynvml with one H100 PCIe, some of whose calls answer otherwise."""
    usual = {
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlSystemGetDriverVersion": lambda: "580.65.06",
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 13000,
        "nvmlDeviceGetHandleByIndex": lambda index: f"device {index}",
        "nvmlDeviceGetUUID": lambda device: f"uuid of {device}",
        "nvmlDeviceGetName": lambda _device: "NVIDIA H100 PCIe",
        "nvmlDeviceGetMemoryInfo": lambda _device: SimpleNamespace(total=80 << 30),
        "nvmlDeviceGetMigMode": lambda _device: [0, 0],
        "nvmlDeviceGetMaxMigDeviceCount": lambda _device: 7,
        "nvmlDeviceGetMigDeviceHandleByIndex": refusing(pynvml.NVML_ERROR_NOT_FOUND),
        "nvmlDeviceGetGpuFabricInfoV": filling(state=0),
    }
    return SimpleNamespace(**{**vars(pynvml), **usual, **calls})


def test_a_plain_gpu_is_described() -> None:
    driver = read_nvml(one_gpu())
    assert (driver.version, driver.cuda) == ("580.65.06", "13.0")
    assert driver.gpus is not None
    (gpu,) = driver.gpus
    assert (gpu.index, gpu.uuid, gpu.name) == (0, "uuid of device 0", "NVIDIA H100 PCIe")
    assert (gpu.memory_bytes, gpu.mig, gpu.mig_enabled, gpu.error) == (80 << 30, (), False, None)


@pytest.mark.parametrize(("number", "cuda"), [(13000, "13.0"), (12080, "12.8"), (11040, "11.4")])
def test_a_cuda_version_is_a_number(number: int, cuda: str) -> None:
    assert read_nvml(one_gpu(nvmlSystemGetCudaDriverVersion_v2=lambda: number)).cuda == cuda


OLD = refusing(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


@pytest.mark.parametrize(
    ("calls", "state"),
    [
        ({"nvmlDeviceGetGpuFabricInfoV": filling(state=3, status=0)}, "completed"),
        ({"nvmlDeviceGetGpuFabricInfoV": filling(state=3, status=999)}, "failed"),
        ({"nvmlDeviceGetGpuFabricInfoV": filling(state=2, status=999)}, "in progress"),
        ({"nvmlDeviceGetGpuFabricInfoV": filling(state=1)}, "not started"),
        ({"nvmlDeviceGetGpuFabricInfoV": filling(state=0)}, "not supported"),
        ({"nvmlDeviceGetGpuFabricInfoV": filling(state=9)}, None),
        ({"nvmlDeviceGetGpuFabricInfoV": refusing(pynvml.NVML_ERROR_NOT_SUPPORTED)}, "not supported"),
        ({"nvmlDeviceGetGpuFabricInfoV": refusing(pynvml.NVML_ERROR_UNKNOWN)}, None),
        ({"nvmlDeviceGetGpuFabricInfoV": OLD, "nvmlDeviceGetGpuFabricInfo": filling(state=2)}, "in progress"),
        ({"nvmlDeviceGetGpuFabricInfoV": OLD, "nvmlDeviceGetGpuFabricInfo": OLD}, None),
    ],
)
def test_the_fabric_state_has_a_word(calls: dict[str, Callable[..., Any]], state: str | None) -> None:
    gpus = read_nvml(one_gpu(**calls)).gpus
    assert gpus is not None
    assert gpus[0].fabric_state == state


def test_mig_instances_are_found_past_empty_places() -> None:
    def instance(_device: object, place: int) -> str:
        if place not in (1, 5):
            raise Error(pynvml.NVML_ERROR_NOT_FOUND)
        return f"instance {place}"

    gpus = read_nvml(one_gpu(nvmlDeviceGetMigMode=lambda _: [1, 1], nvmlDeviceGetMigDeviceHandleByIndex=instance)).gpus
    assert gpus is not None
    assert (gpus[0].mig_enabled, gpus[0].mig) == (True, ("uuid of instance 1", "uuid of instance 5"))


def test_a_lost_gpu_keeps_its_place() -> None:
    nvml = one_gpu(nvmlDeviceGetHandleByIndex=refusing(pynvml.NVML_ERROR_GPU_IS_LOST))
    gpus = read_nvml(nvml).gpus
    assert gpus is not None
    assert "lost" in (gpus[0].error or "").lower()


def test_the_health_of_a_device_is_read() -> None:
    calls = {
        "nvmlDeviceGetCudaComputeCapability": lambda _device: (9, 0),
        "nvmlDeviceGetTotalEccErrors": lambda _device, kind, counter: 3 if (kind, counter) == (1, 0) else 99,
        "nvmlDeviceGetRemappedRows": lambda _device: [2, 1, 1, 0],  # corrected, uncorrected, pending, failed
        # Idle, capped by its power limit as usual, held down by heat, and by the power supply.
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _device: 0x01 | 0x04 | 0x40 | 0x80,
    }
    gpus = read_nvml(one_gpu(**calls)).gpus
    assert gpus is not None
    gpu = gpus[0]
    assert (gpu.capability, gpu.ecc_uncorrected, gpu.remap_pending, gpu.remap_failed) == ("9.0", 3, True, False)
    assert gpu.throttled == ("too warm", "power brake")


def test_what_a_device_refuses_is_none() -> None:
    refuse = refusing(pynvml.NVML_ERROR_NOT_SUPPORTED)
    names = ("MemoryInfo", "MigMode", "MaxMigDeviceCount", "GpuFabricInfoV", "CudaComputeCapability")
    names += ("TotalEccErrors", "RemappedRows", "CurrentClocksThrottleReasons")
    calls = {f"nvmlDeviceGet{name}": refuse for name in names}
    gpus = read_nvml(one_gpu(**calls, nvmlSystemGetDriverVersion=refuse)).gpus
    assert gpus is not None
    assert (gpus[0].memory_bytes, gpus[0].mig_enabled, gpus[0].mig, gpus[0].error) == (None, None, (), None)
    assert (gpus[0].capability, gpus[0].ecc_uncorrected, gpus[0].remap_failed, gpus[0].throttled) == (None,) * 3 + ((),)


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount"])
def test_an_nvml_that_refuses_gives_nothing(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, call, refusing(pynvml.NVML_ERROR_DRIVER_NOT_LOADED))
    assert ask_nvml() is None


def test_a_failing_shutdown_does_not_take_the_answer_away(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, call in vars(one_gpu(nvmlInit=lambda: None)).items():
        if name.startswith("nvml") and callable(call):
            monkeypatch.setattr(pynvml, name, call)
    monkeypatch.setattr(pynvml, "nvmlShutdown", refusing(pynvml.NVML_ERROR_UNKNOWN))
    driver = ask_nvml()
    assert driver is not None
    assert driver.version == "580.65.06"
