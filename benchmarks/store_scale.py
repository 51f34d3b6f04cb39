"""What looking up and adding cost as the database grows: `python -m benchmarks.store_scale`.

Fills a SQLite file and a database of a private Postgres server with made-up rows, once for each
size, then looks up best configs and adds rows in all of them in turn, so that whatever else the
machine does falls on all alike. Prints a table and stores it with `--out`.
"""

import argparse
import json
import shlex
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import Any

from benchmarks.store_databases import (
    DEVICE_KEY,
    ROWS_PER_SHAPE,
    TOOLCHAIN,
    environment,
    fill,
    private_server,
    problem,
    row,
)
from tuner.cli.provenance import commit_measured
from tuner.store.engine import open_store
from tuner.store.repository import Repository
from tuner.trial import Measurement

TOGETHER = 100
"""Rows of one large `add`."""
P99_LIMIT = 1.5
"""p99 of a look-up in the largest database, over that in the smallest."""


@dataclass
class Sized:
    """One database and what was measured in it, in seconds."""

    kind: str
    rows: int
    store: Repository
    lookups: list[float] = field(default_factory=list)
    single: list[float] = field(default_factory=list)
    together: list[float] = field(default_factory=list)
    added: int = 0

    def look_up(self, random: Random) -> None:
        asked = problem(random.randrange(self.rows // ROWS_PER_SHAPE))
        began = time.perf_counter()
        answer = self.store.best(asked, DEVICE_KEY, current=TOOLCHAIN)
        self.lookups.append(time.perf_counter() - began)
        assert answer is not None
        assert answer.problem == asked

    def add(self, count: int, random: Random, times: list[float]) -> None:
        """Add screenings to shapes chosen at random."""
        made = [self._new(random) for _ in range(count)]
        began = time.perf_counter()
        self.store.add(made)
        times.append(time.perf_counter() - began)

    def _new(self, random: Random) -> Measurement:
        self.added += 1
        number = random.randrange(self.rows // ROWS_PER_SHAPE)
        return row(number, self.added, measured_at=datetime.now(UTC), detail=str(self.added))

    def described(self) -> dict[str, Any]:
        cuts = quantiles(self.lookups, n=100, method="inclusive")
        return {
            "database": self.kind,
            "rows": self.rows,
            "shapes": self.rows // ROWS_PER_SHAPE,
            "lookups": len(self.lookups),
            "lookup_p50_ms": round(cuts[49] * 1e3, 3),
            "lookup_p99_ms": round(cuts[98] * 1e3, 3),
            "single_adds_per_s": round(1 / median(self.single), 1),
            "rows_per_s_by_hundreds": round(TOGETHER / median(self.together), 1),
        }


def measure(databases: list[Sized], lookups: int, adds: int, repeats: int) -> None:
    random = Random(1)
    for _ in range(repeats):
        for _ in range(lookups):
            for each in random.sample(databases, len(databases)):
                each.look_up(random)
        for _ in range(adds):
            for each in random.sample(databases, len(databases)):
                for _ in range(5):
                    each.add(1, random, each.single)
                each.add(TOGETHER, random, each.together)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--rows", type=int, nargs="+", default=[1_000, 100_000, 1_000_000])
    arguments.add_argument("--lookups", type=int, default=300, help="of each database, a repeat")
    arguments.add_argument("--adds", type=int, default=10, help="of each database, a repeat")
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--commit", help="the commit that is measured, where git cannot say")
    arguments.add_argument("--out", type=Path)
    chosen = arguments.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tuner-scale-")))
        server = stack.enter_context(private_server())
        databases = []
        for rows in chosen.rows:
            urls = {
                "sqlite": f"sqlite:///{folder / f'{rows}.db'}",
                "postgres": server.create(f"rows_{rows}"),
            }
            for kind, url in urls.items():
                began = time.perf_counter()
                fill(url, rows)
                took = time.perf_counter() - began
                print(f"{kind}: {rows:,} rows made in {took:.0f} s", file=sys.stderr)
                databases.append(Sized(kind, rows, stack.enter_context(open_store(url))))
        measure(databases, 20, 1, 1)
        for each in databases:  # what was measured so far warmed up
            each.lookups, each.single, each.together = [], [], []
        measure(databases, chosen.lookups, chosen.adds, chosen.repeats)
        told = environment(server)
    table = [each.described() for each in databases]
    print("database     rows  p50 ms  p99 ms  adds/s  rows/s by 100")
    for line in sorted(table, key=lambda line: line["database"]):
        print(
            f"{line['database']:8} {line['rows']:>9,} {line['lookup_p50_ms']:>6.2f} "
            f"{line['lookup_p99_ms']:>7.2f} {line['single_adds_per_s']:>7.0f} "
            f"{line['rows_per_s_by_hundreds']:>14.0f}"
        )
    ratios = {}
    for kind in ("sqlite", "postgres"):
        of_kind = sorted((d for d in table if d["database"] == kind), key=lambda d: d["rows"])
        ratios[kind] = round(of_kind[-1]["lookup_p99_ms"] / of_kind[0]["lookup_p99_ms"], 3)
        print(f"{kind}: p99 of the largest is {ratios[kind]:.2f} x that of the smallest")
    if chosen.out:
        command = shlex.join(["python", "-m", "benchmarks.store_scale", *sys.argv[1:]])
        found = commit_measured(chosen.commit)
        body = {"command": command, "commit": found.name, **told, "p99_ratio": ratios}
        chosen.out.write_text(json.dumps({**body, "rows": table}, indent=2) + "\n")
    if any(ratio > P99_LIMIT for ratio in ratios.values()):
        sys.exit(f"a look-up in the largest database costs more than {P99_LIMIT} x as much.")


if __name__ == "__main__":
    main()
