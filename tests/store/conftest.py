from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tuner.store.engine import open_store
from tuner.store.repository import Repository


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
