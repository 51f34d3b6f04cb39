"""A reader that follows a database is told every change once, in whatever order it is committed."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.store.examples import CUBLAS, DEVICE_KEY, NOON, PROBLEM, TOOLCHAIN, kernel, race
from tuner.shape import GemmShape, Problem
from tuner.store import changes
from tuner.store.changes import ChangeFeed, all_problems, toolchains
from tuner.store.engine import open_store
from tuner.store.generations import Generations
from tuner.store.repository import Repository
from tuner.store.rows import measurement_row
from tuner.trial import PROTOCOL_HEAT, PROTOCOL_SCREEN, Measurement, ShapeOutcome, ShapeState


def problem(m: int) -> Problem:
    return replace(PROBLEM, shape=GemmShape(m, 2112, 72))


def raced(m: int, **changed: Any) -> list[Measurement]:
    return race(f"race of {m}", {CUBLAS: [200.0], kernel(): [150.0]}, problem=problem(m), **changed)


def told(feed: ChangeFeed, store: Repository) -> set[int]:
    """Ms of the problems with new races, looking until all is told."""
    found: set[int] = set()
    while True:
        change = feed.look(store)
        assert not change.whole
        found |= {p.shape.m for _, p in change.raced}
        if not change.more:
            return found


def test_first_look_voids_all_and_later_ones_tell_each_new_race_once(store: Repository) -> None:
    store.add(raced(1))
    feed = ChangeFeed()
    assert feed.look(store).whole
    assert told(feed, store) == set()
    store.add(raced(2) + raced(3))
    assert told(feed, store) == {2, 3}
    assert [told(feed, store) for _ in range(4)] == [set()] * 4
    assert {p.shape.m for _, p in all_problems(store)} == {1, 2, 3}
    assert toolchains(store, TOOLCHAIN.kernel_hash) == [TOOLCHAIN]


def test_screenings_and_heats_change_no_answer_and_are_not_told(store: Repository) -> None:
    feed = ChangeFeed()
    feed.look(store)
    store.add(raced(1, protocol=PROTOCOL_HEAT))
    store.add([replace(row, race=None, protocol=PROTOCOL_SCREEN) for row in raced(2)])
    assert told(feed, store) == set()


def test_outcomes_and_publications_are_told(store: Repository) -> None:
    store.add(raced(1))
    feed = ChangeFeed()
    feed.look(store)
    store.finish_shape(
        ShapeOutcome(problem(9), DEVICE_KEY, "NVIDIA H200", TOOLCHAIN, ShapeState.NO_VALID_CONFIG)
    )
    Generations(store).publish(DEVICE_KEY, "a test")
    change = feed.look(store)
    assert change.ended == {(DEVICE_KEY, problem(9))}
    assert not change.raced
    assert change.published
    assert not feed.look(store).published


def test_many_rows_are_told_in_portions(store: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "CHUNK", 3)
    feed = ChangeFeed()
    feed.look(store)
    store.add([row for m in range(1, 8) for row in raced(m)])
    assert feed.look(store).more
    assert told(feed, store) | {1} == set(range(1, 8))


def test_another_database_voids_all_even_with_as_many_rows_or_fewer(
    tmp_path: Path,
) -> None:
    feed = ChangeFeed()
    urls = [f"sqlite:///{tmp_path / name}.db" for name in ("one", "other", "empty")]
    with open_store(urls[0]) as one, open_store(urls[1]) as other, open_store(urls[2]) as empty:
        one.add(raced(1))
        other.add(raced(2))
        assert [feed.look(store).whole for store in (one, one, other, other)] == [
            *(True, False),
            *(True, False),
        ]
        assert feed.look(empty).whole
        empty.add(raced(3))
        assert told(feed, empty) == {3}


def test_database_that_fails_leaves_what_was_seen_as_it_was(store: Repository) -> None:
    class Broken(Exception):
        pass

    feed = ChangeFeed()
    feed.look(store)
    store.add(raced(1))
    with pytest.MonkeyPatch.context() as patch:

        def fails(*_: object) -> None:
            raise Broken

        patch.setattr(changes._Cursor, "_settle", fails)
        with pytest.raises(Broken):
            feed.look(store)
    assert told(feed, store) == {1}


def test_row_committed_behind_later_ones_on_postgres_is_told_all_the_same(
    postgres_database_url: str,
) -> None:
    with open_store(postgres_database_url) as store, psycopg.connect(postgres_database_url) as slow:
        store.add(raced(1))
        feed = ChangeFeed()
        feed.look(store)
        insert(slow, raced(2)[0])
        store.add(raced(3))
        assert told(feed, store) == {3}
        assert [told(feed, store) for _ in range(3)] == [set()] * 3
        slow.commit()
        assert told(feed, store) == {2}
        assert [told(feed, store) for _ in range(4)] == [set()] * 4


def test_row_committed_behind_those_of_the_first_look_on_postgres_voids_all(
    postgres_database_url: str,
) -> None:
    with open_store(postgres_database_url) as store, psycopg.connect(postgres_database_url) as slow:
        store.add(raced(1))
        insert(slow, raced(2)[0])
        store.add(raced(3))
        feed = ChangeFeed()
        assert feed.look(store).whole
        assert told(feed, store) == set()
        slow.commit()
        assert feed.look(store).whole
        assert [told(feed, store) for _ in range(4)] == [set()] * 4


def insert(connection: "psycopg.Connection[Any]", row: Measurement) -> None:
    """Add a row in a transaction that is left open."""
    values = measurement_row(replace(row, measured_at=NOON + timedelta(seconds=1)))
    names, marks = ", ".join(values), ", ".join(["%s"] * len(values))
    query = f"INSERT INTO measurements ({names}) VALUES ({marks})"
    connection.execute(query.encode(), list(values.values()))
