"""A search ends by its budget, when nothing is left to propose, or on a plateau."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.device.fake import FakeDevice
from tests.device.recordings import recorded_rows, write_recording
from tests.study.cases import PROBLEM, SMALL, screened, tools, variant
from tests.study.doubles import MemoryRows
from tuner.device.replay import RecordedCompiler, ReplayDevice
from tuner.study import Budget, Tools, tune
from tuner.study.stopping import PLATEAU_GAIN, Plateau
from tuner.trial import ShapeState


def test_a_plateau_is_reached_after_as_many_trials_without_a_gain_as_patience_allows() -> None:
    plateau = Plateau(3)
    for us in (10.0, 11.0, None):
        plateau.observe(us)
        assert not plateau.is_reached
    plateau.observe(10.0)
    assert plateau.is_reached


def test_less_than_a_tie_is_no_gain_and_more_ends_the_plateau() -> None:
    plateau = Plateau(2)
    for us in (100.0, 100.0 * (1 - PLATEAU_GAIN / 2), 100.0 * (1 - PLATEAU_GAIN / 2)):
        plateau.observe(us)
    assert plateau.is_reached
    plateau.observe(99.0)
    assert not plateau.is_reached


def test_without_patience_there_is_no_plateau() -> None:
    plateau = Plateau(None)
    for _ in range(1000):
        plateau.observe(1.0)
    assert not plateau.is_reached


def test_a_search_that_begins_anew_is_patient_again_and_remembers_the_best() -> None:
    plateau = Plateau(1)
    plateau.observe(1.0)
    plateau.observe(2.0)
    plateau.begin_anew()
    assert not plateau.is_reached
    plateau.observe(1.5)
    assert plateau.is_reached


@given(st.lists(st.floats(1, 1000), min_size=1, max_size=40), st.integers(1, 5))
def test_times_that_keep_falling_clearly_never_reach_a_plateau(
    steps: list[float], patience: int
) -> None:
    falling = [1.0]
    for step in steps:
        falling.append(falling[-1] / (1 + step / 100))
    assert all(later < 0.995 * earlier for earlier, later in pairwise(falling))
    plateau = Plateau(patience)
    for us in falling:
        plateau.observe(us)
    assert not plateau.is_reached


def test_a_patient_search_measures_less_and_still_searches_launches() -> None:
    rows = MemoryRows()
    device = FakeDevice()
    outcome = tune(PROBLEM, tools(device, rows), replace(SMALL, trials=96, patience=8))
    attempts = screened(rows.rows)
    assert outcome.state is ShapeState.TUNED
    assert 16 <= len(attempts) < 96
    variants = [variant(row) for row in attempts]
    assert len(set(variants)) < len(variants)


def test_a_search_ends_when_nothing_is_left_to_propose(tmp_path: Path) -> None:
    recording = write_recording(tmp_path / "small.jsonl.gz", recorded_rows(PROBLEM, count=9))
    device, rows = ReplayDevice(recording), MemoryRows()
    replay = Tools(device, RecordedCompiler(device), rows, "run-1", "replay", menu=device)
    outcome = tune(PROBLEM, replay, Budget(trials=96))
    assert outcome.state is ShapeState.TUNED
    assert outcome.counts == {"ok": 9, "compile_refused": 1, "wrong_result": 1}
