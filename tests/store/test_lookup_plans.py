"""A look-up reads the rows of its problem and no others, however many there are."""

import pytest
from sqlalchemy import Select, text
from sqlalchemy.dialects import sqlite

from tests.store.examples import CUBLAS, DEVICE_KEY, PROBLEM, TOOLCHAIN, kernel, measurement, race
from tuner.shape import GemmShape, Problem
from tuner.store import queries
from tuner.store.engine import locate, make_engine, open_store
from tuner.store.tables import PROBLEM as NAMED

EQUAL = " AND ".join(f"{name}=?" for name in NAMED)


@pytest.mark.parametrize(
    ("query", "plan"),
    [
        (
            queries.raced(PROBLEM, DEVICE_KEY, None),
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
def test_a_look_up_uses_an_index(tmp_path: object, query: Select[tuple[object]], plan: str) -> None:
    url = f"sqlite:///{tmp_path}/tuner.db"
    with open_store(url) as store:
        for m in range(1, 40):
            problem = Problem(GemmShape(m, 8, 8), 132)
            store.add([measurement(problem=problem, worker=str(i)) for i in range(20)])
        store.add(race("r", {kernel(): [9.0], CUBLAS: [10.0]}))
    engine = make_engine(locate(url))
    said = query.compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True})
    for statistics in ("SELECT 1", "ANALYZE"):
        with engine.begin() as connection:
            connection.execute(text(statistics))
            rows = connection.execute(text(f"EXPLAIN QUERY PLAN {said}")).all()
        assert plan in [row.detail for row in rows]
        assert not any(row.detail.startswith("SCAN measurements") for row in rows)
    engine.dispose()


def test_on_postgres_the_best_look_up_uses_the_index_of_races(postgres_database_url: str) -> None:
    with open_store(postgres_database_url) as store:
        for m in range(1, 40):
            problem = Problem(GemmShape(m, 8, 8), 132)
            store.add([measurement(problem=problem, worker=str(i)) for i in range(20)])
        store.add(race("r", {kernel(): [9.0], CUBLAS: [10.0]}))
    engine = make_engine(locate(postgres_database_url))
    said = queries.raced(PROBLEM, DEVICE_KEY, None).compile(
        dialect=engine.dialect, compile_kwargs={"literal_binds": True}
    )
    with engine.connect() as connection:
        connection.execute(text("ANALYZE"))
        plan = connection.execute(text(f"EXPLAIN {said}")).scalars().all()
    engine.dispose()
    assert any("ix_measurements_race" in line for line in plan), plan
