"""Databases that go away and come back."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
from sqlalchemy import event, make_url

from tuner.store.engine import locate
from tuner.store.repository import Repository


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
