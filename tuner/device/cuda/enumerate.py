"""Which GPUs there are, and what else runs on them, without a CUDA context on any.

CUDA and NVML number GPUs differently, and CUDA_VISIBLE_DEVICES renumbers and hides them for CUDA
alone. `cuda:N` is CUDA's number, so CUDA is asked for its place on the bus, and NVML for the rest.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tuner.errors import DeviceError
from tuner.hardware import DeviceIdentity

_BUS_ID_BYTES = 16
"""Of `0000:17:00.0`, with room to spare."""


def cuda_devices() -> list[DeviceIdentity]:
    """Every NVIDIA GPU that NVML lists, in its order, whether CUDA may use it or not.

    `sms`, `l2_bytes` and `cublas_version` are left at 0 and empty: NVML does not know them.
    Raises: DeviceError if there is no NVIDIA driver or the Python packages are missing.
    """
    with _nvml() as nvml:
        handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
        return [_identity(nvml, handle) for handle in handles]


def cuda_device(index: int) -> DeviceIdentity:
    """The GPU that is `cuda:index`; `cublas_version` is left empty.

    Raises: DeviceError if there is no such GPU, no driver, or the Python packages are missing.
    """
    driver = _cuda_driver()
    count = _value(driver.cuDeviceGetCount())
    if index >= count:
        raise DeviceError(f"there is no GPU {index}; CUDA shows {count}.")
    device = _value(driver.cuDeviceGet(index))
    attribute = driver.CUdevice_attribute

    def ask(name: str) -> int:
        named = getattr(attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(_value(driver.cuDeviceGetAttribute(named, device)))

    bus_id = _value(driver.cuDeviceGetPCIBusId(_BUS_ID_BYTES, device)).rstrip(b"\0").decode()
    with _nvml() as nvml:
        return _identity(
            nvml,
            nvml.nvmlDeviceGetHandleByPciBusId(bus_id),
            sms=ask("MULTIPROCESSOR_COUNT"),
            l2_bytes=ask("L2_CACHE_SIZE"),
        )


def other_processes(uuid: str) -> list[int]:
    """Processes that have a context on the GPU `uuid`, this one excepted.

    Empty as well where NVML does not tell, as it need not to everybody.
    """
    try:
        with _nvml() as nvml:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except DeviceError:
        return []
    return sorted(p.pid for p in running if p.pid != os.getpid())


@contextmanager
def _nvml() -> Iterator[Any]:
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
        yield pynvml
    except pynvml.NVMLError as error:
        raise DeviceError(
            f"the NVIDIA driver cannot tell about the GPUs here ({error})."
        ) from error
    finally:
        pynvml.nvmlShutdown()


def _cuda_driver() -> Any:
    try:
        from cuda.bindings import driver

        _value(driver.cuInit(0))
    except ImportError as missing:
        raise DeviceError(
            "the packages that drive a GPU are not installed; install gemm-tuner[worker]."
        ) from missing
    except RuntimeError as error:  # there is no libcuda
        raise DeviceError(f"no NVIDIA driver answers here ({error}).") from error
    return driver


def _value(answer: tuple[Any, ...]) -> Any:
    """What the driver answered.

    Raises: DeviceError naming the status if it refused; without a context nothing can have broken.
    """
    status, *values = answer
    if int(status) != 0:
        raise DeviceError(f"no usable NVIDIA GPU here ({status.name}).")
    return values[0] if values else None


def _identity(nvml: Any, handle: Any, sms: int = 0, l2_bytes: int = 0) -> DeviceIdentity:
    return DeviceIdentity(
        name=nvml.nvmlDeviceGetName(handle),
        compute_capability=tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle)),
        sms=sms,
        memory_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).total,
        uuid=nvml.nvmlDeviceGetUUID(handle),
        driver=nvml.nvmlSystemGetDriverVersion(),
        l2_bytes=l2_bytes,
    )
