"""Snapshots that this machine has already fetched, and when it last asked for one.

A snapshot is a file named by its id, so that writers cannot take each other's place. Everything is
written beside its name and renamed. What cannot be read is not there.
"""

from __future__ import annotations

import json
import os
import zlib
from _thread import get_ident
from contextlib import contextmanager, suppress

from tuner.client.told import Told, Unreadable, packed, unpacked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ENDING = ".lines.gz"
ID_DIGITS = 64
KEPT = 8
"""Snapshots that are kept, those written last."""


class Asked:
    """What came of asking a server. id: of the last snapshot it gave, if there ever was one.

    at: in seconds since 1970. problem: why it gave none this time; empty if it did.
    """

    __slots__ = ("at", "id", "problem")

    def __init__(self, at: float, id: str | None, problem: str = "") -> None:
        self.at, self.id, self.problem = at, id, problem


class Cache:
    """folders: where to look, in order; the first that can be written is written to."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = folders
        self._writable: str | None = None
        self._sought = False

    def snapshot(self, id: str) -> Told | None:
        """The snapshot of an id, checked if a whole check has succeeded; None if there is none."""
        if not is_id(id):
            return None
        for folder in self._usable():
            try:
                lines = unpacked(_read(_file(folder, id)))
                told = Told.from_lines(lines, os.path.exists(_mark(folder, id)))  # noqa: PTH110
            except (OSError, Unreadable):
                continue
            return told
        return None

    def keep(self, id: str, told: Told) -> None:
        """Write a snapshot; where nothing can be written, nothing is."""
        if folder := self.writable():
            # One that holds what cannot be written down again is used all the same.
            with suppress(OSError, AttributeError, KeyError, TypeError, ValueError):
                _write(_file(folder, id), packed(told.lines()))
                if told.checked:
                    _write(_mark(folder, id), b"")
                _prune(folder, id)

    def asked(self, url: str, device: str | None) -> Asked | None:
        """What came of asking a server about a device, the last time this machine did."""
        for folder in self._usable():
            with suppress(OSError, KeyError, TypeError, ValueError, RecursionError):
                read = json.loads(_read(_note(folder, url, device)))
                if (read["url"], read["device"]) != (url, device):
                    continue
                id = read["id"]
                known = id if id and is_id(id) else None
                return Asked(float(read["at"]), known, str(read["problem"]))
        return None

    def note(self, url: str, device: str | None, asked: Asked) -> None:
        if folder := self.writable():
            about = {"url": url, "device": device}
            told = {**about, "at": asked.at, "id": asked.id, "problem": asked.problem}
            with suppress(OSError):
                _write(_note(folder, url, device), json.dumps(told).encode())

    def missing(self, text: str) -> str | None:
        """Write a shape file for `tuner run`; its path, or None if there is no place for it."""
        folder = self.writable()
        if folder is None:
            return None
        path = os.path.join(folder, f"missing-{zlib.crc32(text.encode()):08x}.txt")  # noqa: PTH118
        try:
            _write(path, text.encode())
        except OSError:
            return None
        return path

    @contextmanager
    def lock(self, url: str, device: str | None) -> Iterator[None]:
        """One process of the machine at a time; waits. It is free again when its owner dies."""
        folder = self.writable()
        if folder is None:
            yield
            return
        from fcntl import LOCK_EX, lockf

        descriptor = -1
        # Where there are no locks each process asks for itself.
        with suppress(OSError):
            name = f"{_note(folder, url, device)}.lock"
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
            # Not flock: a child that is forked meanwhile would own that as well.
            lockf(descriptor, LOCK_EX)
        try:
            yield
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def writable(self) -> str | None:
        """The folder that is written to, made if need be; None if no folder can be."""
        if not self._sought:
            self._writable = next(filter(_made, self._folders), None)
            self._sought = True
        return self._writable

    def _usable(self) -> list[str]:
        return [folder for folder in self._folders if _own(folder)]


def is_id(id: object) -> bool:
    """Whether it is the whole id of a generation."""
    return isinstance(id, str) and len(id) == ID_DIGITS and all(c in "0123456789abcdef" for c in id)


def _made(folder: str) -> bool:
    try:
        os.makedirs(folder, 0o700, exist_ok=True)  # noqa: PTH103
    except OSError:
        return False
    return _own(folder) and os.access(folder, os.W_OK | os.X_OK)


def _own(folder: str) -> bool:
    """Whether nobody else can have put files there, as anybody could in a folder for all."""
    try:
        for path in (folder, os.path.dirname(folder)):  # noqa: PTH120
            found = os.stat(path)  # noqa: PTH116
            if found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o002:
                return False
    except OSError:
        return False
    return True


def _file(folder: str, id: str) -> str:
    return os.path.join(folder, f"{id}{ENDING}")  # noqa: PTH118


def _mark(folder: str, id: str) -> str:
    """Tells that this version has checked a snapshot; another may have other rules."""
    from tuner import __version__

    return os.path.join(folder, f"{id}.checked-{__version__}")  # noqa: PTH118


def _note(folder: str, url: str, device: str | None) -> str:
    name = zlib.crc32(f"{url} {device}".encode())
    return os.path.join(folder, f"asked-{name:08x}.json")  # noqa: PTH118


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123  # pathlib is slow to import
        return file.read()


def _write(path: str, content: bytes) -> None:
    """The whole file, or what was there before. Raises: OSError."""
    beside = f"{path}.{os.getpid()}-{get_ident()}.new"
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:  # noqa: PTH123
            file.write(content)
        os.replace(beside, path)  # noqa: PTH105
    finally:
        with suppress(OSError):
            os.unlink(beside)  # noqa: PTH108


def _prune(folder: str, id: str) -> None:
    """Remove all but the snapshots that were written last, and what writers that died left."""
    found = []
    for file in os.scandir(folder):
        if file.name.endswith((ENDING, ".new")) and not file.name.startswith(id):
            found.append((file.stat().st_mtime, file.name))
    for _, name in sorted(found)[: -(KEPT - 1)]:
        for beside in (name, *_marks(folder, name)):
            with suppress(OSError):
                os.unlink(os.path.join(folder, beside))  # noqa: PTH108, PTH118


def _marks(folder: str, name: str) -> list[str]:
    id = name[:ID_DIGITS]
    return [file for file in os.listdir(folder) if file.startswith(f"{id}.checked-")]  # noqa: PTH208
