from collections.abc import Iterator

import pytest

from tuner.store.engine import open_store
from tuner.store.repository import Repository


@pytest.fixture
def store(database_url: str) -> Iterator[Repository]:
    """An empty store; the test runs once for each kind of database."""
    with open_store(database_url) as repository:
        yield repository
