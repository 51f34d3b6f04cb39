"""A deadline kills what hangs, and never what is merely large."""

import pytest

from tuner.device.deadlines import Deadlines, slow_launch_s
from tuner.hardware import PEAK_FLOP_PER_SM_US
from tuner.shape import GemmShape, Problem

SMALL = Problem(GemmShape(512, 512, 512), 132)
LARGEST = Problem(GemmShape(32768, 32768, 262144), 132)
"""Its operands take half of an H200's memory, and one launch about 0.7 s."""
LAUNCH_S = 0.7


def peak_s(problem: Problem) -> float:
    return problem.shape.flops / (PEAK_FLOP_PER_SM_US * problem.sms) / 1e6


@pytest.mark.parametrize("problem", [SMALL, LARGEST])
def test_a_slow_launch_is_one_at_a_tenth_of_the_peak_of_the_sms_in_use(problem: Problem) -> None:
    assert slow_launch_s(problem) == pytest.approx(10 * peak_s(problem))
    half = Problem(problem.shape, problem.sms // 2)
    assert slow_launch_s(half) == pytest.approx(2 * slow_launch_s(problem))


def test_where_launches_are_short_the_deadlines_are_the_plain_ones() -> None:
    d = Deadlines()
    assert d.to_prepare(SMALL) == pytest.approx(60.0, abs=0.01)
    assert d.to_verify(SMALL) == pytest.approx(8.0, abs=0.01)
    assert d.to_screen(SMALL) == pytest.approx(8.0, abs=0.01)
    assert d.to_race(SMALL, entrants=9, rounds=25) == pytest.approx(30 + 0.5 * 225, abs=0.01)


def test_the_largest_shape_of_an_h200_can_be_proved_screened_and_raced_in_time() -> None:
    d = Deadlines()
    fp64_product_s = 16 * peak_s(LARGEST)
    assert d.to_prepare(LARGEST) > 2 * LAUNCH_S + 2 * fp64_product_s
    assert d.to_verify(LARGEST) > 2 * (4 * LAUNCH_S)
    assert d.to_screen(LARGEST) > 2 * (16 * LAUNCH_S)
    cublaslt_s = 64 * (1 + 7 + 5) * LAUNCH_S
    rounds_s = 10 * (7 + 25 + 2) * LAUNCH_S
    assert d.to_race(LARGEST, entrants=10, rounds=25) > 1.5 * (cublaslt_s + rounds_s)
