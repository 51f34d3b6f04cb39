"""Opens what tuning works with: a device, and the compiler that serves it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.cli.devices import Cuda, Replay, UnknownDevice, parse_device
from tuner.compiler.pool import CompilePool
from tuner.device.lock import device_lock
from tuner.device.process import DeviceProcess
from tuner.device.protocol import Device, Menu
from tuner.device.replay import RecordedCompiler, Recording, ReplayDevice
from tuner.trial import Source

if TYPE_CHECKING:
    from tuner.study import Compiler


@dataclass(frozen=True, slots=True)
class Opened:
    """`menu`: the device again where it can only answer for recorded configs."""

    device: Device
    compiler: "Compiler"
    source: Source
    menu: Menu | None = None


@contextmanager
def opened(
    where: Cuda | Replay, cache_dir: Path, jobs: int | None = None, realtime: bool = False
) -> Iterator[Opened]:
    """Closed at the end, with the processes that belong to it.

    Raises: DeviceError if the device cannot be opened; CompileError if there is no compiler.
    """
    if isinstance(where, Replay):
        recording = Recording.load(where.recording)
        replayed = ReplayDevice(recording, realtime)
        yield Opened(replayed, RecordedCompiler(replayed), "replay", replayed)
        return
    with (
        CompilePool(cache_dir, jobs) as pool,
        _gpu(where) as device,
        device_lock(cache_dir, device.identify().uuid),
    ):
        yield Opened(device, pool, "measured")


def stored_key(name: str) -> str:
    """The key that rows of `cuda:N` or `replay` are stored under; another name as it is.

    Raises: DeviceError if the device cannot be opened.
    """
    try:
        where = parse_device(name)
    except UnknownDevice:
        return name
    if isinstance(where, Replay):
        return Recording.load(where.recording).device.key
    with _gpu(where) as device:
        return device.identify().key


def _gpu(where: Cuda) -> DeviceProcess:
    # Loads CuPy, which replay does without.
    from tuner.device.cuda import open_cuda

    return DeviceProcess(partial(open_cuda, where.index))
