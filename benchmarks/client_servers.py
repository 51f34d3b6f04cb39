"""The client with servers that misbehave: `python -m benchmarks.client_servers`.

Each program starts, imports the client and looks one shape up, while the server of the row does
what its name says: once on a machine that never heard of the server, and once on one that has what
it served before. Rows with several processes start them at once. `--out` stores the times, from the
first line of the program to the answer. Exits with 1 if a program failed, took longer than LIMIT_S,
was served from another source than it should be, or warned more than once.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import time

from benchmarks import harness
from benchmarks.bad_servers import (
    Counted,
    behaving,
    behaviours,
    refusing,
    sending,
    silent,
    snapshot_response,
    swallowing,
)
from benchmarks.client_processes import DEAF, Looked, ended, start
from benchmarks.store_databases import environment
from tuner.cli.provenance import commit_measured
from tuner.client.cache import Asked, Cache
from tuner.client.sources import shipped
from tuner.client.told import Told

LIMIT_S = 1.0
LONG_AGO_S = 3600.0


@dataclass(frozen=True, slots=True)
class Row:
    """server: what it does. known: the machine has what it served before.

    seconds: of every process, in ascending order.
    """

    server: str
    known: bool
    processes: int
    source: str
    median_s: float
    longest_s: float
    warnings: int
    seconds: list[float]


@contextmanager
def unknown_name() -> Iterator[Counted]:
    yield Counted("http://no-such-server.invalid")


def measured(
    name: str,
    serving: AbstractContextManager[Counted],
    told: Told,
    id: str,
    known: bool,
    repeats: int,
    processes: int = 1,
    damaged: bool = False,
    home: str | None = "",
) -> Row:
    """Start `processes` programs at once, `repeats` times, each time on a machine of its own.

    home: what HOME is, None for none; a folder of the run's own if it is empty.
    """
    found: list[Looked] = []
    with serving as server:
        before = DEAF if name == "never resolved" else ""
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                variables: dict[str, str | None] = {"TUNER_API_URL": server.url}
                variables["HOME"] = folder if home == "" else home
                cache = Path(folder) / ".cache" / "gemm-tuner" / "client"
                if known:
                    kept = Cache([str(cache)])
                    kept.keep(id, told)
                    kept.note(server.url, told.device_key, Asked(time() - LONG_AGO_S, id))
                if damaged:
                    file = cache / f"{id}.lines.gz"
                    file.write_bytes(file.read_bytes()[:-100])
                asked = f"4096, 4096, 4096, device={told.device_key!r}"
                started = [start(variables, asked, before) for _ in range(processes)]
                found += [ended(process) for process in started]
    seconds = sorted(round(one.all_ms / 1e3, 3) for one in found)
    return Row(
        name,
        known,
        processes,
        "/".join(sorted({one.source for one in found})),
        round(median(seconds), 3),
        seconds[-1],
        max(one.warnings for one in found),
        seconds,
    )


def rows(repeats: int, only: frozenset[str] | None) -> Iterator[Row]:
    """only: the names of some servers; None: all."""
    (id, told), *_ = shipped().items()
    good = sending(snapshot_response(told.body))
    known = (False, True)
    for name, behaviour in behaviours(told.body).items():
        if only is None or name in only:
            # To somebody who has one, 304 is an answer like any other.
            for has in known[: 1 + (not name.startswith("304"))]:
                yield measured(name, behaving(behaviour), told, id, has, repeats)
    for name, nobody in (
        ("refused", refusing),
        ("swallowed", swallowing),
        ("no such name", unknown_name),
        ("never resolved", refusing),
    ):
        if only is None or name in only:
            for has in known:
                yield measured(name, nobody(), told, id, has, repeats)
    homes = (("silent, HOME unset", None), ("silent, HOME cannot be written", "/proc"))
    for name, home in homes if only is None else ():
        yield measured(name, behaving(silent), told, id, False, repeats, home=home)
    if only is None:
        yield measured("silent", behaving(silent), told, id, False, repeats, processes=8)
        yield measured("silent", behaving(silent), told, id, True, repeats, processes=8)
    damaged = measured("good, damaged cache", behaving(good), told, id, True, repeats, damaged=True)
    yield damaged
    yield measured("good", behaving(good), told, id, False, repeats)
    if only is None:
        yield measured("good", behaving(good), told, id, False, repeats, processes=8)


def faults(row: Row, timed: bool) -> list[str]:
    good = row.server.startswith("good")
    expected = "server" if good else "cache" if row.known else "shipped"
    name = f"{row.server} ({row.processes} processes{', known' if row.known else ''})"
    found = []
    if row.source != expected and (timed or not good):
        found.append(f"{name}: served from {row.source}, not from {expected}.")
    if timed and row.longest_s > LIMIT_S:
        found.append(f"{name}: took {row.longest_s} s; {LIMIT_S} s are allowed.")
    if row.warnings > 1 or (not good and row.warnings != 1):
        found.append(f"{name}: {row.warnings} lines of warnings.")
    return found


def main() -> int:
    arguments = harness.parser(__doc__, "benchmarks.client_servers")
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--reduced", action="store_true", help="three servers, once; untimed")
    chosen = arguments.parse_args()
    busy = os.getloadavg()[0]
    only = frozenset({"silent", "HTML", "never resolved"}) if chosen.reduced else None
    repeats = 1 if chosen.reduced else chosen.repeats
    found, wrong = [], []
    for row in rows(repeats, only):
        print(json.dumps(asdict(row)), flush=True)
        found.append(row)
        wrong += faults(row, timed=not chosen.reduced)
    if chosen.out:
        body = {
            "command": harness.command_of("benchmarks.client_servers"),
            "commit": commit_measured(chosen.commit).name,
            "environment": {**environment(None), "load_average": [busy, *os.getloadavg()[:1]]},
            "rows": [asdict(row) for row in found],
        }
        chosen.out.write_text(json.dumps(body, indent=1) + "\n")
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
