"""The store as the service sees it: opened at the first request, and again after a failure."""

from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Annotated

from fastapi import Depends, Request

from tuner.api.problem_details import ApiError, shown
from tuner.errors import StoreError
from tuner.hardware import device_class
from tuner.store.engine import locate, open_store
from tuner.store.repository import Repository, StoredDevice

RETRY_S = 1.0
"""How long a failed opening speaks for those who wait behind it, and for how long it is final."""


class StoreHandle:
    """Holds one open store for all requests.

    A store that was there once and is gone is a failure, not an empty store: only the first
    opening may create it.

    Opening takes seconds where a database does not answer. `_opening` is held meanwhile and lets
    one request try for all; `_lock` guards what is known, and is never held while waiting.
    """

    def __init__(self, database_url: str) -> None:
        self._url = database_url
        self._opening = Lock()
        self._lock = Lock()
        self._repository: Repository | None = None
        self._path: Path | None = None
        self._file: tuple[int, int] | None = None
        self._seen = False
        self._failure: tuple[float, StoreError] | None = None

    def repository(self) -> Repository:
        """Raises: StoreError if the store cannot be used."""
        if found := self._current():
            return found
        with self._opening:
            # Another request may have opened it while this one waited.
            return self._current() or self._open()

    def forget(self) -> None:
        """Open the store anew at the next request."""
        with self._lock:
            dropped, self._repository = self._repository, None
        if dropped is not None:
            dropped.close()

    def _current(self) -> Repository | None:
        """The open store; None if there is none, or its file is no longer the one opened."""
        with self._lock:
            if self._repository is None or self._file == self._file_now():
                return self._repository
        # SQLite would go on reading the deleted file, and nobody would notice.
        self.forget()
        return None

    def _open(self) -> Repository:
        if self._failure and monotonic() - self._failure[0] < RETRY_S:
            raise StoreError(str(self._failure[1]))
        try:
            opened = open_store(self._url, create=not self._seen)
        except StoreError as error:
            self._failure = (monotonic(), error)
            raise
        with self._lock:
            self._path = locate(self._url).path
            self._repository, self._file = opened, self._file_now()
            self._failure, self._seen = None, True
        return opened

    def _file_now(self) -> tuple[int, int] | None:
        """Which file the database is; None for a server, and while there is none."""
        try:
            found = self._path.stat() if self._path else None
        except OSError:
            return None
        return (found.st_dev, found.st_ino) if found else None


def repository(request: Request) -> Repository:
    handle: StoreHandle = request.app.state.store
    return handle.repository()


RepositoryDep = Annotated[Repository, Depends(repository)]


def choose_device(
    stored: Sequence[StoredDevice], key: str | None, *, or_like: bool = False
) -> StoredDevice | None:
    """The device named by `key`, or the only one; None if nothing is stored and none is named.

    or_like: the key of a Hopper part of which nothing is stored will do as well.
    Raises: ApiError, 404 for a key that is not stored and 400 if one has to be named.
    """
    listing = [{"key": d.key, "name": d.name} for d in stored]
    keys = ", ".join(f"{d.key} ({d.name})" for d in stored) or "none"
    if key is not None:
        for device in stored:
            if device.key == key:
                return device
        told = device_class(key)
        if or_like and told and told.is_hopper:
            return StoredDevice(key, key, told.sms, 0)
        detail = f"No device has the key {shown(key)}. Stored devices: {keys}."
        raise ApiError(HTTPStatus.NOT_FOUND, detail, state="unknown_device", devices=listing)
    if len(stored) > 1:
        detail = f"Several devices are stored; name one with device=KEY: {keys}."
        raise ApiError(HTTPStatus.BAD_REQUEST, detail, devices=listing)
    return stored[0] if stored else None
