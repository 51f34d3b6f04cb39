"""What can be wrong with a SQLite file, found before anything is written to it."""

import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from tuner.errors import StoreError

HEADER = b"SQLite format 3\x00"
NETWORK_FILE_SYSTEMS = frozenset(
    {"afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.sshfs", "gpfs", "lustre"}
    | {"ncpfs", "nfs", "nfs4", "smb3", "smbfs"}
)
QUICK_CHECK_LIMIT_BYTES = 32 * 2**20
"""Reading every page takes about a second per 400 MiB; beyond this it is left to `db check`."""
MOUNTS = Path("/proc/self/mounts")


def require_usable(path: Path, create: bool) -> None:
    """Make the folder if `create`; change nothing else.

    Raises: StoreError for a folder, a missing or unwritable file, a file that is no database or
    a damaged one, and for a network file system, on which SQLite's locks do not hold.
    """
    if path.is_dir():
        raise StoreError(f"{path} is a folder; name a file in it, such as {path / 'tuner.db'}.")
    if not path.exists():
        if not create:
            raise StoreError(f"there is no database at {path}; `tuner run` makes one.")
        _make_folder(path.parent)
    if kind := network_file_system(path):
        raise StoreError(
            f"{path} is on a network file system ({kind}), where SQLite's locks do not hold. Name "
            "a local file, or use Postgres for several machines."
        )
    for place in (path.parent, path):
        if place.exists() and not os.access(place, os.W_OK):
            raise StoreError(
                f"{place} is read-only, and the database {path} needs to write there. Change its "
                "permissions or name another file."
            )
    if path.exists() and path.stat().st_size:
        _require_intact(path)


def network_file_system(path: Path, mounts: str | None = None) -> str | None:
    """The kind of network file system that `path` is on, or None for a local one."""
    if mounts is None:
        try:
            mounts = MOUNTS.read_text(errors="replace")
        except OSError:
            return None
    resolved = path.resolve()
    points = (line.split() for line in mounts.splitlines())
    holding = [
        (len(fields[1]), fields[2])
        for fields in points
        if len(fields) > 2 and resolved.is_relative_to(_unescaped(fields[1]))
    ]
    kind = max(holding, default=(0, ""))[1]
    return kind if kind in NETWORK_FILE_SYSTEMS else None


def faults(path: Path) -> list[str]:
    """What SQLite finds wrong in any page of the file; empty if it is intact."""
    try:
        with closing(_read_only(path)) as connection:
            found = connection.execute("PRAGMA quick_check(5)").fetchall()
    except sqlite3.DatabaseError as error:
        return [str(error)]
    lines = [line for (text,) in found for line in text.splitlines()]
    return [line for line in lines if line != "ok" and not line.startswith("***")]


def back_up(path: Path, label: str) -> Path:
    """Copy the database, its write-ahead log included, to a new file beside it."""
    names = (f"{path.name}.{label}{suffix}.backup" for suffix in ("", *_counted()))
    target = next(path.with_name(name) for name in names if not path.with_name(name).exists())
    with closing(_read_only(path)) as source, closing(sqlite3.connect(target)) as copy:
        source.backup(copy)
    return target


def _counted() -> Iterable[str]:
    return (f"-{number}" for number in range(2, 1000))


def _require_intact(path: Path) -> None:
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be read: {error.strerror}. Check its permissions."
        ) from None
    if not header.startswith(HEADER):
        raise StoreError(
            f"{path} is not a SQLite database; it was left as it is. Name another file."
        )
    small = path.stat().st_size <= QUICK_CHECK_LIMIT_BYTES
    if found := faults(path) if small else _cut_off(path, header):
        raise StoreError(
            f"the database {path} is damaged ({found[0]}); it was left as it is. Restore a copy, "
            f"or save what can be read with `sqlite3 {path} .recover`."
        )


def _cut_off(path: Path, header: bytes) -> list[str]:
    """SQLite, "Database File Format": bytes 16 to 17 size of a page, 28 to 31 how many there are.

    A write-ahead log may hold what the file does not yet.
    """
    log = path.with_name(path.name + "-wal")
    page_bytes = int.from_bytes(header[16:18], "big")
    need = int.from_bytes(header[28:32], "big") * (65536 if page_bytes == 1 else page_bytes)
    size = path.stat().st_size
    if size >= need or (log.exists() and log.stat().st_size):
        return []
    return [f"{size} of its {need} bytes are there"]


def _read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro", uri=True, timeout=30)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"the folder {folder} for the database cannot be made: {error.strerror}. Name another."
        ) from None


def _unescaped(mount_point: str) -> str:
    return mount_point.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
