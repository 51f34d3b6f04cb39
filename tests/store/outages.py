"""Databases that go away and come back, and rows that must outlive it."""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import event, make_url

from tests.store.examples import DEVICE_KEY, NOON, PROBLEM, measurement
from tuner.store.engine import locate
from tuner.store.repository import Repository
from tuner.trial import Measurement


@contextmanager
def away(url: str) -> Iterator[None]:
    """Nobody can write to the database meanwhile; to Postgres nobody can connect either."""
    path = locate(url).path
    if path:
        with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as hog:
            hog.execute("BEGIN EXCLUSIVE")
            yield
        return
    name = str(make_url(url).database)
    admin_url = make_url(url).set(database="postgres", drivername="postgresql")
    with psycopg.connect(admin_url.render_as_string(False), autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false".encode())
        kill = b"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s"
        admin.execute(kill, [name])
        try:
            yield
        finally:
            admin.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true".encode())


@contextmanager
def full_disk(store: Repository) -> Iterator[None]:
    """SQLite may not make its file larger meanwhile: its own error, as of a disk without room."""
    engine = store._engine

    def limit(connection: Any, record: Any) -> None:
        del record
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")

    event.listen(engine, "connect", limit)
    engine.dispose()
    try:
        yield
    finally:
        event.remove(engine, "connect", limit)
        engine.dispose()


def rows(count: int, worker: str = "w") -> list[Measurement]:
    return [
        measurement(worker=worker, measured_at=NOON + timedelta(seconds=step))
        for step in range(count)
    ]


def stored(store: Repository) -> Counter[str]:
    found = store.attempts(PROBLEM, DEVICE_KEY, sources=["measured"])
    return Counter(f"{row.worker} {row.measured_at}" for row in found)


def expected(*kept: Measurement) -> Counter[str]:
    return Counter(f"{row.worker} {row.measured_at}" for row in kept)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*")) if folder.exists() else []
