"""What every database must do alike."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from math import inf, nan
from typing import Any

import pytest
from sqlalchemy import create_engine, insert, select, text
from sqlalchemy.exc import DatabaseError

from tests.store.examples import (
    CUBLAS,
    CUBLASLT,
    DEVICE_KEY,
    NOON,
    PROBLEM,
    TOOLCHAIN,
    config,
    dependent,
    kernel,
    measurement,
    outcome,
    race,
    splitting,
)
from tuner.config import KernelConfig
from tuner.errors import StoreError
from tuner.hardware import DeviceIdentity
from tuner.shape import MAX_EXTENT, GemmShape, Problem
from tuner.store.best_answers import best_answers
from tuner.store.engine import locate
from tuner.store.repository import Repository, StoredDevice
from tuner.store.rows import measurement_row
from tuner.store.tables import measurements, runs, shape_outcomes
from tuner.trial import (
    PROTOCOL_COOL,
    PROTOCOL_HOT,
    Conditions,
    Contender,
    Measurement,
    ShapeState,
    Toolchain,
    TrialState,
)

ALL = ("measured", "replay", "import")


def stored(store: Repository, problem: Problem = PROBLEM) -> list[Measurement]:
    return store.attempts(problem, DEVICE_KEY, sources=ALL)


def test_every_field_of_a_measurement_comes_back(store: Repository) -> None:
    row = Measurement(
        problem=Problem(GemmShape(1, MAX_EXTENT, 64), 66, "bf16", "tn", "col", "none"),
        device_key=DEVICE_KEY,
        device_name="NVIDIA H200 \N{SNOWMAN}",
        protocol=PROTOCOL_COOL,
        contender=kernel(256, group=3),
        toolchain=Toolchain("kernel hash", "13.5.1"),
        state=TrialState.OK,
        samples_us=(0.1, 1 / 3, 1e-5, 123456.789),
        detail="two\nlines",
        conditions=Conditions("580.95", "13.1.0.3", "GPU-1", 1980, 699.9, 63, 2**63 - 1),
        source="replay",
        run_id="run-7",
        race="race-9",
        worker="node-1",
        measured_at=datetime(2026, 3, 1, 23, 59, 59, 999999, tzinfo=UTC),
    )
    store.add([row])
    assert stored(store, row.problem) == [row]


@pytest.mark.parametrize("contender", [CUBLAS, CUBLASLT])
def test_a_library_and_its_algorithm_come_back(store: Repository, contender: Contender) -> None:
    store.add([measurement(contender=contender)])
    assert [row.contender for row in stored(store)] == [contender]


def test_what_could_not_be_read_comes_back_as_none(store: Repository) -> None:
    store.add([measurement(conditions=Conditions(), race=None)])
    (row,) = stored(store)
    assert (row.conditions, row.race) == (Conditions(), None)


@pytest.mark.parametrize("state", [s for s in TrialState if s is not TrialState.OK])
def test_a_failure_is_kept_with_its_reason_and_no_samples(
    store: Repository, state: TrialState
) -> None:
    store.add([measurement(state=state, samples_us=(), detail="spills 48 bytes")])
    (row,) = stored(store)
    assert (row.state, row.samples_us, row.detail) == (state, (), "spills 48 bytes")
    assert row.median_us is None


@pytest.mark.parametrize("samples", [(nan,), (160.0, inf), (160.0, 0.0), (-1.0,), ()])
def test_an_ok_row_without_usable_times_is_stored_as_implausible(
    store: Repository, samples: tuple[float, ...]
) -> None:
    store.add([measurement(samples_us=samples)])
    (row,) = stored(store)
    assert (row.state, row.samples_us) == (TrialState.IMPLAUSIBLE, ())
    assert "not positive finite" in row.detail


def test_a_failure_whose_timer_gave_nan_is_stored_without_it(store: Repository) -> None:
    store.add([measurement(state=TrialState.UNSTABLE, samples_us=(nan, 3.0))])
    (row,) = stored(store)
    assert (row.state, row.samples_us) == (TrialState.UNSTABLE, ())


def test_a_reading_that_is_no_number_is_stored_as_unknown(store: Repository) -> None:
    store.add([measurement(conditions=Conditions(power_w=nan))])
    assert stored(store)[0].conditions.power_w is None


def test_text_that_no_database_holds_is_replaced_and_can_be_asked_for(store: Repository) -> None:
    store.add([measurement(detail="a\x00b\udc80c", device_name="H\x00200")])
    (row,) = stored(store)
    assert (row.detail, row.device_name) == ("a\ufffdb\ufffdc", "H\ufffd200")
    assert store.best(PROBLEM, "\x00") is None
    assert store.attempts(PROBLEM, "\ud800", sources=ALL) == []
    assert store.shapes("x" * 4000) == []


def test_a_time_in_another_zone_comes_back_in_utc(store: Repository) -> None:
    there = NOON.astimezone(timezone(timedelta(hours=-5)))
    store.add([measurement(measured_at=there)])
    (row,) = stored(store)
    assert row.measured_at == NOON
    assert row.measured_at.tzinfo is UTC


def test_rows_come_oldest_first_whatever_order_they_were_stored_in(store: Repository) -> None:
    rows = [measurement(detail=str(i), measured_at=NOON + timedelta(seconds=i)) for i in range(4)]
    store.add([rows[2], rows[0]])
    store.add([rows[3], rows[1]])
    assert stored(store) == rows


def test_the_same_row_told_twice_is_one_row(store: Repository) -> None:
    store.add([measurement(), measurement()])
    store.add([measurement(), measurement(samples_us=(1.0,))])
    assert [row.samples_us for row in stored(store)] == [(166.5, 165.25, 167.0), (1.0,)]


def test_of_a_batch_with_one_bad_row_nothing_is_stored(store: Repository) -> None:
    naive = measurement(measured_at=datetime(2026, 1, 1))
    with pytest.raises(StoreError, match="names no time zone"):
        store.add([measurement(), naive])
    with pytest.raises(StoreError, match="throttle_reasons is beyond 64 bits"):
        store.add([measurement(), measurement(conditions=Conditions(throttle_reasons=2**64))])
    assert stored(store) == []


def test_storing_nothing_is_nothing(store: Repository) -> None:
    store.add([])
    assert store.watermark() == (0, 0)


@pytest.mark.parametrize(
    "other",
    [
        replace(PROBLEM, shape=GemmShape(4097, 2112, 72)),
        replace(PROBLEM, shape=GemmShape(4096, 2113, 72)),
        replace(PROBLEM, shape=GemmShape(4096, 2112, 7169)),
        replace(PROBLEM, sms=131),
        replace(PROBLEM, dtype="fp16"),
        replace(PROBLEM, layout="nn"),
        replace(PROBLEM, d="col"),
        replace(PROBLEM, epilogue="bias"),
    ],
)
def test_a_problem_that_differs_in_one_thing_shares_no_rows(
    store: Repository, other: Problem
) -> None:
    store.add(race("r", {kernel(): [9.0], CUBLAS: [10.0]}))
    store.finish_shape(outcome())
    assert len(stored(store)) == 2
    assert stored(store, other) == []
    assert store.best(other, DEVICE_KEY) is None
    assert store.latest_outcome(other, DEVICE_KEY) is None


def test_attempts_can_be_asked_for_by_source_and_toolchain(store: Repository) -> None:
    old = Toolchain("0ld", "13.0.88")
    store.add([measurement(source="replay"), measurement(source="measured", toolchain=old)])
    store.add([measurement(source="import", toolchain=Toolchain("5eed", "12.9.1"))])
    real = store.attempts(PROBLEM, DEVICE_KEY, sources=["measured", "import"])
    assert [row.source for row in real] == ["measured", "import"]
    current = store.attempts(PROBLEM, DEVICE_KEY, sources=ALL, toolchain=TOOLCHAIN)
    assert [row.source for row in current] == ["replay"]
    assert store.attempts(PROBLEM, DEVICE_KEY, sources=[]) == []


def test_numbers_of_any_length_are_answered_with_nothing(store: Repository) -> None:
    for sms in (2**63, 10**300, -(10**300)):
        vast = replace(PROBLEM, sms=sms)
        assert store.best(vast, DEVICE_KEY) is None
        assert store.failures(vast, DEVICE_KEY) == {}
        with pytest.raises(StoreError, match="sms is beyond 64 bits"):
            store.add([measurement(problem=vast)])


@pytest.mark.parametrize("table", ["measurements", "shape_outcomes"])
def test_the_database_itself_refuses_to_change_history(
    store: Repository, database_url: str, table: str
) -> None:
    store.add([measurement()])
    store.finish_shape(outcome())
    engine = create_engine(locate(database_url).url)
    for change in (f"UPDATE {table} SET state = 'ok'", f"DELETE FROM {table}"):
        with (
            engine.connect() as connection,
            pytest.raises(DatabaseError, match=f"{table} is append-only"),
        ):
            connection.execute(text(change))
    engine.dispose()
    assert stored(store) == [measurement()]
    assert store.shapes(DEVICE_KEY) == [outcome()]


def test_the_database_itself_refuses_an_ok_row_without_a_time(
    store: Repository, database_url: str
) -> None:
    row = {**measurement_row(measurement()), "median_us": None}
    engine = create_engine(locate(database_url).url)
    with engine.connect() as connection, pytest.raises(DatabaseError, match="ok_has_time"):
        connection.execute(insert(measurements).values(row))
    engine.dispose()
    assert stored(store) == []


def test_derived_columns_are_filled_in(store: Repository, database_url: str) -> None:
    contenders = (kernel(), CUBLASLT, CUBLAS, dependent(), splitting())
    store.add([measurement(contender=contender) for contender in contenders])
    engine = create_engine(locate(database_url).url)
    columns = (measurements.c.numerics, measurements.c.median_us, measurements.c.sample_count)
    with engine.connect() as connection:
        found = connection.execute(select(*columns).order_by(measurements.c.id)).all()
        hashes = connection.execute(select(measurements.c.config_hash)).scalars().all()
    engine.dispose()
    assert [tuple(row) for row in found] == [
        ("invariant", 166.5, 3),
        ("deterministic", 166.5, 3),
        ("deterministic", 166.5, 3),
        ("invariant", 166.5, 3),
        ("deterministic", 166.5, 3),
    ]
    assert len(set(hashes)) == 5


def test_rows_of_a_later_version_stay_stored_and_are_left_out(
    store: Repository, database_url: str
) -> None:
    mine = measurement_row(measurement(race="r"))
    other_config = {**mine, "digest": "1", "config": '{"block_q":128}'}
    other_state = {**mine, "digest": "2", "state": "melted"}
    engine = create_engine(locate(database_url).url)
    with engine.begin() as connection:
        connection.execute(insert(measurements), [mine, other_config, other_state])
        later = {"digest": "3", "state": "postponed", **_outcome_columns()}
        connection.execute(insert(shape_outcomes).values(later))
    engine.dispose()
    assert stored(store) == [measurement(race="r")]
    assert [len(r.measurements) for r in store.races(PROBLEM, DEVICE_KEY)] == [1]
    assert store.failures(PROBLEM, DEVICE_KEY) == {}
    assert store.latest_outcome(PROBLEM, DEVICE_KEY) is None
    assert store.shapes(DEVICE_KEY) == []
    assert store.watermark() == (3, 1)


def _outcome_columns() -> dict[str, object]:
    from tuner.store.rows import outcome_row

    row = outcome_row(outcome())
    return {name: row[name] for name in row if name not in ("digest", "state")}


def test_every_field_of_an_outcome_comes_back(store: Repository) -> None:
    ended = outcome(state=ShapeState.NO_VALID_CONFIG, detail="all spilled", source="replay")
    store.finish_shape(ended)
    assert store.outcome(PROBLEM, DEVICE_KEY, TOOLCHAIN, "replay") == ended
    assert store.outcome(PROBLEM, DEVICE_KEY, TOOLCHAIN, "measured") is None
    assert store.outcome(PROBLEM, DEVICE_KEY, Toolchain("other", "13.0.88"), "replay") is None
    assert store.outcome(PROBLEM, "sm90-132sm-80gb", TOOLCHAIN, "replay") is None


def test_the_latest_outcome_counts_and_a_real_one_before_a_replayed_one(store: Repository) -> None:
    first = outcome(state=ShapeState.NO_VALID_CONFIG)
    second = outcome(finished_at=NOON + timedelta(hours=1))
    replayed = outcome(finished_at=NOON + timedelta(hours=2), source="replay")
    for ended in (second, first, replayed):
        store.finish_shape(ended)
    assert store.outcome(PROBLEM, DEVICE_KEY, TOOLCHAIN, "measured") == second
    assert store.latest_outcome(PROBLEM, DEVICE_KEY) == second
    assert store.shapes(DEVICE_KEY) == [second]


def test_shapes_are_listed_in_order_and_in_pages(store: Repository) -> None:
    ended = [
        outcome(problem=Problem(GemmShape(m, n, 64), 132)) for m in (1, 16, 128) for n in (8, 64)
    ]
    for one in reversed(ended):
        store.finish_shape(one)
    assert store.shapes(DEVICE_KEY) == ended
    assert store.shapes(DEVICE_KEY, limit=2) == ended[:2]
    assert store.shapes(DEVICE_KEY, limit=2, offset=5) == ended[5:]
    assert store.shapes("sm90-114sm-80gb") == []


def test_devices_are_listed_with_the_problems_tuned_on_them(store: Repository) -> None:
    assert store.devices() == []
    store.add([measurement(device_key="sm90-114sm-80gb", device_name="NVIDIA H100 PCIe")])
    store.finish_shape(outcome())
    store.finish_shape(outcome(run_id="run-2"))
    store.finish_shape(outcome(problem=Problem(GemmShape(8, 8, 8), 64)))
    store.finish_shape(
        outcome(problem=Problem(GemmShape(9, 8, 8), 64), state=ShapeState("unsupported"))
    )
    assert store.devices() == [
        StoredDevice("sm90-114sm-80gb", "NVIDIA H100 PCIe", 114, 0),
        StoredDevice(DEVICE_KEY, "NVIDIA H200", 132, 2),
    ]


def test_failures_are_counted_by_state(store: Repository) -> None:
    old = Toolchain("0ld", "13.0.88")
    store.add([measurement()])
    for index in range(3):
        refused = measurement(
            state=TrialState.COMPILE_REFUSED, samples_us=(), contender=kernel(group=index + 1)
        )
        store.add([refused])
    store.add([measurement(state=TrialState.TIMEOUT, samples_us=(), toolchain=old)])
    assert store.failures(PROBLEM, DEVICE_KEY) == {
        TrialState.COMPILE_REFUSED: 3,
        TrialState.TIMEOUT: 1,
    }
    assert store.failures(PROBLEM, DEVICE_KEY, toolchain=old) == {TrialState.TIMEOUT: 1}


def test_a_run_is_noted_from_its_start_to_its_exit_code(
    store: Repository, database_url: str
) -> None:
    device = DeviceIdentity("NVIDIA H200", (9, 0), 132, 143_771 * 2**20, "GPU-1", "580", "13.1")
    store.start_run("run-1", "tuner run --shapes a.txt", "measured", device)
    store.start_run("run-1", "something else", "measured", device)
    store.start_run("run-2", "tuner run --shapes b.txt", "replay", device)
    store.finish_run("run-1", 3)
    engine = create_engine(locate(database_url).url)
    with engine.connect() as connection:
        first, second = connection.execute(select(runs).order_by(runs.c.id)).mappings().all()
    engine.dispose()
    assert (first["command"], first["exit_code"]) == ("tuner run --shapes a.txt", 3)
    assert (first["device_key"], first["gpu_uuid"]) == (DEVICE_KEY, "GPU-1")
    assert first["started_at"] <= first["finished_at"]
    assert (second["exit_code"], second["finished_at"], second["source"]) == (None, None, "replay")
    assert store.devices() == [StoredDevice(DEVICE_KEY, "NVIDIA H200", 132, 0)]


def test_the_watermark_grows_with_every_row_and_outcome(store: Repository) -> None:
    marks = [store.watermark()]
    store.add([measurement()])
    marks.append(store.watermark())
    store.finish_shape(outcome())
    marks.append(store.watermark())
    assert marks == [(0, 0), (1, 0), (1, 1)]


def test_races_hold_the_rows_that_were_timed_together(store: Repository) -> None:
    hot = race("a", {kernel(): [9.0, 9.0], CUBLAS: [10.0, 10.0]})
    cool = race("a", {kernel(): [8.0], CUBLAS: [9.0]}, PROTOCOL_COOL, source="replay")
    store.add([*hot, measurement(), *cool])
    found = {(r.id, r.protocol, r.source): r.measurements for r in store.races(PROBLEM, DEVICE_KEY)}
    assert found == {
        ("a", PROTOCOL_HOT, "measured"): tuple(hot),
        ("a", PROTOCOL_COOL, "replay"): tuple(cool),
    }
    (only,) = store.races(PROBLEM, DEVICE_KEY, PROTOCOL_COOL)
    assert only.measurements == tuple(cool)


def test_the_best_config_is_found_among_raced_ones(store: Repository) -> None:
    times = {kernel(64): [9.0] * 9, kernel(256): [8.0] * 9, CUBLAS: [10.0] * 9}
    store.add([*race("h", times), *race("c", times, PROTOCOL_COOL)])
    # A screening is quick and flattering; it proves nothing against cuBLAS.
    store.add([measurement(contender=kernel(128), samples_us=(1.0,))])
    best = store.best(PROBLEM, DEVICE_KEY)
    assert best is not None
    assert best.config == config(256)
    assert best.speedup == pytest.approx(1.25)
    assert (best.problem, best.device_name, best.source) == (PROBLEM, "NVIDIA H200", "measured")


def test_the_best_plain_and_the_best_invariant_config_can_be_asked_for(store: Repository) -> None:
    times = {splitting(): 6.0, dependent(): 7.0, kernel(256): 8.0, kernel(64): 9.0, CUBLAS: 10.0}
    rounds = {contender: [us] * 9 for contender, us in times.items()}
    store.add([*race("h", rounds), *race("c", rounds, PROTOCOL_COOL)])

    def best(**asked: Any) -> KernelConfig | None:
        answer = store.best(PROBLEM, DEVICE_KEY, **asked)
        return answer.config if answer else None

    assert best() == best(plain=True) == splitting().config
    assert best(numerics="invariant") == dependent().config
    assert best(numerics="invariant", plain=True) == config(256)
    assert best(protocol=PROTOCOL_HOT, numerics="invariant", plain=True) == config(256)


def test_every_best_plain_answer_is_read_in_one_go(store: Repository) -> None:
    other = Problem(GemmShape(4096, 2112, 64), 132)
    times = {dependent(): [150.0] * 9, kernel(64): [160.0] * 9, CUBLAS: [200.0] * 9}
    store.add([*race("h", times), *race("c", times, PROTOCOL_COOL)])
    store.add(race("o", {dependent(): [150.0] * 9, CUBLAS: [200.0] * 9}, problem=other))
    with store.transaction(writes=False) as connection:
        every = {best.problem: best.config for best, _ in best_answers(connection, DEVICE_KEY)}
        plain = list(best_answers(connection, DEVICE_KEY, plain=True))
    assert every == {PROBLEM: dependent().config, other: dependent().config}
    ((best, under),) = plain
    assert (best.problem, best.config) == (PROBLEM, config(64))
    assert {name: one.config for name, one in under.items()} == {
        PROTOCOL_HOT: config(64),
        PROTOCOL_COOL: config(64),
    }


def test_a_better_result_wins_whether_it_was_stored_first_or_last(store: Repository) -> None:
    for first, second in (("worse", "better"), ("better", "worse")):
        problem = Problem(GemmShape(8, 8, 8 * len(first)), 132)
        for name in (first, second):
            ours = {"worse": kernel(64), "better": kernel(256)}[name]
            us = {"worse": 9.5, "better": 8.0}[name]
            store.add(race(name + first, {ours: [us] * 7, CUBLAS: [10.0] * 7}, problem=problem))
        best = store.best(problem, DEVICE_KEY)
        assert best is not None
        assert best.config == config(256)


def test_threads_may_share_a_repository(store: Repository) -> None:
    def work(number: int) -> int:
        for step in range(5):
            store.add([measurement(worker=f"{number}", run_id=f"{step}")])
            store.best(PROBLEM, DEVICE_KEY)
        return len(stored(store))

    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(work, range(8)))
    assert max(counts) <= 40
    assert len(stored(store)) == 40
