"""A Hopper GPU as a `Device`. Importing this needs no GPU and no CUDA package; opening one does."""

from typing import TYPE_CHECKING

from tuner.device.cuda.enumerate import cuda_device, cuda_devices
from tuner.errors import DeviceError

if TYPE_CHECKING:
    from tuner.device.cuda.device import CudaDevice

__all__ = ["cuda_device", "cuda_devices", "open_cuda"]


def open_cuda(index: int = 0) -> "CudaDevice":
    """The GPU at `index`.

    Raises: DeviceError if there is no such GPU, it is not of compute capability 9.0, or the
    packages that drive it are missing.
    """
    try:
        from tuner.device.cuda.device import CudaDevice
    except ImportError as missing:
        raise DeviceError(
            f"the packages that drive a GPU are not complete ({missing}); install "
            "gemm-tuner[worker]."
        ) from missing
    return CudaDevice(index)
