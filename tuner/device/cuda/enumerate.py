"""Which GPUs there are, without touching one: NVML needs no CUDA context."""

from typing import Any

from tuner.errors import DeviceError
from tuner.hardware import DeviceIdentity


def cuda_devices() -> list[DeviceIdentity]:
    """Every NVIDIA GPU that NVML lists, in its order.

    `sms`, `l2_bytes` and `cublas_version` are left at 0 and empty: NVML does not know them.
    Raises: DeviceError if there is no NVIDIA driver or the Python packages are missing.
    """
    try:
        import pynvml
    except ImportError as missing:
        raise DeviceError(
            "the packages that drive a GPU are not installed; install gemm-tuner[worker]."
        ) from missing
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise DeviceError(f"no NVIDIA driver answers here ({error}).") from error
    try:
        return [_identity(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def _identity(nvml: Any, index: int) -> DeviceIdentity:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return DeviceIdentity(
        name=nvml.nvmlDeviceGetName(handle),
        compute_capability=tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle)),
        sms=0,
        memory_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).total,
        uuid=nvml.nvmlDeviceGetUUID(handle),
        driver=nvml.nvmlSystemGetDriverVersion(),
    )
