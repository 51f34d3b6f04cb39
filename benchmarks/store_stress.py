"""Many writers and a reader on one database, again and again: `python -m benchmarks.store_stress`.

Every run makes an empty database, SQLite and Postgres in turn. Eight processes claim jobs from one
list and add made-up rows while this one looks up without a pause. A run fails if a process dies, a
look-up raises, a row is lost or doubled, a job is done twice or by nobody, or a reader sees rows
disappear. Then a Postgres server is stopped and started under the writers. `--out` stores it.
"""

import argparse
import json
import multiprocessing
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.queues import Queue
from pathlib import Path
from statistics import quantiles
from threading import Thread
from typing import Any

from benchmarks.store_databases import (
    DEVICE_KEY,
    TOOLCHAIN,
    Server,
    environment,
    outcome,
    private_server,
    problem,
    row,
)
from tuner.cli.provenance import commit_measured
from tuner.errors import TunerError
from tuner.store.engine import open_store
from tuner.store.leases import Leases
from tuner.store.spooling import SpoolingRepository

JOBS = 24
DEADLINE_S = 180.0


@dataclass(frozen=True, slots=True)
class Load:
    """What one run does. pause_s: between two rows of a writer, so that the run lasts."""

    writers: int
    rows: int
    pause_s: float = 0.0
    outage_s: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """What one run did to a database."""

    database: str
    writers: int
    seconds: float
    rows: int
    lost: int
    doubled: int
    jobs_twice: int
    jobs_undone: int
    died: int
    look_ups: int
    add_p99_ms: float
    slowest_add_ms: float
    failures: list[str]


def write(
    url: str, folder: str, number: int, load: Load, told: "Queue[tuple[list[int], list[float]]]"
) -> None:
    """Claim every job that is free, and add rows one at a time in between."""
    jobs, seconds, tried = [], [], 0
    with (
        open_store(url) as store,
        SpoolingRepository(store, Path(folder), lambda _: None) as spooling,
    ):
        leases = Leases(store, patiently=spooling.patiently)
        for step in range(load.rows):
            began = time.perf_counter()
            spooling.add([row(0, step, worker=str(number))])
            seconds.append(time.perf_counter() - began)
            time.sleep(load.pause_s)
            job = 1 + step * JOBS // load.rows
            if job == tried:
                continue
            tried = job
            lease = leases.claim(problem(job), DEVICE_KEY, TOOLCHAIN, "measured")
            if lease is None:
                continue
            with lease:
                if spooling.outcome(problem(job), DEVICE_KEY, TOOLCHAIN, "measured") is None:
                    spooling.finish_shape(outcome(job))
                    jobs.append(job)
    told.put((jobs, seconds))


def run(kind: str, url: str, load: Load, outage: Callable[[float], None] | None = None) -> Run:
    """One run over an empty database, and what was found in it afterwards."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.store_databases"])
    told: Queue[tuple[list[int], list[float]]] = context.Queue()
    failures: list[str] = []
    seen, look_ups = 0, 0
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tuner-spool-") as folder:
        writers = [
            context.Process(target=write, args=(url, folder, number, load, told))
            for number in range(load.writers)
        ]
        for writer in writers:
            writer.start()
        if outage and load.outage_s is not None:
            Thread(target=outage, args=(load.outage_s,), daemon=True).start()
        reports: list[tuple[list[int], list[float]]] = []
        with open_store(url) as store:
            while len(reports) < load.writers and time.perf_counter() - began < DEADLINE_S:
                while not told.empty():
                    reports.append(told.get())
                if not any(w.is_alive() for w in writers) and told.empty():
                    break
                try:
                    now, _ = store.watermark()
                    store.best(problem(0), DEVICE_KEY)
                    look_ups += 1
                except TunerError as error:
                    if outage is None:
                        failures.append(f"a look-up failed: {error}")
                    time.sleep(0.1)
                    continue
                if now < seen:
                    failures.append(f"{seen - now} rows disappeared from a reader.")
                seen = now
        for writer in writers:
            writer.join(10)
            writer.kill()
        seconds = time.perf_counter() - began
        with open_store(url) as store, SpoolingRepository(store, Path(folder), failures.append):
            found = Counter(
                (r.worker, r.measured_at)
                for r in store.attempts(problem(0), DEVICE_KEY, sources=["measured"])
            )
            ended = sum(
                store.outcome(problem(job), DEVICE_KEY, TOOLCHAIN, "measured") is not None
                for job in range(1, JOBS + 1)
            )
    adds = [each for _, of_writer in reports for each in of_writer] or [0.0, 0.0]
    done = Counter(job for jobs, _ in reports for job in jobs)
    expected = load.writers * load.rows
    return Run(
        kind,
        load.writers,
        round(seconds, 2),
        expected,
        lost=expected - len(found),
        doubled=sum(found.values()) - len(found),
        jobs_twice=sum(times > 1 for times in done.values()),
        jobs_undone=JOBS - ended,
        died=sum(writer.exitcode != 0 for writer in writers),
        look_ups=look_ups,
        add_p99_ms=round(quantiles(adds, n=100)[98] * 1e3, 2),
        slowest_add_ms=round(max(adds) * 1e3, 2),
        failures=failures,
    )


def failed(of: Run) -> bool:
    """Whether anything that must not happen did."""
    return bool(of.failures) or any((of.lost, of.doubled, of.jobs_twice, of.jobs_undone, of.died))


def restart(server: Server, pause_s: float) -> None:
    """Stop the server under its clients, and start it again."""
    time.sleep(1.5)
    server.stop()
    time.sleep(pause_s)
    server.start()


def stress(runs: int, restarts: int, load: Load, server: Server, folder: Path) -> list[Run]:
    """`runs` on each database, and `restarts` of the server under writers that take their time."""
    found = []
    for number in range(runs):
        found.append(run("sqlite", f"sqlite:///{folder / f'{number}.db'}", load))
        found.append(run("postgres", server.create(f"run_{number}"), load))
        print(*(shown(each) for each in found[-2:]), sep="\n", flush=True)
    slow = Load(load.writers, load.rows, pause_s=5 / load.rows, outage_s=1.0)
    for number in range(restarts):
        url = server.create(f"restart_{number}")
        with open_store(url):  # the writers find it made: a server that is away makes none
            pass
        found.append(
            run("postgres, restarted", url, slow, lambda pause_s: restart(server, pause_s))
        )
        print(shown(found[-1]), flush=True)
    return found


def shown(of: Run) -> str:
    verdict = "FAILED" if failed(of) else "ok"
    return (
        f"{of.database}: {verdict}; {of.writers} writers, {of.rows} rows in {of.seconds:.1f} s, "
        f"{of.lost} lost, {of.doubled} doubled, {of.jobs_twice} jobs twice, "
        f"{of.look_ups} look-ups, p99 of an add {of.add_p99_ms:.0f} ms"
    )


def summary(found: list[Run]) -> list[dict[str, Any]]:
    """One line for each kind of run."""
    lines = []
    for kind in dict.fromkeys(each.database for each in found):
        of_kind = [each for each in found if each.database == kind]
        lines.append(
            {
                "database": kind,
                "runs": len(of_kind),
                "failed": sum(map(failed, of_kind)),
                "rows": sum(each.rows for each in of_kind),
                "lost": sum(each.lost for each in of_kind),
                "doubled": sum(each.doubled for each in of_kind),
                "jobs": JOBS * len(of_kind),
                "jobs_twice": sum(each.jobs_twice for each in of_kind),
                "look_ups": sum(each.look_ups for each in of_kind),
                "slowest_add_ms": max(each.slowest_add_ms for each in of_kind),
            }
        )
    return lines


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--runs", type=int, default=20, help="on each database")
    arguments.add_argument("--restarts", type=int, default=3)
    arguments.add_argument("--writers", type=int, default=8)
    arguments.add_argument("--rows", type=int, default=120, help="that each writer adds")
    arguments.add_argument("--commit", help="the commit that is measured, where git cannot say")
    arguments.add_argument("--out", type=Path)
    chosen = arguments.parse_args()
    load = Load(chosen.writers, chosen.rows)
    with tempfile.TemporaryDirectory(prefix="tuner-stress-") as folder, private_server() as server:
        found = stress(chosen.runs, chosen.restarts, load, server, Path(folder))
        told = environment(server)
    table = summary(found)
    for line in table:
        print(*(f"{name} {value}" for name, value in line.items()), sep=", ")
    if chosen.out:
        command = shlex.join(["python", "-m", "benchmarks.store_stress", *sys.argv[1:]])
        commit = commit_measured(chosen.commit).name
        body = {"command": command, "commit": commit, **told, "summary": table}
        body["rows"] = [asdict(each) for each in found]
        chosen.out.write_text(json.dumps(body, indent=2) + "\n")
    if any(map(failed, found)):
        sys.exit("a run failed; its line says how.")


if __name__ == "__main__":
    main()
