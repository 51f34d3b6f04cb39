"""Processes that import, publish and read at once."""

from multiprocessing.queues import Queue
from pathlib import Path

from tuner.store.engine import open_store
from tuner.store.transfer import import_file


def bring(url: str, path: Path, told: "Queue[tuple[bool, int]]") -> None:
    """Import a file; tell whether all of it could be used, and how many measurements were new."""
    with open_store(url) as store:
        moved = import_file(store, path)
    told.put((moved.whole, moved.added.get("measurements", 0)))
