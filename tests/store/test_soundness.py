"""`tuner db check` reads the rows: digests, orphans, impossible times, rows of other versions."""

from datetime import timedelta

import pytest
from sqlalchemy import Connection, text

from tests.databases import Databases
from tests.store.examples import CUBLAS, DEVICE_KEY, NOON, kernel, measurement, outcome, race
from tuner.store.engine import locate, make_engine, open_store
from tuner.store.generations import Generations
from tuner.store.health import StoreHealth, check_store
from tuner.store.retention import _lifted


def changed(url: str, *statements: str) -> None:
    """Change a database behind the back of its guards."""
    engine = make_engine(locate(url))
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        _unguarded(connection)
        with _lifted(connection):
            for statement in statements:
                connection.execute(text(statement))
    engine.dispose()


def _unguarded(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
        for name in ("generations", "publications"):
            connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {name}_no_update")
        return
    for name in ("generations", "publications"):
        connection.exec_driver_sql(f"ALTER TABLE {name} DISABLE TRIGGER {name}_no_update")


def fill(url: str) -> None:
    with open_store(url) as store:
        store.add([measurement(detail=str(n)) for n in range(8)])
        store.add(race("r", {CUBLAS: [200.0] * 8, kernel(): [150.0] * 8}))
        store.finish_shape(outcome(run_id=""))
        Generations(store).publish(DEVICE_KEY, "me@here")
    assert check_store(url) == check_store(url)
    assert check_store(url).notes == ()
    assert check_store(url).ok


@pytest.fixture
def filled(databases: Databases) -> str:
    """A sound database with rows of every table."""
    return databases.like("sound", fill)


def only_problem(health: StoreHealth) -> str:
    (problem,) = health.problems
    assert "\n" not in problem
    return problem


def test_a_row_that_was_changed_is_told_by_its_digest(filled: str) -> None:
    changed(filled, "UPDATE measurements SET samples_us = '[1.0]' WHERE id = 2")
    assert "rows 2 of measurements are not what their digest says" in only_problem(
        check_store(filled)
    )


def test_many_changed_rows_are_counted_and_some_are_named(filled: str) -> None:
    changed(filled, "UPDATE measurements SET worker = 'somebody'")
    assert "rows 1, 2, 3, 4, 5 and 5 more of measurements" in only_problem(check_store(filled))


def test_a_changed_outcome_is_told(filled: str) -> None:
    changed(filled, "UPDATE shape_outcomes SET trials = 7")
    assert "rows 1 of shape_outcomes are not what" in only_problem(check_store(filled))


@pytest.mark.parametrize("us", [0.001, 0.5, 1e13])
def test_a_time_that_no_card_can_have_taken_is_told(filled: str, us: float) -> None:
    with open_store(filled) as store:
        store.add([measurement(samples_us=(us,))])
    problem = only_problem(check_store(filled))
    assert "rows 11 of measurements tell of something no device can have done" in problem
    assert "`tuner export --format sqlite` leaves them out" in problem


def test_a_row_from_the_future_or_before_the_first_card_is_noted(filled: str) -> None:
    with open_store(filled) as store:
        store.add([measurement(measured_at=NOON + timedelta(days=9999))])
        store.add([measurement(measured_at=NOON - timedelta(days=9999))])
    health = check_store(filled)
    assert health.ok
    (note,) = health.notes
    assert "rows 11, 12 of measurements have a time that cannot be" in note


def test_rows_of_another_version_are_noted_and_kept(
    filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.config.KernelConfig.to_dict", lambda _: {"tile": "1x1"})
    with open_store(filled) as store:
        store.add([measurement()])
    monkeypatch.undo()
    health = check_store(filled)
    assert health.ok
    assert "rows 11 of measurements can only be read by another version" in health.notes[0]


def test_rows_of_a_device_that_is_not_known_are_orphans(filled: str) -> None:
    changed(filled, "DELETE FROM devices")
    problems = check_store(filled).problems
    assert len(problems) == 2
    assert all(f"has rows of the device {DEVICE_KEY}" in problem for problem in problems)


def test_rows_of_a_run_that_was_not_brought_along_are_noted(filled: str) -> None:
    with open_store(filled) as store:
        store.add([measurement(run_id="elsewhere")])
    health = check_store(filled)
    assert health.ok
    assert "1 rows of measurements name a run that was not brought" in health.notes[0]


def test_a_damaged_generation_and_one_that_is_gone_are_told(filled: str) -> None:
    blob = "BLOB" if locate(filled).path else "BYTEA"
    changed(filled, f"UPDATE generations SET body = CAST('x' AS {blob})")
    assert "is damaged" in only_problem(check_store(filled))
    changed(filled, "DELETE FROM generations")
    assert "`tuner publish` makes a new one" in only_problem(check_store(filled))
