"""A Hopper GPU as a `Device`. Importing this starts no CUDA; `open_cuda` does."""

from tuner.device.cuda.device import CudaDevice
from tuner.device.cuda.enumerate import cuda_devices

__all__ = ["CudaDevice", "cuda_devices", "open_cuda"]


def open_cuda(index: int = 0) -> CudaDevice:
    """The GPU at `index`.

    Raises: DeviceError if there is no such GPU, or it is not of compute capability 9.0.
    """
    return CudaDevice(index)
