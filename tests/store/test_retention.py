"""Pruning removes what nothing rests on, and says what; a copy is whole while others write."""

import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests.store.examples import (
    CUBLAS,
    DEVICE_KEY,
    NOON,
    PROBLEM,
    TOOLCHAIN,
    dependent,
    kernel,
    measurement,
    outcome,
    race,
    splitting,
)
from tuner.errors import StoreError
from tuner.hardware import DeviceIdentity
from tuner.shape import GemmShape, Problem
from tuner.store.backup import back_up
from tuner.store.engine import open_store
from tuner.store.failures import variant_failures
from tuner.store.generations import Generations
from tuner.store.health import check_store
from tuner.store.output import OutputError
from tuner.store.repository import Repository
from tuner.store.retention import prune
from tuner.store.transfer import stored_hash
from tuner.trial import PROTOCOL_HEAT, Contender, Measurement, Toolchain, TrialState

OLD = NOON - timedelta(days=100)
CUTOFF = NOON - timedelta(days=90)
OLDER_KERNEL = Toolchain("0ld", "12.8.93")
H200 = DeviceIdentity("NVIDIA H200", (9, 0), 132, 150_754_820_096, "GPU-1", "580.95", "13.1")
UNTUNED = Problem(GemmShape(64, 2112, 72), 132)


def stored(store: Repository, problem: Problem = PROBLEM) -> list[Measurement]:
    return store.attempts(problem, DEVICE_KEY, sources=["measured", "replay", "import"])


def won(name: str, us: float = 150.0, **changes: object) -> list[Measurement]:
    return race(name, {CUBLAS: [200.0] * 8, kernel(): [us] * 8}, **changes)  # type: ignore[arg-type]


def failed(state: TrialState, **changes: object) -> Measurement:
    return measurement(state=state, samples_us=(), detail=f"it was {state}", **changes)


def test_old_screenings_and_heats_go_and_recent_ones_stay(store: Repository) -> None:
    store.add([measurement(measured_at=OLD, detail=str(n)) for n in range(5)])
    store.add(won("heat", protocol=PROTOCOL_HEAT, measured_at=OLD))
    store.add([measurement(detail=str(n)) for n in range(3)])
    done = prune(store, CUTOFF)
    assert (done.screenings, done.races, done.total) == (7, 0, 7)
    assert [r.measured_at for r in stored(store)] == [NOON] * 3


def test_what_answers_a_shape_stays_however_old_and_the_answer_with_it(store: Repository) -> None:
    store.add(won("r", measured_at=OLD))
    store.add(won("slower", 180.0, measured_at=OLD - timedelta(days=1)))
    store.add([measurement()])
    before = store.best(PROBLEM, DEVICE_KEY)
    done = prune(store, CUTOFF)
    assert done.total == 0
    assert done.kept == {"in races that answers rest on": 4, "failures": 0}
    assert store.best(PROBLEM, DEVICE_KEY) == before is not None


def test_races_of_an_older_kernel_go_once_a_newer_one_answers(store: Repository) -> None:
    store.add(won("old", measured_at=OLD, toolchain=OLDER_KERNEL))
    assert prune(store, CUTOFF).races == 0
    store.add(won("new"))
    before = store.best(PROBLEM, DEVICE_KEY)
    assert prune(store, CUTOFF).races == 2
    assert store.best(PROBLEM, DEVICE_KEY) == before
    assert {r.toolchain for r in stored(store)} == {TOOLCHAIN}


@pytest.mark.parametrize(
    ("contender", "asked"),
    [(dependent(), {"plain": True}), (splitting(), {"numerics": "invariant"})],
)
def test_races_of_an_older_kernel_stay_while_only_they_answer_a_demand(
    store: Repository, contender: Contender, asked: dict[str, Any]
) -> None:
    store.add(won("old", measured_at=OLD, toolchain=OLDER_KERNEL))
    store.add(race("new", {CUBLAS: [200.0] * 8, contender: [140.0] * 8}))
    before = store.best(PROBLEM, DEVICE_KEY, **asked)
    assert prune(store, CUTOFF).races == 0
    assert store.best(PROBLEM, DEVICE_KEY, **asked) == before is not None
    store.add(won("newer"))
    assert prune(store, CUTOFF).races == 2


def test_replayed_races_go_once_a_real_card_answers(store: Repository) -> None:
    store.add([replace(row, source="replay") for row in won("played", measured_at=OLD)])
    store.add([measurement()])
    assert prune(store, CUTOFF).races == 0
    store.add(won("real", 160.0))
    assert prune(store, CUTOFF).races == 2


def test_what_a_published_generation_rests_on_stays(store: Repository) -> None:
    store.add(won("old", measured_at=OLD, toolchain=OLDER_KERNEL))
    pinned = Generations(store).publish(DEVICE_KEY, "me@here").id
    store.add(won("new"))
    Generations(store).publish(DEVICE_KEY, "me@here")
    assert prune(store, CUTOFF).total == 0
    assert Generations(store).snapshot(pinned).find(PROBLEM) is not None


def test_every_failure_stays_raced_or_not(store: Repository) -> None:
    failures = [s for s in TrialState if s is not TrialState.OK]
    store.add([failed(s, measured_at=OLD) for s in failures])
    raced = failed(TrialState.TIMEOUT, race="r", measured_at=OLD, toolchain=OLDER_KERNEL)
    store.add([raced, measurement()])
    assert prune(store, CUTOFF).total == 0
    assert len(stored(store)) == len(failures) + 2


def test_the_latest_outcome_of_each_kernel_stays_and_older_ones_go(store: Repository) -> None:
    for days in (3, 2, 1):
        store.finish_shape(outcome(finished_at=OLD - timedelta(days=days)))
    store.finish_shape(outcome(finished_at=OLD, toolchain=OLDER_KERNEL))
    store.finish_shape(outcome(problem=UNTUNED))
    assert prune(store, CUTOFF).outcomes == 2
    latest = store.outcome(PROBLEM, DEVICE_KEY, TOOLCHAIN, "measured")
    assert latest is not None
    assert latest.finished_at == OLD - timedelta(days=1)
    assert store.outcome(PROBLEM, DEVICE_KEY, OLDER_KERNEL, "measured") is not None


def test_runs_go_with_their_last_row_and_records_of_imports_stay(store: Repository) -> None:
    for id in ("bare", "used"):
        store.start_run(id, "tuner run", "measured", H200)
    store.start_run("import-1", "tuner import x", "import", H200)
    store.add([failed(TrialState.TIMEOUT, run_id="used", measured_at=OLD)])
    later = NOON + timedelta(days=36_500)
    assert prune(store, later).runs == 1
    with store.transaction(writes=False) as connection:
        left = connection.execute(text("SELECT id FROM runs ORDER BY id")).scalars().all()
    assert left == ["import-1", "used"]


def test_a_dry_run_says_the_same_and_removes_nothing(store: Repository) -> None:
    store.add([measurement(measured_at=OLD, detail=str(n)) for n in range(5)])
    store.add([*won("old", measured_at=OLD, toolchain=OLDER_KERNEL), *won("new")])
    before = stored_hash(store)
    said = prune(store, CUTOFF, dry_run=True)
    assert stored_hash(store) == before
    assert prune(store, CUTOFF) == said
    assert (said.screenings, said.races) == (5, 2)
    assert prune(store, CUTOFF).total == 0


@pytest.mark.parametrize("dry_run", [False, True])
def test_the_tables_are_append_only_again_after_pruning(store: Repository, dry_run: bool) -> None:
    store.add([measurement(measured_at=OLD), measurement()])
    store.finish_shape(outcome())
    prune(store, CUTOFF, dry_run)
    for statement in (
        "DELETE FROM measurements",
        "UPDATE measurements SET worker = 'x'",
        "DELETE FROM shape_outcomes",
    ):
        with (
            pytest.raises(StoreError, match="append-only"),
            store.transaction(writes=True) as connection,
        ):
            connection.execute(text(statement))


def test_the_newest_row_stays_so_that_no_number_is_given_twice(store: Repository) -> None:
    store.add([measurement(measured_at=OLD, detail=str(n)) for n in range(3)])
    before = store.watermark()
    assert prune(store, CUTOFF).screenings == 2
    assert store.watermark() == before


def test_a_pruned_database_is_sound(database_url: str) -> None:
    with open_store(database_url) as store:
        store.add([*won("old", measured_at=OLD, toolchain=OLDER_KERNEL), *won("new")])
        Generations(store).publish(DEVICE_KEY, "me@here")
        assert prune(store, CUTOFF).races == 2
    assert check_store(database_url).ok


def test_a_copy_made_while_a_writer_is_in_the_middle_holds_what_was_committed(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'tuner.db'}"
    with open_store(url) as store:
        store.add(won("r"))
        Generations(store).publish(DEVICE_KEY, "me@here")
        content = stored_hash(store)
        with closing(sqlite3.connect(tmp_path / "tuner.db", isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            writer.execute("INSERT INTO devices VALUES ('k', 'n', 1, '2026-01-01 00:00:00')")
            assert back_up(url, tmp_path / "copy.db")
            writer.execute("ROLLBACK")
    assert [p.name for p in tmp_path.glob("*copy*")] == ["copy.db"]
    with open_store(f"sqlite:///{tmp_path / 'copy.db'}") as copy:
        assert stored_hash(copy) == content
        assert [d.key for d in copy.devices()] == [DEVICE_KEY]
        assert Generations(copy).current(DEVICE_KEY) is not None


def test_a_copy_of_postgres_is_an_export(postgres_database_url: str, tmp_path: Path) -> None:
    with open_store(postgres_database_url) as store:
        store.add(won("r"))
        Generations(store).publish(DEVICE_KEY, "me@here")
        content = stored_hash(store)
    assert not back_up(postgres_database_url, tmp_path / "copy.db")
    with open_store(f"sqlite:///{tmp_path / 'copy.db'}") as copy:
        assert stored_hash(copy) == content
        assert len(Generations(copy).all()) == 1


def test_a_copy_over_the_database_itself_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tuner.db'}"
    with open_store(url) as store:
        store.add(won("r"))
    with pytest.raises(OutputError, match="is the database itself"):
        back_up(url, tmp_path / "tuner.db")
    assert check_store(url).rows["measurements"] == 2


def test_failures_are_counted_by_variant_state_and_kernel_over_all_shapes(
    store: Repository,
) -> None:
    store.add([measurement(), *won("r")])
    store.add(
        [
            failed(TrialState.TIMEOUT, contender=kernel(128, group=1)),
            failed(TrialState.TIMEOUT, contender=kernel(128, group=8)),
            failed(TrialState.TIMEOUT, problem=UNTUNED),
            failed(TrialState.CRASHED, contender=kernel(256)),
            failed(TrialState.WRONG_RESULT, toolchain=OLDER_KERNEL),
            failed(TrialState.UNSTABLE, contender=CUBLAS),
        ]
    )
    found = variant_failures(store)
    told = Counter({(f.state, f.variant.block_n, f.attempts, f.shapes): 1 for f in found})
    assert told == {
        (TrialState.TIMEOUT, 128, 3, 2): 1,
        (TrialState.CRASHED, 256, 1, 1): 1,
        (TrialState.WRONG_RESULT, 128, 1, 1): 1,
    }
    assert found[0].detail == "it was timeout"
    of_kernel = variant_failures(store, DEVICE_KEY, OLDER_KERNEL.kernel_hash)
    assert [f.state for f in of_kernel] == [TrialState.WRONG_RESULT]
    assert variant_failures(store, "sm90-114sm-80gb") == []
