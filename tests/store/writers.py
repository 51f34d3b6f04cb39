"""Processes that write to one database at once."""

import os
import signal
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path

from sqlalchemy import create_engine

from tests.store.examples import DEVICE_KEY, NOON, measurement, outcome
from tuner.errors import StoreUnavailable
from tuner.shape import GemmShape, Problem
from tuner.store.engine import open_store
from tuner.store.leases import Leases
from tuner.store.repository import Repository
from tuner.store.spooling import SpoolingRepository
from tuner.trial import Measurement, Toolchain


def add_when_told(url: str, rows: Sequence[Measurement], now: Event) -> None:
    """Open the database, and add rows at the moment that is shared with other processes."""
    with open_store(url) as store:
        now.wait()
        store.add(rows)


def claim_all(url: str, worker: int, jobs: int, done: "Queue[tuple[int, int]]") -> None:
    """Do every job that nobody does or did, and report those done."""
    toolchain = Toolchain("5eed", "13.0.88")
    with open_store(url) as store:
        leases = Leases(store)
        for job in range(jobs):
            problem = Problem(GemmShape(job + 1, 8, 8), 132)
            lease = leases.claim(problem, DEVICE_KEY, toolchain, "measured")
            if lease is None:
                continue
            with lease:
                if store.outcome(problem, DEVICE_KEY, toolchain, "measured") is None:
                    store.finish_shape(outcome(problem=problem, run_id=str(worker)))
                    done.put((worker, job))


def spool_and_die(location: str, folder: str, rows: int) -> None:
    """Keep rows of a database that is away, and be killed."""

    class Away(Repository):
        def add(self, rows: Sequence[Measurement]) -> None:
            raise StoreUnavailable(f"{len(rows)} rows cannot be written.")

    spooling = SpoolingRepository(Away(create_engine("sqlite://"), location), Path(folder), print)
    for step in range(rows):
        spooling.add([measurement(worker="w", measured_at=NOON + timedelta(seconds=step))])
    os.kill(os.getpid(), signal.SIGKILL)
