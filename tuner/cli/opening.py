"""Opens what tuning works with: a device, and the compiler that serves it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.cli import console
from tuner.cli.devices import Cuda, Replay, UnknownDevice, parse_device
from tuner.compiler.pool import CompilePool
from tuner.device.cuda import cuda_device
from tuner.device.cuda.exclusive import exclusive
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

    Raises: DeviceError if the device cannot be opened, or another tuner has it; CompileError if
    there is no compiler.
    """
    if isinstance(where, Replay):
        recording = Recording.load(where.recording)
        replayed = ReplayDevice(recording, realtime)
        yield Opened(replayed, RecordedCompiler(replayed), "replay", replayed)
        return
    with exclusive(where.index, _warn) as device, CompilePool(cache_dir, jobs) as pool:
        yield Opened(device, pool, "measured")


def stored_key(name: str) -> str:
    """The key that rows of `cuda:N` or `replay` are stored under; another name as it is.

    Touches no GPU, so that it can be asked while one is measured on.
    Raises: DeviceError if there is no such device.
    """
    try:
        where = parse_device(name)
    except UnknownDevice:
        return name
    if isinstance(where, Replay):
        return Recording.load(where.recording).device.key
    return cuda_device(where.index).key


def _warn(sentence: str) -> None:
    console.stderr().print(f"Warning: {sentence}", markup=False, soft_wrap=True)
