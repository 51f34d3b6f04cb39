"""Opening a database: from a URL to a repository at the newest revision."""

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DisconnectionError, SQLAlchemyError

from tuner.errors import StoreError
from tuner.store import schema, sqlite_file
from tuner.store.faults import store_error
from tuner.store.repository import Repository

BUSY_TIMEOUT_S = 30
CONNECT_TIMEOUT_S = 10
POSTGRES = "postgresql+psycopg"


@dataclass(frozen=True, slots=True)
class Location:
    """A database that can be named in a message; `path` only for SQLite."""

    url: URL
    path: Path | None

    def __str__(self) -> str:
        return str(self.path) if self.path else self.url.render_as_string(hide_password=True)


def open_store(url: str, create: bool = True) -> Repository:
    """Open the database and bring it to the newest revision; an empty one gets its tables.

    create: make a missing SQLite file. A SQLite file of an older revision is copied beside itself
    first. Raises: StoreError for a database that is newer, damaged, unreachable, read-only or on
    a network file system; it is then as it was.
    """
    location = locate(url)
    engine, _ = _opened(location, create)
    return Repository(engine, str(location))


def upgrade_store(url: str) -> schema.Revision:
    """Bring the database to the newest revision; returns where it stood. Raises: StoreError."""
    engine, stood = _opened(locate(url), create=True)
    engine.dispose()
    return stood


def locate(url: str) -> Location:
    """Understand a database URL. Raises: StoreError naming the forms there are."""
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, ValueError):
        backend = ""
    if backend == "sqlite":
        if parsed.database in (None, "", ":memory:"):
            raise StoreError(
                "a database in memory keeps nothing; name a file, as in sqlite:///tuner.db."
            )
        if parsed.query:
            raise StoreError("a SQLite URL takes no options; leave out what follows the `?`.")
        path = Path(str(parsed.database)).expanduser()
        return Location(URL.create("sqlite", database=str(path)), path)
    if backend in ("postgresql", "postgres"):
        return Location(parsed.set(drivername=POSTGRES), None)
    raise StoreError(
        "the database URL is not understood; write sqlite:///FILE (four slashes for an absolute "
        "path) or postgresql://USER@HOST/NAME."
    )


def make_engine(location: Location) -> Engine:
    """An engine whose connections may be used from any thread, one transaction at a time."""
    try:
        if location.path:
            engine = create_engine(
                location.url,
                connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False},
            )
            event.listen(engine, "connect", _prepare_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
        else:
            engine = create_engine(
                location.url,
                pool_pre_ping=True,
                connect_args={"connect_timeout": CONNECT_TIMEOUT_S},
            )
    except ModuleNotFoundError as error:
        raise StoreError(
            f"Postgres needs the package {error.name}; install gemm-tuner[postgres]."
        ) from None
    _keep_to_one_process(engine)
    return engine


def _opened(location: Location, create: bool) -> tuple[Engine, schema.Revision]:
    if location.path:
        sqlite_file.require_usable(location.path, create)
    engine = make_engine(location)
    try:
        return engine, upgrade(engine, location)
    except BaseException:
        engine.dispose()
        raise


def upgrade(
    engine: Engine, location: Location, scripts: Path = schema.MIGRATIONS
) -> schema.Revision:
    """As `upgrade_store`, with the revisions in `scripts`."""

    def copy(current: str) -> None:
        try:
            if location.path:
                sqlite_file.back_up(location.path, f"schema-{current}")
        except (OSError, sqlite3.Error) as error:
            raise StoreError(
                f"{location} was not upgraded, because no copy of it could be made ({error}). Free "
                "some space beside it."
            ) from error

    try:
        with engine.connect() as connection:
            stood = schema.revision(connection, str(location), scripts)
        if location.path:
            _use_write_ahead_log(engine, location)
        if stood.is_head:
            return stood
        with engine.connect().execution_options(writes=True) as connection, connection.begin():
            return schema.upgrade(connection, str(location), copy, scripts)
    except SQLAlchemyError as error:
        raise store_error(str(location), error) from error


def _use_write_ahead_log(engine: Engine, location: Location) -> None:
    """Let readers and the one writer never wait for each other; the file remembers the mode."""
    raw = engine.raw_connection()
    deadline = monotonic() + BUSY_TIMEOUT_S
    try:
        # The change needs the file for itself, and SQLite does not always wait for that.
        while True:
            try:
                raw.cursor().execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.Error as error:
                if "locked" not in str(error) or monotonic() > deadline:
                    raise store_error(str(location), error) from error
                sleep(0.05)
    finally:
        raw.close()


def _prepare_sqlite(connection: Any, record: Any) -> None:
    del record
    # The driver must not begin transactions by itself: `_begin_sqlite` says which kind.
    connection.isolation_level = None
    connection.execute("PRAGMA synchronous = NORMAL")


def _begin_sqlite(connection: Connection) -> None:
    # A writer that began as a reader could not wait for the lock: it would fail at once.
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _keep_to_one_process(engine: Engine) -> None:
    """Give a forked child connections of its own; two processes cannot share a socket."""

    def made(connection: Any, record: Any) -> None:
        del connection
        record.info["pid"] = os.getpid()

    def taken(connection: Any, record: Any, proxy: Any) -> None:
        del connection
        if record.info["pid"] != os.getpid():
            record.dbapi_connection = proxy.dbapi_connection = None
            raise DisconnectionError("the connection belongs to the parent process")

    event.listen(engine, "connect", made)
    event.listen(engine, "checkout", taken)
