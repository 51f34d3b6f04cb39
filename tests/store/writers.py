"""Processes that write to one database at once."""

from datetime import timedelta

from tests.store.examples import NOON, measurement
from tuner.store.engine import open_store


def write(url: str, worker: int, rows: int) -> None:
    """Open the database, whether or not somebody made it yet, and add rows one at a time."""
    with open_store(url) as store:
        for step in range(rows):
            at = NOON + timedelta(seconds=step)
            store.add([measurement(worker=str(worker), measured_at=at)])
