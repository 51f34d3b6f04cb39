"""Devices by the names that `--device` takes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import DeviceError, DeviceUnavailable, TunerError

if TYPE_CHECKING:
    from tuner.store.repository import StoredDevice

DEFAULT_RECORDING = "h200"
WAYS_ON = (
    "Use `--device replay` to play recorded measurements through the same search and store, or "
    "run this on a machine with an H100 or H200 and gemm-tuner[worker]."
)


class UnknownDevice(TunerError):
    """A device name that is not understood, or names nothing that is stored."""


@dataclass(frozen=True, slots=True)
class Cuda:
    """A GPU of this machine."""

    index: int


@dataclass(frozen=True, slots=True)
class Replay:
    """Recorded measurements: a name of those that are shipped, or a file."""

    recording: str | Path


def parse_device(name: str) -> Cuda | Replay:
    """Raises: UnknownDevice naming the forms there are."""
    if found := re.fullmatch(r"cuda(?::([0-9]{1,4}))?", name):
        return Cuda(int(found[1] or 0))
    if found := re.fullmatch(r"replay(?::(.+))?", name):
        return Replay(_recording(found[1] or DEFAULT_RECORDING))
    raise UnknownDevice(
        f"{name!a} is not a device; use cuda:N for a GPU, or replay, replay:NAME or replay:FILE "
        "for recorded measurements."
    )


def _recording(named: str) -> str | Path:
    return Path(named) if "/" in named or named.endswith(".gz") else named


def choose_device(name: str | None) -> Cuda | Replay:
    """The device named, or the first GPU.

    Raises: UnknownDevice; DeviceUnavailable, naming both ways on, if there is no GPU.
    """
    if name is not None:
        return parse_device(name)
    if reason := why_no_gpu():
        raise DeviceUnavailable(f"no usable GPU: {reason} {WAYS_ON}")
    return Cuda(0)


def why_no_gpu() -> str | None:
    """A sentence, or None if a GPU answers."""
    try:
        from tuner.device.cuda import cuda_devices

        if not cuda_devices():
            return "the NVIDIA driver lists none."
    except ImportError as missing:
        return f"the package {missing.name}, which drives one, is not installed."
    except TunerError as error:
        return str(error)
    return None


def cuda_count() -> int:
    """GPUs that CUDA shows to this process: `cuda:N` counts among these, and not among all that
    NVML lists, of which CUDA_VISIBLE_DEVICES may hide some. Makes no context.

    Raises: DeviceError if CUDA cannot say.
    """
    from cuda.bindings import driver

    from tuner.device.cuda.driver import check

    try:
        begun = driver.cuInit(0)
    except RuntimeError as error:  # there is no libcuda
        raise DeviceError(f"CUDA cannot be used ({error}).") from error
    if begun[0] == driver.CUresult.CUDA_ERROR_NO_DEVICE:
        return 0
    check(begun)
    return int(check(driver.cuDeviceGetCount()))


def resolve_stored(stored: "Sequence[StoredDevice]", name: str | None) -> "StoredDevice":
    """The stored device that `name` means, or the only one.

    Raises: UnknownDevice listing what is stored.
    """
    listing = ", ".join(f"{device.key} ({device.name})" for device in stored) or "none"
    if name is None:
        if len(stored) == 1:
            return stored[0]
        if not stored:
            raise UnknownDevice("nothing is stored yet. Tune a shape with `tuner run`.")
        raise UnknownDevice(f"several devices are stored; name one with --device: {listing}.")
    named = [d for d in stored if name == d.key or _plain(name) == _plain(d.name)]
    if len(named) == 1:
        return named[0]
    raise UnknownDevice(f"nothing is stored for the device {name!a}. Stored devices: {listing}.")


def _plain(name: str) -> str:
    """A name as people write it: case, blanks and underscores do not matter."""
    return " ".join(name.replace("_", " ").casefold().split())
