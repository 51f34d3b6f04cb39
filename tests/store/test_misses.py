"""Misses are counted once however many services count, and ranked by what tuning would save."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.store.examples import DEVICE_KEY, PROBLEM, TOOLCHAIN, outcome
from tuner.lookup.cost_model import H200
from tuner.shape import GemmShape, Problem
from tuner.store.misses import Misses, MissKey, Tally, is_untried, most_promising
from tuner.store.repository import Repository
from tuner.trial import ShapeState

SMALL = Problem(GemmShape(64, 64, 64), 132)
LARGE = Problem(GemmShape(8192, 8192, 8192), 132)
HUGE = Problem(GemmShape(2**31 - 1, 2**31 - 1, 2**31 - 8), 132)


def missed(
    problem: Problem, hits: int, share: float, tier: str = "nearest"
) -> dict[MissKey, Tally]:
    return {(problem, DEVICE_KEY, tier): Tally(hits, hits * share)}


def test_misses_are_summed_over_flushes_and_ranked_by_hits_times_predicted_gain(
    store: Repository,
) -> None:
    misses = Misses(store)
    misses.add(missed(SMALL, 900, 0.02) | missed(LARGE, 2, 0.02) | missed(HUGE, 1, 1e-9))
    misses.add(missed(SMALL, 100, 0.02) | missed(LARGE, 8, 0.1, tier="model"))
    misses.add({})
    ranked = misses.ranked(DEVICE_KEY, limit=9)
    # A rare large product costs more than a frequent small one; what is enormous stays finite.
    assert [(r.problem, r.hits) for r in ranked] == [(HUGE, 1), (LARGE, 10), (SMALL, 1000)]
    assert ranked[1].tiers == {"nearest": 2, "model": 8}
    assert ranked[2].tiers == {"nearest": 1000}
    # 8192 cubed at the roofline, and a launch: 2 x 2 % + 8 x 10 % of that.
    roofline_us = 2 * 8192**3 / (132 * 4096 * H200.clock_mhz)
    assert ranked[1].saved_us == pytest.approx(0.84 * (roofline_us + 3), rel=1e-6)
    assert ranked[2].saved_us == pytest.approx(20 * 3, rel=0.01)
    assert all(r.first_at <= r.last_at and r.state is None for r in ranked)
    assert misses.totals(DEVICE_KEY) == (3, 1011)
    assert [r.problem for r in misses.ranked(DEVICE_KEY, limit=1, offset=1)] == [LARGE]
    assert misses.ranked(DEVICE_KEY, limit=9, d="col") == []
    assert len(misses.ranked(DEVICE_KEY, limit=9, d="row", sms=132)) == 3
    assert misses.ranked("sm90-114sm-80gb", limit=9) == []


def test_what_was_tuned_is_no_miss_any_more_and_what_failed_says_how(store: Repository) -> None:
    misses = Misses(store)
    fits_not, tuned, odd = replace(LARGE, d="col"), SMALL, Problem(GemmShape(64, 64, 20), 132)
    for problem in (fits_not, tuned, odd, PROBLEM):
        misses.add(missed(problem, 5, 0.1))
    store.finish_shape(outcome(problem=tuned))
    store.finish_shape(outcome(problem=fits_not, state=ShapeState.DOES_NOT_FIT, detail="no room."))
    # K = 20 no kernel can run, so that no tuning would help. What was tried in vain comes last,
    # though it would save more.
    assert [(r.problem, r.state) for r in misses.ranked(DEVICE_KEY, limit=9)] == [
        (PROBLEM, None),
        (fits_not, ShapeState.DOES_NOT_FIT),
    ]
    newer = replace(TOOLCHAIN, kernel_hash="edited")
    with store.transaction(writes=False) as connection:
        assert most_promising(connection, DEVICE_KEY, TOOLCHAIN, "measured", 9) == [PROBLEM]
        assert not is_untried(connection, fits_not, DEVICE_KEY, TOOLCHAIN, "measured")
        assert is_untried(connection, PROBLEM, DEVICE_KEY, TOOLCHAIN, "measured")
        # Another kernel may do what this one could not, and a replay says nothing of a card.
        assert fits_not in most_promising(connection, DEVICE_KEY, newer, "measured", 9)
        assert fits_not in most_promising(connection, DEVICE_KEY, TOOLCHAIN, "replay", 9)


def test_services_that_flush_at_once_lose_no_count(store: Repository) -> None:
    problems = [Problem(GemmShape(m, 64, 64), 132) for m in range(1, 40)]

    def flush(number: int) -> None:
        order = problems if number % 2 else problems[::-1]
        Misses(store).add({(p, DEVICE_KEY, "model"): Tally(1, 0.1) for p in order})

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(flush, range(12)))
    assert Misses(store).totals(DEVICE_KEY) == (39, 12 * 39)


def test_beyond_the_most_rows_those_asked_for_least_are_forgotten(store: Repository) -> None:
    misses = Misses(store)
    for m in range(1, 7):
        misses.add(missed(Problem(GemmShape(m, 64, 64), 132), hits=m, share=0.1))
    assert misses.trim(most=6) == 0
    assert misses.trim(most=2) == 4
    assert {r.problem.shape.m for r in misses.ranked(DEVICE_KEY, limit=9)} == {5, 6}
