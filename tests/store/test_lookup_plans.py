"""A look-up reads the rows of its problem and no others, however many there are."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, Select, text
from sqlalchemy.dialects import sqlite

from benchmarks.store_databases import DEVICE_KEY as MADE_UP
from benchmarks.store_databases import fill, problem
from tests.databases import Databases, PostgresServer
from tests.store.examples import CUBLAS, DEVICE_KEY, PROBLEM, TOOLCHAIN, kernel, measurement, race
from tuner.lookup import COUNTED_PROTOCOLS
from tuner.shape import GemmShape, Problem
from tuner.store import queries
from tuner.store.engine import locate, make_engine, open_store
from tuner.store.tables import PROBLEM as NAMED
from tuner.trial import Toolchain

EQUAL = " AND ".join(f"{name}=?" for name in NAMED)


def many_problems(url: str) -> None:
    with open_store(url) as store:
        for m in range(1, 40):
            of = Problem(GemmShape(m, 8, 8), 132)
            store.add([measurement(problem=of, worker=str(i)) for i in range(20)])
        store.add(race("r", {kernel(): [9.0], CUBLAS: [10.0]}))


@pytest.mark.parametrize(
    ("query", "plan"),
    [
        (
            queries.raced(PROBLEM, DEVICE_KEY, COUNTED_PROTOCOLS),
            f"SEARCH measurements USING INDEX ix_measurements_race ({EQUAL})",
        ),
        (
            queries.attempts(PROBLEM, DEVICE_KEY, ["measured"], TOOLCHAIN),
            f"SEARCH measurements USING INDEX ix_measurements_problem ({EQUAL})",
        ),
        (
            queries.failures(PROBLEM, DEVICE_KEY, None),
            f"SEARCH measurements USING INDEX ix_measurements_problem ({EQUAL})",
        ),
        (
            queries.outcomes(PROBLEM, DEVICE_KEY),
            f"SEARCH shape_outcomes USING INDEX ix_shape_outcomes_problem ({EQUAL})",
        ),
        (
            queries.latest_outcomes(DEVICE_KEY, 50, 0),
            "SEARCH shape_outcomes USING INDEX ix_shape_outcomes_problem (device_key=?)",
        ),
    ],
    ids=["best", "attempts", "failures", "outcome", "shapes"],
)
def test_a_look_up_uses_an_index(
    sqlite_databases: Databases, query: Select[tuple[object]], plan: str
) -> None:
    engine = make_engine(locate(sqlite_databases.like("many_problems", many_problems)))
    said = query.compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True})
    for statistics in ("SELECT 1", "ANALYZE"):
        with engine.begin() as connection:
            connection.execute(text(statistics))
            rows = connection.execute(text(f"EXPLAIN QUERY PLAN {said}")).all()
        assert plan in [row.detail for row in rows]
        assert not any(row.detail.startswith("SCAN measurements") for row in rows)
    engine.dispose()


@pytest.fixture(scope="module")
def many_rows(postgres_server: PostgresServer) -> Iterator[Engine]:
    """A Postgres database of more than a page of rows, so that reading it all is not cheapest."""
    url = postgres_server.create("tuner_plans")
    fill(url, 20_000)
    engine = make_engine(locate(url))
    yield engine
    engine.dispose()
    postgres_server.drop("tuner_plans")


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (queries.raced(problem(7), MADE_UP, COUNTED_PROTOCOLS), "ix_measurements_race"),
        (queries.attempts(problem(7), MADE_UP, ["measured"], None), "ix_measurements_problem"),
        # Few rows failed, so the index of failures finds a problem's as fast.
        (queries.failures(problem(7), MADE_UP, None), "ix_measurements_failures"),
        (
            queries.setbacks(MADE_UP, Toolchain("kernel", "13.0.88"), ["measured"]),
            "ix_measurements_failures",
        ),
        (queries.outcomes(problem(7), MADE_UP).limit(1), "ix_shape_outcomes_problem"),
        (queries.watermark(), "measurements_pkey"),
    ],
    ids=["best", "attempts", "failures", "setbacks", "outcome", "watermark"],
)
def test_on_postgres_a_look_up_uses_an_index(
    many_rows: Engine, query: Select[Any], index: str
) -> None:
    said = query.compile(dialect=many_rows.dialect, compile_kwargs={"literal_binds": True})
    with many_rows.connect() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN {said}".replace("%", "%%")).scalars().all()
    assert any(index in line for line in plan), plan
    assert not any("Seq Scan" in line for line in plan), plan


def instructions(url: str, rows: int) -> int:
    """How many instructions SQLite's machine needs for one look-up among `rows` rows."""
    fill(url, rows)
    engine = make_engine(locate(url))
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    with engine.connect() as connection:
        driver: Any = connection.connection.dbapi_connection
        driver.set_progress_handler(step, 1)
        found = connection.execute(queries.raced(problem(1), MADE_UP, COUNTED_PROTOCOLS)).all()
        driver.set_progress_handler(None, 1)
    engine.dispose()
    assert len(found) == 20
    return steps


def test_a_look_up_takes_as_many_steps_in_a_large_database_as_in_a_small_one(
    tmp_path: Path,
) -> None:
    small, large = (
        instructions(f"sqlite:///{tmp_path / f'{rows}.db'}", rows) for rows in (200, 20_000)
    )
    assert small > 1000
    assert abs(large - small) < small / 100


def test_claiming_and_publishing_look_up_by_an_index(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tuner.db'}"
    with open_store(url) as store, store.transaction(writes=False) as connection:
        named = " AND ".join(f"{name} = 1" for name in (*NAMED, "kernel_hash", "nvrtc_version"))
        for statement, index in (
            (f"SELECT owner FROM leases WHERE {named} AND source = 1", "autoindex_leases"),
            (
                f"SELECT count FROM misses WHERE {named[: named.index(' AND kernel_hash')]}",
                "misses",
            ),
            (
                "SELECT generation_id FROM publications WHERE device_key = 1 ORDER BY id DESC",
                "ix_publications_device",
            ),
        ):
            (line,) = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}").all()
            assert line.detail.startswith("SEARCH"), line
            assert index in line.detail, line
