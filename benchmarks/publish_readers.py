"""Sixteen readers while generations are published: `python -m benchmarks.publish_readers`.

On SQLite and on Postgres one process tunes one more made-up shape and publishes, again and again,
and then rolls back and forth, while reader processes ask without a pause what is served and read
it whole. A read fails if it raises, if the bytes are not what their id says, if the number of
shapes is not that of the generation, or if the ids a reader saw are not in the order in which they
were published. `--out` stores the counts.
"""

import argparse
import json
import multiprocessing
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event, Semaphore
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.store_databases import (
    DEVICE_KEY,
    ROWS_PER_SHAPE,
    environment,
    fill,
    private_server,
    rows_of_shape,
)
from tuner.cli.provenance import commit_measured
from tuner.errors import TunerError
from tuner.lookup.snapshot import read_snapshot
from tuner.store.engine import open_store
from tuner.store.generations import Generations

DEADLINE_S = 300.0
BY = "benchmark"


@dataclass(frozen=True, slots=True)
class Report:
    """What one reader saw: the ids in order, each as often as it changed, and what was wrong."""

    reads: int
    seen: list[tuple[str, int]]
    failures: list[str]


@dataclass(frozen=True, slots=True)
class Run:
    """What happened on one database. out_of_order: readers that went back to what was replaced."""

    database: str
    readers: int
    shapes: int
    generations: int
    publications: int
    reads: int
    changes_seen: int
    out_of_order: int
    wrong_size: int
    publish_median_ms: float
    rollback_median_ms: float
    failures: list[str]


def read(url: str, told: "Queue[Report]", ready: Semaphore, stop: Event) -> None:
    """Read what is served until `stop`, and once more."""
    seen: list[tuple[str, int]] = []
    failures: list[str] = []
    reads = 0
    last = False
    with open_store(url) as store:
        generations = Generations(store)
        while not last:
            last = stop.is_set()
            try:
                served = generations.current(DEVICE_KEY)
                assert served is not None
                whole = read_snapshot(served.body, served.id)
            except TunerError as error:
                failures.append(str(error))
                continue
            reads += 1
            if not seen or seen[-1][0] != whole.id:
                seen.append((whole.id, len(whole.entries)))
            if reads == 1:
                ready.release()
    told.put(Report(reads, seen, failures))


def run(database: str, url: str, shapes: int, readers: int, publishes: int, rollbacks: int) -> Run:
    """Publish `publishes` generations and roll back and forth `rollbacks` times under readers."""
    fill(url, shapes * ROWS_PER_SHAPE)
    spawn = multiprocessing.get_context("spawn")
    told: Queue[Report] = spawn.Queue()
    ready, stop = spawn.Semaphore(0), spawn.Event()
    with open_store(url) as store:
        generations = Generations(store)
        served = [generations.publish(DEVICE_KEY, BY)]
        processes = [
            spawn.Process(target=read, args=(url, told, ready, stop)) for _ in range(readers)
        ]
        for process in processes:
            process.start()
        if not all(ready.acquire(timeout=DEADLINE_S) for _ in processes):
            raise TunerError("a reader did not begin in time; use fewer readers.")
        publish_ms, rollback_ms = [], []
        for number in range(publishes):
            store.add(rows_of_shape(shapes + number))
            began = time.perf_counter()
            served.append(generations.publish(DEVICE_KEY, BY))
            publish_ms.append((time.perf_counter() - began) * 1e3)
        for number in range(rollbacks):
            began = time.perf_counter()
            served.append(generations.rollback(served[number % 2].id, BY))
            rollback_ms.append((time.perf_counter() - began) * 1e3)
        stop.set()
        reports = [told.get(timeout=DEADLINE_S) for _ in processes]
        stored = len(generations.all())
    for process in processes:
        process.join(DEADLINE_S)
    order = [done.id for done in served]
    sizes = {done.id: done.entries for done in served}
    return Run(
        database,
        readers,
        shapes,
        stored,
        len(served),
        sum(report.reads for report in reports),
        sum(len(report.seen) - 1 for report in reports),
        sum(not follows([id for id, _ in report.seen], order) for report in reports),
        sum(sizes.get(id) != size for report in reports for id, size in report.seen),
        round(median(publish_ms), 2),
        round(median(rollback_ms), 2),
        [failure for report in reports for failure in report.failures],
    )


def follows(seen: Sequence[str], published: Sequence[str]) -> bool:
    """Whether `seen` can be had by looking at `published` in order, now and then, to its end."""
    ahead = iter(published)
    return all(id in ahead for id in seen) and seen[-1] == published[-1]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--shapes", type=int, default=100, help="tuned before the first")
    arguments.add_argument("--readers", type=int, default=16)
    arguments.add_argument("--publishes", type=int, default=20)
    arguments.add_argument("--rollbacks", type=int, default=20)
    arguments.add_argument("--commit", help="the commit that is measured, where git cannot say")
    arguments.add_argument("--out", type=Path)
    chosen = arguments.parse_args()
    command = shlex.join(["python", "-m", "benchmarks.publish_readers", *sys.argv[1:]])
    counts = (chosen.shapes, chosen.readers, chosen.publishes, chosen.rollbacks)
    with tempfile.TemporaryDirectory() as folder, private_server() as server:
        found = [
            run("sqlite", f"sqlite:///{Path(folder) / 'tuner.db'}", *counts),
            run("postgres", server.create("publish_readers"), *counts),
        ]
        around = environment(server)
    commit = commit_measured(chosen.commit)
    for each in found:
        print(shown(each), flush=True)
    if chosen.out:
        body: dict[str, Any] = {
            "command": command,
            "commit": commit.name,
            "environment": around,
            "rows": [asdict(each) for each in found],
        }
        chosen.out.write_text(json.dumps(body, indent=1) + "\n")
    return int(any(each.failures or each.out_of_order or each.wrong_size for each in found))


def shown(of: Run) -> str:
    return (
        f"{of.database}: {of.readers} readers, {of.publications} publications of "
        f"{of.generations} generations of {of.shapes} shapes and more; {of.reads} reads, "
        f"{of.changes_seen} changes seen, {of.out_of_order} readers out of order, "
        f"{of.wrong_size} reads of a wrong size, {len(of.failures)} failures; "
        f"publish {of.publish_median_ms} ms, rollback {of.rollback_median_ms} ms (medians)"
    )


if __name__ == "__main__":
    sys.exit(main())
