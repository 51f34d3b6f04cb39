"""Every fault of a candidate is named in its row, costs seconds, and the next shape is tuned."""

from pathlib import Path

import pytest

from benchmarks.faults import EXPECTED, MOST_DELAY_S, SHAPES, failed, fake, suffer, victim_of
from benchmarks.faulty_kernels import FAULTS, broken, broken_alone
from tuner.compiler.source import render
from tuner.search.space import trusted_config
from tuner.shape import Problem
from tuner.trial import ShapeState, TrialState


@pytest.mark.parametrize("fault", sorted(EXPECTED))
def test_a_fault_is_named_the_next_shape_is_tuned_and_no_row_is_lost(
    fault: str, tmp_path: Path
) -> None:
    with fake() as (identity, _, plant):
        row = suffer(fault, identity.sms, plant, tmp_path)
    assert (row["state"], row["tried"]) == (EXPECTED[fault], 1)
    assert (row["shape"], row["next_shape"]) == (ShapeState.TUNED, ShapeState.TUNED)
    assert (row["rows_told"], row["rows_lost"]) == (32, 0)
    assert not failed({**row, "delay_s": 1.0})


def test_a_fault_that_is_not_named_or_costs_too_much_fails() -> None:
    row = {
        "fault": "traps",
        "state": TrialState.CRASHED,
        "tried": 1,
        "shape": ShapeState.TUNED,
        "next_shape": ShapeState.TUNED,
        "delay_s": 0.5,
        "rows_lost": 0,
    }
    assert not failed(row)
    for change in (
        {"state": TrialState.OK},
        {"tried": 2},
        {"next_shape": ShapeState.NO_VALID_CONFIG},
        {"delay_s": None},
        {"delay_s": MOST_DELAY_S + 1},
        {"rows_lost": 1},
    ):
        assert failed({**row, **change})


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_planted_fault_damages_one_variant_alone(fault: str) -> None:
    file, sound, instead = FAULTS[fault]
    problem = Problem(SHAPES[0], 132)
    victim, other = victim_of(problem), trusted_config(problem).variant
    damaged = broken_alone(victim, victim, file, sound, instead)
    assert damaged == broken(victim, file, sound, instead) != render(victim)
    assert broken_alone(other, victim, file, sound, instead) == render(other)
