"""A GPU of one's own: locked before anything touches it, in a process that may be killed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from tuner.device.cuda import open_cuda
from tuner.device.cuda.enumerate import cuda_device, other_processes
from tuner.device.lock import device_lock
from tuner.device.process import DeviceProcess


@contextmanager
def exclusive(index: int, warn: Callable[[str], None]) -> Iterator[DeviceProcess]:
    """The GPU `cuda:index`, from which other tuners of this user are kept away meanwhile.

    The lock comes first: a context and library handles alone disturb what another process times.
    warn: told, in a sentence, of other processes that compute there; these cannot be kept away.
    Raises: DeviceUnavailable, naming the holder, if a tuner has it; DeviceError if it is not there.
    """
    identity = cuda_device(index)
    with device_lock(identity.uuid):
        if others := other_processes(identity.uuid):
            listed = ", ".join(map(str, others))
            warn(
                f"other processes use {identity.name} {identity.uuid} ({listed}); times measured "
                "beside them are not to be trusted."
            )
        with DeviceProcess(partial(open_cuda, index)) as device:
            yield device
