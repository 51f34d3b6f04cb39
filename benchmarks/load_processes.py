"""The processes of the load test: a FastAPI hello-world, the service, and one that stores."""

import multiprocessing
import os
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path

from fastapi import FastAPI

from benchmarks.store_databases import rows_of_shape
from tuner.errors import TunerError
from tuner.shape import GemmShape
from tuner.store.engine import open_store

DEVICE_KEY = "sm90-132sm-141gb"
PATIENCE_S = 600.0
LOOKED_AFTER = 5
"""One in so many shapes that are stored is asked for until it is served."""
HELLO = ["-m", "uvicorn", "benchmarks.load_processes:hello", "--no-access-log"]
SERVICE = ["-c", "from tuner.cli.main import main; main()", "serve"]

hello = FastAPI()


@hello.get("/")
async def say_hello() -> dict[str, str]:
    return {"hello": "world"}


@dataclass(frozen=True, slots=True)
class Written:
    """What the writer did: shapes it stored, and how long some of them took to be served."""

    shapes: int
    seen_s: list[float]


def extents(number: int) -> Mapping[str, int]:
    """M, N and K of the made-up shape of that number."""
    return {"m": 1 + number % 100, "n": 64 * (1 + number // 100), "k": 4096}


def path_of(number: int, **more: str) -> str:
    asked = {name: str(extent) for name, extent in extents(number).items()} | more
    return "/best-config?" + "&".join(f"{name}={value}" for name, value in asked.items())


def write(
    url: str,
    port: int,
    first: int,
    every_s: float,
    told: "Queue[Written]",
    begun: Event,
    stop: Event,
) -> None:
    """Store one more shape again and again, as a worker does, until `stop`."""
    seen_s: list[float] = []
    number = first
    with open_store(url) as store:
        while not stop.is_set():
            began = time.monotonic()
            shape = GemmShape(**extents(number))
            store.add(
                [
                    replace(row, device_key=DEVICE_KEY, problem=replace(row.problem, shape=shape))
                    for row in rows_of_shape(number)
                ]
            )
            if (number - first) % LOOKED_AFTER == 0:
                seen_s.append(until_served(port, number))
            number += 1
            begun.set()
            stop.wait(max(0.0, began + every_s - time.monotonic()))
    told.put(Written(number - first, seen_s))


def until_served(port: int, number: int) -> float:
    """Seconds until a shape that was just stored is answered as measured."""
    stored = time.monotonic()
    while status(port, path_of(number, match="exact")) != 200:
        if time.monotonic() > stored + PATIENCE_S:
            break
        time.sleep(0.05)
    return round(time.monotonic() - stored, 3)


def status(port: int, path: str) -> int:
    """0 if there is no answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code
    except OSError:
        return 0


@contextmanager
def serving(command: Sequence[str], ready: str, log: Path, url: str = "") -> Iterator[int]:
    """A server process of one worker; yields its port once `ready` is answered with 200."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    line = [sys.executable, *command, "--port", str(port)]
    environ = {**os.environ, "TUNER_DATABASE_URL": url}
    with log.open("w") as output:
        process = subprocess.Popen(line, env=environ, stderr=output)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while status(port, ready) != 200:
            if process.poll() is not None or time.monotonic() > deadline:
                raise TunerError(f"{shlex.join(line)} does not serve: {log.read_text()[-2000:]}")
            time.sleep(0.2)
        yield port
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def writing(
    url: str, port: int, shapes: int, every_s: float, found: list[Written]
) -> Iterator[None]:
    spawn = multiprocessing.get_context("spawn")
    told: Queue[Written] = spawn.Queue()
    begun, stop = spawn.Event(), spawn.Event()
    process = spawn.Process(target=write, args=(url, port, shapes, every_s, told, begun, stop))
    process.start()
    try:
        if not begun.wait(PATIENCE_S):
            raise TunerError("the writer did not begin in time; use fewer rows.")
        yield
        stop.set()
        found.append(told.get(timeout=PATIENCE_S))
    finally:
        stop.set()
        process.join(PATIENCE_S)
