"""A GPU in a process of its own that does what a `Device` does, and whatever else it is handed.

What is handed over is a callable that can be pickled; it runs in the child, on that device's tools,
and its answer comes back. The parent keeps the deadline, as it does for every call of a device: a
child that overruns it is killed, which is how a hang is found, and the next call starts another.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tuner.device.cuda.enumerate import cuda_device, other_processes
from tuner.device.lock import device_lock
from tuner.device.process import DeviceProcess
from tuner.device.protocol import Device

if TYPE_CHECKING:
    from tuner.device.cuda.workbench import Tools

Answer = TypeVar("Answer")


class Laboratory(DeviceProcess):
    """A device process that also does the work it is handed."""

    def ask(self, work: "Callable[[Tools], Answer]", deadline_s: float) -> Answer:
        """What `work` returns, called in the child; nothing of it stays on the device.

        Raises: DeviceTimeout if it takes longer, DeviceCrashed if the child or its context died;
        the child, and what was prepared there, is gone then.
        """
        return cast(Answer, self._call("ask", deadline_s, work))  # type: ignore[arg-type]


@contextmanager
def laboratory(index: int) -> Iterator[Laboratory]:
    """The GPU `cuda:index`, locked against other tuners of this user for as long as it is open.

    Raises: DeviceUnavailable if another tuner has it; DeviceError if it is not there.
    """
    identity = cuda_device(index)
    with device_lock(identity.uuid):
        if others := other_processes(identity.uuid):
            print(f"other processes use {identity.name}: {others}", file=sys.stderr, flush=True)
        with Laboratory(partial(open_tooled, index)) as opened:
            yield opened


def open_tooled(index: int) -> Device:
    """The GPU at `index`, for the child: a device that lends its tools."""
    import cupy

    from tuner.device.cuda.device import CudaDevice

    class Tooled(CudaDevice):
        def ask(self, work: "Callable[[Tools], Any]") -> Any:
            answer = work(self._tools)
            cupy.cuda.runtime.deviceSynchronize()
            cupy.get_default_memory_pool().free_all_blocks()
            return answer

    return Tooled(index)
