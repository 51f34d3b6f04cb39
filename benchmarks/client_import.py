"""What the client costs a program: `python -m benchmarks.client_import`.

Times of `import tuner.client` (`python -X importtime`), and of the first answer after it: where the
machine has a snapshot that is fresh, in a bare interpreter and in one that has loaded what most
programs load; for a shape that was measured, and for one near it, which takes the full rules. Then
look-ups a second from memory. At last PROCESSES programs start at once while a publisher never
rests, each time on a machine that has nothing yet: pinned to the generation that their launcher
found, and not pinned. The requests that reach the service are counted, the launcher's among them.
`--out` stores it all. Exits with 1 if the import takes longer than IMPORT_MS (the least of all
runs), or pinned programs disagree or cost more than one request in all.
"""

import json
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median
from time import perf_counter, time
from typing import Any

from benchmarks import harness
from benchmarks.bad_servers import Counted, behaving
from benchmarks.client_agreement import fill
from benchmarks.client_processes import ROOT, ended, start
from benchmarks.load_processes import SERVICE, extents, serving
from benchmarks.store_databases import environment, rows_of_shape
from tuner.cli.provenance import commit_measured
from tuner.client.cache import Asked, Cache
from tuner.client.configs import TunedConfigs
from tuner.client.sources import Loaded, shipped
from tuner.client.told import Told, id_of
from tuner.shape import GemmShape
from tuner.store.engine import open_store
from tuner.store.generations import Generations

IMPORT_MS = 30.0
PROCESSES = 16
DEVICE = "sm90-132sm-141gb"
USUAL = "import argparse, dataclasses, enum, functools, json, logging, pathlib, re, typing"
PINNED, COLD = "pinned by the launcher", "not pinned, nothing kept"
HOW = (PINNED, COLD)
NOWHERE = "http://127.0.0.1:9"
"""A server that is not asked: what it said is fresh."""
MANY = 1000
"""Problems of the larger snapshot."""
LOOKUPS = 200_000


@dataclass(frozen=True, slots=True)
class Times:
    """In ms over all runs."""

    what: str
    runs: int
    least_ms: float
    median_ms: float


@dataclass(frozen=True, slots=True)
class Start:
    """PROCESSES programs that started at once. generations: how many they had between them.

    expected: it was the pinned one, if one was. requests: that reached the service.
    """

    how: str
    generations: int
    expected: bool
    requests: int
    sources: list[str]
    longest_s: float


def times(what: str, found: list[float]) -> Times:
    return Times(what, len(found), round(min(found), 2), round(median(found), 2))


def importing(before: str) -> float:
    """ms of `import tuner.client` with all that it imports, as Python itself says."""
    variables = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
    code = f"{before}\nimport tuner.client" if before else "import tuner.client"
    done = subprocess.run(
        [sys.executable, "-S", "-X", "importtime", "-c", code],
        env={**variables, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    told = re.findall(r"\| +(\d+) \| tuner\.client$", done.stderr, re.MULTILINE)
    return int(told[-1]) / 1e3


def many(told: Told) -> Told:
    """A snapshot of MANY problems, which repeats the entries of another for other shapes."""
    read = json.loads(told.body)
    entries = read["entries"]
    read["entries"] += [
        {**entries[number % len(entries)], "shape": {"m": 8 * (1 + number), "n": 776, "k": 776}}
        for number in range(MANY - len(entries))
    ]
    return Told(json.dumps(read).encode(), checked=True)


def answering(told: Told, asked: str, before: str, runs: int) -> list[float]:
    """ms of the import and the first answer, with a cache that is fresh."""
    with tempfile.TemporaryDirectory() as folder:
        cache, id = Cache([str(Path(folder) / "client")]), id_of(told.body)
        cache.keep(id, told)
        found = []
        for _ in range(runs):
            cache.note(NOWHERE, None, Asked(time(), id))
            looked = ended(
                start({"TUNER_CACHE_DIR": folder, "TUNER_API_URL": NOWHERE}, asked, before)
            )
            if looked.source != "server":
                raise SystemExit(f"the cache was not used: {looked}")
            found.append(looked.all_ms)
    return found


def lookups_per_s(told: Told) -> dict[str, float]:
    """From memory: one shape again and again, and shapes that were not asked for before."""
    cache = Cache([])
    configs = TunedConfigs(Loaded(told, "shipped", [], cache, "id"))
    configs.best_config(4096, 4096, 4096)
    began = perf_counter()
    for _ in range(LOOKUPS):
        configs.best_config(4096, 4096, 4096)
    again = LOOKUPS / (perf_counter() - began)
    shapes = configs.shapes
    began, rounds = perf_counter(), 20
    for _ in range(rounds):
        new = TunedConfigs(Loaded(told, "shipped", [], cache, "id"))
        for shape in shapes:
            new.best_config(*shape)
    first = rounds * len(shapes) / (perf_counter() - began)
    near = TunedConfigs(Loaded(told, "shipped", [], cache, "id"))
    near.best_config(4000, 4096, 4096)
    began, count = perf_counter(), 300
    for number in range(count):
        near.best_config(4000 + number, 4096, 4096)
    predicted = count / (perf_counter() - began)
    return {
        "remembered": round(again),
        "measured, first time": round(first),
        "predicted, first time": round(predicted),
    }


def publish(url: str, begun: Event, stop: Event) -> None:
    """Store one more shape and publish, again and again, until `stop`."""
    number = 0
    with open_store(url) as store:
        while not stop.is_set():
            shape = GemmShape(**extents(number))
            rows = rows_of_shape(number)
            store.add(
                [
                    replace(row, device_key=DEVICE, problem=replace(row.problem, shape=shape))
                    for row in rows
                ]
            )
            Generations(store).publish(DEVICE, "benchmark")
            begun.set()
            number += 1


@contextmanager
def publishing(url: str) -> Iterator[None]:
    spawn = multiprocessing.get_context("spawn")
    begun, stop = spawn.Event(), spawn.Event()
    process = spawn.Process(target=publish, args=(url, begun, stop))
    process.start()
    try:
        if not begun.wait(60):
            raise SystemExit("the publisher did not begin.")
        yield
    finally:
        stop.set()
        process.join(60)


def passing_on(port: int) -> Any:
    """A behaviour of a server: what comes goes to `port`, and what that answers comes back."""

    def answer(connected: socket.socket, _: threading.Event) -> None:
        with socket.create_connection(("127.0.0.1", port)) as service, suppress(OSError):
            service.sendall(
                connected.recv(65536).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
            )
            while piece := service.recv(65536):
                connected.sendall(piece)

    return answer


def starting(server: Counted, how: str, processes: int) -> Start:
    with tempfile.TemporaryDirectory() as folder:
        variables = {"TUNER_API_URL": server.url, "TUNER_CACHE_DIR": folder}
        before = server.requests
        if how == PINNED:
            variables["TUNER_GENERATION"] = generation(variables)
            variables["TUNER_STRICT"] = "1"
        asked = f"4096, 4096, 4096, device={DEVICE!r}"
        started = [start(variables, asked) for _ in range(processes)]
        looked = [ended(process) for process in started]
    ids = {one.generation for one in looked}
    return Start(
        how,
        len(ids),
        how != PINNED or ids == {variables["TUNER_GENERATION"]},
        server.requests - before,
        sorted({one.source for one in looked}),
        round(max(one.all_ms for one in looked) / 1e3, 3),
    )


def generation(variables: dict[str, str]) -> str:
    """What a launcher pins, by the command that docs/client.md names."""
    command = [sys.executable, "-m", "tuner.client", "--device", DEVICE, "--generation"]
    environment = {**os.environ, **variables}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def starts(runs: int, processes: int) -> list[Start]:
    """On a service whose publisher never rests, in every way in turn."""
    with tempfile.TemporaryDirectory() as named:
        folder = Path(named)
        url = f"sqlite:///{folder / 'tuner.db'}"
        fill(url)
        with (
            serving(SERVICE, "/readyz", folder / "log", url) as port,
            publishing(url),
            behaving(passing_on(port)) as server,
        ):
            return [starting(server, how, processes) for _ in range(runs) for how in HOW]


def main() -> int:
    arguments = harness.parser(__doc__, "benchmarks.client_import")
    arguments.add_argument("--runs", type=int, default=20)
    arguments.add_argument("--starts", type=int, default=10)
    arguments.add_argument("--reduced", action="store_true", help="once, four processes; untimed")
    chosen = arguments.parse_args()
    busy = os.getloadavg()[0]
    runs, processes = (2, 4) if chosen.reduced else (chosen.runs, PROCESSES)
    told = next(iter(shipped().values()))
    exact, near = "4096, 4096, 4096", "4000, 4096, 4096"
    found = [
        times("import, bare interpreter", [importing("") for _ in range(runs)]),
        times("import, usual modules loaded", [importing(USUAL) for _ in range(runs)]),
    ]
    for where, before in (("bare interpreter", ""), ("usual modules loaded", USUAL)):
        for what, asked in (("measured", exact), ("predicted", near)):
            name = f"import and first answer ({what}), {where}"
            found.append(times(name, answering(told, asked, before, runs)))
    name = f"import and first answer (measured), usual modules loaded, {MANY} problems"
    found.append(times(name, answering(many(told), exact, USUAL, runs)))
    for line in found:
        print(json.dumps(asdict(line)), flush=True)
    per_s = lookups_per_s(told)
    print(json.dumps(per_s), flush=True)
    started = starts(1 if chosen.reduced else chosen.starts, processes)
    for one in started:
        print(json.dumps(asdict(one)), flush=True)
    if chosen.out:
        body = {
            "command": harness.command_of("benchmarks.client_import"),
            "commit": commit_measured(chosen.commit).name,
            "environment": {**environment(None), "load_average": [busy, *os.getloadavg()[:1]]},
            "lookups_per_s": per_s,
            "rows": [asdict(line) for line in found],
            "starts": [asdict(one) for one in started],
        }
        chosen.out.write_text(json.dumps(body, indent=1) + "\n")
    wrong = [f"{one} is not as it must be." for one in started if not sound(one)]
    if not chosen.reduced and found[0].least_ms > IMPORT_MS:
        wrong.append(f"the import takes {found[0].least_ms} ms; {IMPORT_MS} ms are allowed.")
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    return int(bool(wrong))


def sound(one: Start) -> bool:
    return one.how != PINNED or (one.generations == 1 and one.expected and one.requests == 1)


if __name__ == "__main__":
    sys.exit(main())
