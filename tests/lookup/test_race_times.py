"""A time that no device can reach never wins, whoever wrote the row."""

from dataclasses import replace

import pytest

from tests.lookup.test_choose import A, B, chosen, raced
from tests.store.examples import CUBLAS, PROBLEM
from tuner.hardware import PEAK_FLOP_PER_SM_US
from tuner.lookup import choose
from tuner.shape import GemmShape

SQUARE = replace(PROBLEM, shape=GemmShape(4096, 4096, 4096))
FLOOR_US = SQUARE.shape.flops / (SQUARE.sms * PEAK_FLOP_PER_SM_US)


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_row_faster_than_the_tensor_cores_never_wins(share: float) -> None:
    race = raced({CUBLAS: 200, A: FLOOR_US * share, B: 180}, problem=SQUARE)
    assert chosen([race]).config == B.config


def test_a_row_just_slower_than_the_tensor_cores_may_win() -> None:
    race = raced({CUBLAS: 200, A: FLOOR_US * 1.01, B: 180}, problem=SQUARE)
    assert chosen([race]).config == A.config


def test_an_impossible_cublas_makes_no_baseline() -> None:
    assert choose([raced({CUBLAS: FLOOR_US / 2, A: 180}, problem=SQUARE)]) is None


def test_fewer_sms_reach_less() -> None:
    half = replace(SQUARE, sms=SQUARE.sms // 2)
    race = raced({CUBLAS: 400, A: FLOOR_US * 1.5, B: 300}, problem=half)
    assert chosen([race]).config == B.config


def test_a_library_is_not_held_to_the_sm_budget_of_our_kernel() -> None:
    half = replace(SQUARE, sms=SQUARE.sms // 2)
    answer = chosen([raced({CUBLAS: FLOOR_US * 1.5, A: FLOOR_US * 3}, problem=half)])
    assert (answer.config, answer.use) == (A.config, "cublas")
