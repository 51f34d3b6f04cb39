"""Processes that import, publish and read at once."""

from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event, Semaphore
from pathlib import Path

from tuner.store.engine import open_store
from tuner.store.generations import Generations
from tuner.store.transfer import import_file


def bring(url: str, path: Path, told: "Queue[tuple[bool, int]]") -> None:
    """Import a file; tell whether all of it could be used, and how many measurements were new."""
    with open_store(url) as store:
        moved = import_file(store, path)
    told.put((moved.whole, moved.added.get("measurements", 0)))


def publish_at_once(url: str, device_key: str, told: "Queue[tuple[str, bool]]") -> None:
    with open_store(url) as store:
        done = Generations(store).publish(device_key, "me@here")
    told.put((done.id, done.new))


def read_generations(
    url: str,
    device_key: str,
    told: "Queue[tuple[list[str], list[str]]]",
    ready: Semaphore,
    stop: Event,
) -> None:
    """Read what is served until `stop`, and once more; tell the ids in order and what was wrong."""
    ids: list[str] = []
    faults: list[str] = []
    with open_store(url) as store:
        generations = Generations(store)
        last = told_ready = False
        while not last:
            last = stop.is_set()
            snapshot = generations.current(device_key)
            if snapshot is None or not snapshot.entries:
                faults.append("nothing was served")
            elif ids[-1:] != [snapshot.id]:
                ids.append(snapshot.id)
            if not told_ready:
                ready.release()
                told_ready = True
    told.put((ids, faults))
