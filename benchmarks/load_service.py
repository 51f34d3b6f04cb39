"""GET /best-config under load, beside a FastAPI hello-world: `python -m benchmarks.load_service`.

On SQLite and on Postgres: made-up rows are stored, `tuner serve` and the hello-world are started as
processes of the same server with one worker each, and one more process stores what a worker would
while both are loaded in turn, in an order that is drawn anew for every repeat. All on the loopback,
and for a bounded time. `--out` stores the counts; `--reduced` takes seconds and is for CI.

Exits with 1 if the look-ups are slower than the hello-world (requests a second, or p99 beyond
`P99_RATIO` times its own), if one was not answered with 200, or if what was stored was not served
within SEEN_WITHIN_S.
"""

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from benchmarks.load_client import Load, has_wrk, load
from benchmarks.load_processes import (
    DEVICE_KEY,
    HELLO,
    SERVICE,
    Written,
    extents,
    path_of,
    serving,
    writing,
)
from benchmarks.store_databases import ROWS_PER_SHAPE, environment, fill, private_server
from tuner.cli.provenance import commit_measured

RATE_RATIO, P99_RATIO, SEEN_WITHIN_S = 1.0, 1.3, 2.0
PATHS = 1000
"""Distinct measured shapes that are asked for."""
UNMEASURED, EVERY = 20, 20
"""Distinct shapes that nothing is stored of; of the mixed look-ups, one in EVERY is of those."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is done. write_s: between two shapes that are stored meanwhile."""

    rows: int
    connections: tuple[int, ...]
    repeats: int
    seconds: int
    write_s: float
    databases: tuple[str, ...] = ("sqlite", "postgres")
    asked: tuple[str, ...] = ("hello", "exact", "mixed")


@dataclass(frozen=True, slots=True)
class Row:
    """One load of one server. what: `hello`, or look-ups that are all `exact` or `mixed`."""

    database: str
    connections: int
    repeat: int
    what: str
    per_s: float
    p50_ms: float
    p99_ms: float
    requests: int
    not_200: int
    failed: int


def measure(database: str, url: str, plan: Plan, folder: Path) -> tuple[list[Row], Written]:
    """Load both servers in turn, with `plan.rows` rows stored and more to come."""
    shapes = plan.rows // ROWS_PER_SHAPE
    fill(url, plan.rows, DEVICE_KEY, extents)
    random = Random(1)
    exact = [path_of(number) for number in random.sample(range(shapes), min(PATHS, shapes))]
    unmeasured = [path_of(number, k=str(2048 + 8 * number)) for number in range(UNMEASURED)]
    mixed = [
        unmeasured[n // EVERY % UNMEASURED] if n % EVERY == 0 else path
        for n, path in enumerate(exact)
    ]
    rows, written = [], list[Written]()
    log = folder / database
    with (
        serving(HELLO, "/", log.with_suffix(".hello")) as greeter,
        serving(SERVICE, "/readyz", log.with_suffix(".log"), url) as service,
    ):
        asked = {"hello": (greeter, ["/"]), "exact": (service, exact), "mixed": (service, mixed)}
        for port, paths in asked.values() if plan.repeats > 1 else ():
            load(port, paths, 4, 1)  # warms up
        with writing(url, service, shapes, plan.write_s, written):
            for repeat in range(plan.repeats):
                for connections in plan.connections:
                    for what in random.sample(plan.asked, len(plan.asked)):
                        port, paths = asked[what]
                        done = load(port, paths, connections, plan.seconds)
                        rows.append(row(database, connections, repeat, what, done))
    return rows, written[0]


def row(database: str, connections: int, repeat: int, what: str, done: Load) -> Row:
    return Row(
        database,
        connections,
        repeat,
        what,
        round(done.per_s, 1),
        round(done.p50_ms, 3),
        round(done.p99_ms, 3),
        done.requests,
        done.not_200,
        done.failed,
    )


def ratios(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Medians over repeats of look-ups beside the hello-world of the same repeat."""
    found = []
    for database, connections in dict.fromkeys((r.database, r.connections) for r in rows):
        of = [r for r in rows if (r.database, r.connections) == (database, connections)]
        beside = {r.repeat: r for r in of if r.what == "hello"}
        for what in dict.fromkeys(r.what for r in of if r.what != "hello"):
            pairs = [(r, beside[r.repeat]) for r in of if r.what == what]
            found.append(
                {
                    "database": database,
                    "connections": connections,
                    "what": what,
                    "rate_ratio": round(median(r.per_s / h.per_s for r, h in pairs), 3),
                    "p50_ratio": round(median(r.p50_ms / h.p50_ms for r, h in pairs), 3),
                    "p99_ratio": round(median(r.p99_ms / h.p99_ms for r, h in pairs), 3),
                    "per_s": median(r.per_s for r, _ in pairs),
                    "hello_per_s": median(h.per_s for _, h in pairs),
                    "p99_ms": median(r.p99_ms for r, _ in pairs),
                    "hello_p99_ms": median(h.p99_ms for _, h in pairs),
                }
            )
    return found


def faults(
    rows: Sequence[Row], table: Sequence[Mapping[str, Any]], seen: float, speed: bool
) -> list[str]:
    """What is not as it must be, as sentences. speed: slowness counts."""
    found = [
        f"{r.database}, {r.connections} connections: {r.not_200} of {r.requests} {r.what} requests "
        f"were not answered with 200, {r.failed} not at all."
        for r in rows
        if r.not_200 or r.failed
    ]
    if speed and seen > SEEN_WITHIN_S:
        found.append(f"a measurement was served after {seen:.1f} s; {SEEN_WITHIN_S} s are allowed.")
    for line in table if speed else ():
        if line["rate_ratio"] < RATE_RATIO or line["p99_ratio"] > P99_RATIO:
            found.append(
                f"{line['database']}, {line['connections']} connections, {line['what']}: "
                f"{line['rate_ratio']} x the requests/s of the hello-world, {line['p99_ratio']} x "
                f"its p99; {RATE_RATIO} and {P99_RATIO} are asked for."
            )
    return found


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--rows", type=int, default=1_000_000)
    arguments.add_argument("--repeats", type=int, default=7)
    arguments.add_argument("--seconds", type=int, default=5, help="of one load")
    arguments.add_argument("--write-s", type=float, default=1.0, help="between two stored shapes")
    arguments.add_argument("--reduced", action="store_true", help="seconds, on SQLite; no speed")
    arguments.add_argument("--commit", help="the commit that is measured, where git cannot say")
    arguments.add_argument("--out", type=Path)
    chosen = arguments.parse_args()
    plan = Plan(chosen.rows, (16, 64), chosen.repeats, chosen.seconds, chosen.write_s)
    if chosen.reduced:
        plan = Plan(2000, (16,), 1, 1, 0.5, ("sqlite",), ("hello", "mixed"))
    rows: list[Row] = []
    written: dict[str, Written] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tuner-load-")))
        postgres = None
        for database in plan.databases:
            url = f"sqlite:///{folder / 'tuner.db'}"
            if database == "postgres":
                postgres = stack.enter_context(private_server())
                url = postgres.create("load_service")
            found, written[database] = measure(database, url, plan, folder)
            rows += found
        around = environment(postgres)
    table = ratios(rows)
    for line in table:
        print(json.dumps(line), flush=True)
    for database, done in written.items():
        print(f"{database}: {done.shapes} shapes stored meanwhile, served after {done.seen_s} s")
    seen = max((s for done in written.values() for s in done.seen_s), default=0.0)
    if chosen.out:
        body = {
            "command": shlex.join(["python", "-m", "benchmarks.load_service", *sys.argv[1:]]),
            "commit": commit_measured(chosen.commit).name,
            "environment": {**around, "client": "wrk" if has_wrk() else "python", **versions()},
            "plan": asdict(plan),
            "writer": {database: asdict(done) for database, done in written.items()},
            "ratios": table,
            "rows": [asdict(row) for row in rows],
        }
        chosen.out.write_text(json.dumps(body, indent=1) + "\n")
    wrong = faults(rows, table, seen, speed=not chosen.reduced)
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    return int(bool(wrong))


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("fastapi", "starlette", "uvicorn", "uvloop")}


if __name__ == "__main__":
    sys.exit(main())
