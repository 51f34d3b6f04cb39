"""Which configs of a problem are worth timing again."""

from datetime import timedelta

from tests.lookup.test_choose import NEW, A, B, C, both, raced
from tests.store.examples import CUBLAS, CUBLASLT, NOON, kernel
from tuner.lookup import choose
from tuner.lookup.leaders import leaders

D = kernel(192)
RACE = {CUBLAS: 100.0, CUBLASLT: 70.0, A: 90.0, B: 80.0, C: 120.0, D: 85.0}


def test_the_winner_comes_first_then_the_others_by_ratio_and_libraries_never() -> None:
    found = [c.contender for c in leaders(both(RACE, RACE), 4)]
    assert found == [B, D, A, C]
    answer = choose(both(RACE, RACE))
    assert answer is not None
    assert found[0].config == answer.config


def test_no_more_than_were_asked_for() -> None:
    assert [c.contender for c in leaders(both(RACE, RACE), 2)] == [B, D]


def test_what_ties_with_the_winner_comes_before_what_is_slower() -> None:
    times = {CUBLAS: 100.0, A: 80.0, B: 80.05, D: 90.0}
    found = [c.contender for c in leaders(both(times, times), 3)]
    assert set(found[:2]) == {A, B}
    assert found[2] == D


def test_a_config_that_loses_to_cublas_comes_after_all_that_do_not() -> None:
    hot, cool = {CUBLAS: 100.0, A: 60.0, B: 95.0}, {CUBLAS: 100.0, A: 101.0, B: 95.0}
    assert [c.contender for c in leaders(both(hot, cool), 2)] == [B, A]


def test_the_newest_kernel_speaks() -> None:
    later = NOON + timedelta(days=1)
    times = {CUBLAS: 100.0, A: 50.0}
    new = [
        raced(times, race.protocol, f"later {race.protocol}", toolchain=NEW, measured_at=later)
        for race in both(RACE, RACE)
    ]
    assert [c.contender for c in leaders([*both(RACE, RACE), *new], 4)] == [A]


def test_without_a_config_and_cublas_in_one_race_nobody_leads() -> None:
    assert leaders([], 4) == []
    assert leaders([raced({A: 50.0}), raced({CUBLAS: 50.0}, name="alone")], 4) == []


def test_times_of_a_changed_measuring_method_are_not_compared() -> None:
    changed = raced(RACE, "graph-coldl2-hot/2")
    assert leaders([changed], 4) == []
    assert choose([changed]) is None
