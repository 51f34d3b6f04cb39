"""Compiled variants on disk, named by everything that made them.

An entry is `KEY.json`, what the compiler said, and beside it `KEY.cubin` if there is a cubin. Both
are written to a private file and renamed, the record last; what does not match its checksum is a
miss. `KEY.lock` is locked by the kernel, so the lock of a dead process is free.
"""

import errno
import fcntl
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any
from uuid import uuid4

from tuner.compiler.nvrtc import Compilation
from tuner.compiler.options import OPTIONS
from tuner.compiler.source import TranslationUnit
from tuner.errors import CompileError

FORMAT = "gemm-tuner-cubin/1"
POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Entry:
    """What one compile left: an outcome, and how long it took.

    log: the compiler's own words, from which a verdict is read each time.
    cubin: where the machine code is; None if the compiler refused the source or was too slow.
    timeout_s: the deadline that passed, if one did.
    """

    log: str
    seconds: float
    cubin: Path | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Record:
    """`KEY.json`, without its checksum."""

    format: str
    log: str
    seconds: float
    cubin_sha256: str | None
    timeout_s: float | None


def cache_key(unit: TranslationUnit, nvrtc_version: str) -> str:
    """The hash of all that decides the machine code: the sources, the options, the compiler."""
    content = [FORMAT, nvrtc_version, list(OPTIONS), unit.main, sorted(unit.headers.items())]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


class CubinCache:
    """Entries below one folder, which processes and users may share; made on the first write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, key: str, timeout_s: float) -> Entry | None:
        """The entry of `key`, or None if it is absent, damaged, or only says that a deadline
        shorter than `timeout_s` passed.
        """
        record = _read_record(self._path(key, "json"))
        if record is None:
            return None
        if record.timeout_s is not None:
            known = record.timeout_s >= timeout_s
            return Entry(record.log, record.seconds, None, record.timeout_s) if known else None
        if record.cubin_sha256 is None:
            return Entry(record.log, record.seconds)
        cubin = self._path(key, "cubin")
        try:
            intact = _sha256(cubin.read_bytes()) == record.cubin_sha256
        except OSError:
            return None
        return Entry(record.log, record.seconds, cubin) if intact else None

    def keep(self, key: str, compilation: Compilation, seconds: float) -> Entry:
        """Store what the compiler made, a refusal too.

        Raises: CompileError if the folder cannot be written.
        """
        cubin = None
        digest = None
        if compilation.cubin is not None:
            cubin, digest = self._path(key, "cubin"), _sha256(compilation.cubin)
            self._publish(cubin, compilation.cubin)
        self._record(key, _Record(FORMAT, compilation.log, seconds, digest, None))
        return Entry(compilation.log, seconds, cubin)

    def keep_timeout(self, key: str, timeout_s: float) -> Entry:
        """Store that `timeout_s` was not enough.

        Raises: CompileError if the folder cannot be written.
        """
        self._record(key, _Record(FORMAT, "", timeout_s, None, timeout_s))
        return Entry("", timeout_s, None, timeout_s)

    @contextmanager
    def locked(self, key: str, wait_s: float, stop: threading.Event) -> Iterator[None]:
        """Hold the lock of `key`, so that others wait for this compile and need none of their own.

        Raises: CompileError naming the file if another holds it for `wait_s`, or if `stop` is set
        or the folder cannot be written.
        """
        path = self._path(key, "lock")
        with self._writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            deadline = time.monotonic() + wait_s
            while not self._try_lock(descriptor):
                if stop.wait(POLL_SECONDS):
                    raise CompileError(f"the wait for {path} was given up.")
                if time.monotonic() > deadline:
                    raise CompileError(
                        f"another process has held {path} for {wait_s:g} s. Wait for it, end it, "
                        "or set TUNER_CACHE_DIR to a folder of your own."
                    )
            for leftover in path.parent.glob(f"{key}.*.tmp"):  # of a writer that was killed
                leftover.unlink(missing_ok=True)
            yield
        finally:
            os.close(descriptor)

    def _try_lock(self, descriptor: int) -> bool:
        with self._writing():
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def _record(self, key: str, record: _Record) -> None:
        content = asdict(record)
        text = json.dumps({**content, "checksum": _checksum(content)}, indent=1)
        self._publish(self._path(key, "json"), text.encode())

    def _publish(self, path: Path, content: bytes) -> None:
        """Let `path` hold `content`, all of it or nothing, whatever dies when."""
        private = path.with_name(f"{path.name}.{uuid4().hex}.tmp")
        with self._writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with private.open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                private.replace(path)
            finally:
                with suppress(OSError):
                    private.unlink()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except BlockingIOError:
            raise
        except OSError as error:
            remedy = (
                "Free some space, or set" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "Set"
            )
            raise CompileError(
                f"compiled kernels cannot be kept in {self._folder}: "
                f"{error.strerror or error}. {remedy} TUNER_CACHE_DIR to a folder with room that "
                "you may write to."
            ) from error

    def _path(self, key: str, suffix: str) -> Path:
        return self._folder / key[:2] / f"{key}.{suffix}"


def _read_record(path: Path) -> _Record | None:
    try:
        content = json.loads(path.read_bytes())
        checksum = content.pop("checksum")
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return None
    if content.get("format") != FORMAT or checksum != _checksum(content):
        return None
    return _Record(**{field.name: content[field.name] for field in fields(_Record)})


def _checksum(content: dict[str, Any]) -> str:
    return _sha256(json.dumps(content, sort_keys=True).encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
