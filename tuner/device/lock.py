"""One tuner per GPU: two of them would measure each other."""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tuner.errors import DeviceUnavailable


def lock_folder() -> Path:
    """Where this user's locks are, for every process on the machine.

    Fixed: neither TUNER_CACHE_DIR nor TMPDIR may part two runs on one GPU.
    """
    return Path(f"/tmp/gemm-tuner-{os.getuid()}")


@contextmanager
def device_lock(uuid: str, folder: Path | None = None) -> Iterator[Path]:
    """Hold the GPU `uuid` for as long as the block runs; yields the lock's file.

    The operating system frees the lock when its holder dies, however it dies, so a file left
    behind locks nothing.
    Raises: DeviceUnavailable at once, naming the holder, if another process has it.
    """
    folder = folder or lock_folder()
    path = folder / f"gpu-{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}.lock"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        # Anybody may make a folder of that name; a link in it could lead anywhere.
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            raise DeviceUnavailable(
                f"the folder for locks, {folder}, is not yours; have its owner remove it."
            )
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise DeviceUnavailable(
            f"the lock {path} cannot be made ({error.strerror}); make {folder} a folder that you "
            "can write."
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
