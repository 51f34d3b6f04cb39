"""One tuner per GPU: two of them would measure each other."""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tuner.errors import DeviceUnavailable


@contextmanager
def device_lock(cache_dir: Path, uuid: str) -> Iterator[Path]:
    """Hold the GPU `uuid` for as long as the block runs; yields the lock's file.

    The operating system frees the lock when its holder dies, however it dies, so a file left
    behind locks nothing.
    Raises: DeviceUnavailable at once, naming the holder, if another process has it.
    """
    folder = cache_dir / "locks"
    path = folder / f"gpu-{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise DeviceUnavailable(
            f"the lock {path} cannot be made ({error.strerror}); set TUNER_CACHE_DIR to a folder "
            "that can be written."
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
            raise DeviceUnavailable(
                f"GPU {uuid} is in use by the tuner process {holder or 'unknown'}, which holds "
                f"{path}; wait for it to end or choose another --device."
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield path
    finally:
        os.close(descriptor)
