from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from shutil import copy

import pytest

from tests.databases import Databases, SqliteFiles, empty
from tests.store.examples import NOON, measurement
from tests.store.exported import COUNT
from tuner.store.engine import open_store
from tuner.store.exports import export_lines, export_sqlite
from tuner.store.repository import Repository
from tuner.store.source import opened_source


@pytest.fixture
def store(database_url: str) -> Iterator[Repository]:
    """A store without a row; the test runs once for each kind of database."""
    with open_store(database_url) as repository:
        yield repository


@pytest.fixture
def new_database(databases: Databases) -> Callable[[], str]:
    """Gives the URL of another database without a row at each call; runs once for each kind."""
    return lambda: empty(databases)


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory, sqlite_masters: Path) -> Path:
    """Both kinds of export of a database of COUNT screenings; nobody changes them."""
    folder = tmp_path_factory.mktemp("exports")
    original = empty(SqliteFiles(folder, sqlite_masters))
    with open_store(original) as store:
        store.add([measurement(measured_at=NOON + timedelta(seconds=n)) for n in range(COUNT)])
    with opened_source(original) as source:
        export_lines(source, folder / "rows.jsonl")
        export_sqlite(source, folder / "rows.db")
    return folder


@pytest.fixture
def rows_file(exports: Path, tmp_path: Path) -> Path:
    """An export of COUNT screenings, one a line."""
    return Path(copy(exports / "rows.jsonl", tmp_path))


@pytest.fixture
def database_file(exports: Path, tmp_path: Path) -> Path:
    """An export of COUNT screenings as a database."""
    return Path(copy(exports / "rows.db", tmp_path))
