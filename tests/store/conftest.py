from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from tests.store.examples import NOON, measurement
from tests.store.exported import COUNT
from tuner.store.engine import open_store
from tuner.store.exports import export_lines, export_sqlite
from tuner.store.repository import Repository
from tuner.store.source import opened_source


@pytest.fixture
def store(database_url: str) -> Iterator[Repository]:
    """An empty store; the test runs once for each kind of database."""
    with open_store(database_url) as repository:
        yield repository


@pytest.fixture(params=["sqlite", "postgres"])
def new_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Gives the URL of another empty database at each call; runs once for each kind."""
    if request.param == "sqlite":
        yield lambda: f"sqlite:///{tmp_path / f'{uuid4().hex}.db'}"
        return
    import psycopg
    from sqlalchemy import make_url

    server: str = request.getfixturevalue("postgres_url")
    made: list[str] = []

    def create() -> str:
        made.append(f"tuner_{uuid4().hex}")
        with psycopg.connect(server, autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {made[-1]}".encode())
        return make_url(server).set(database=made[-1]).render_as_string(hide_password=False)

    yield create
    with psycopg.connect(server, autocommit=True) as admin:
        for name in made:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture
def original(tmp_path: Path) -> str:
    """A database of COUNT screenings."""
    url = f"sqlite:///{tmp_path / 'original.db'}"
    with open_store(url) as store:
        store.add([measurement(measured_at=NOON + timedelta(seconds=n)) for n in range(COUNT)])
    return url


@pytest.fixture
def rows_file(original: str, tmp_path: Path) -> Path:
    with opened_source(original) as source:
        export_lines(source, tmp_path / "rows.jsonl")
    return tmp_path / "rows.jsonl"


@pytest.fixture
def database_file(original: str, tmp_path: Path) -> Path:
    with opened_source(original) as source:
        export_sqlite(source, tmp_path / "rows.db")
    return tmp_path / "rows.db"
