"""Covers are covers, and the smallest where the search says so."""

from itertools import combinations, count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.set_cover import smallest_cover

SETS = st.lists(st.integers(0, 2**9 - 1), max_size=12)


def union(sets: list[int]) -> int:
    return sum(1 << bit for bit in range(10) if any(members >> bit & 1 for members in sets))


def smallest_by_trying_all(sets: list[int]) -> int:
    return next(
        size
        for size in range(len(sets) + 1)
        for chosen in combinations(sets, size)
        if union(list(chosen)) == union(sets)
    )


@given(SETS)
def test_the_cover_holds_everything_and_none_is_smaller(sets: list[int]) -> None:
    cover = smallest_cover(sets, seconds=60.0)
    assert union([sets[place] for place in cover.chosen]) == union(sets)
    assert cover.proved
    assert len(cover.chosen) == cover.at_least == smallest_by_trying_all(sets)
    assert cover.greedy >= len(cover.chosen)


@given(SETS)
def test_without_time_the_cover_is_whole_and_the_bound_holds(sets: list[int]) -> None:
    clock = count()
    cover = smallest_cover(sets, seconds=0.0, clock=lambda: float(next(clock)))
    assert union([sets[place] for place in cover.chosen]) == union(sets)
    assert cover.at_least <= smallest_by_trying_all(sets) <= len(cover.chosen)


@pytest.mark.parametrize("pairs", [4, 6])
def test_the_exact_search_beats_greed_where_greed_is_known_to_fail(pairs: int) -> None:
    # Two rows cover everything; columns of 2, 4, 8, ... things across both tempt the greedy.
    widths = [2**i for i in range(pairs)]
    starts = [sum(widths[:i]) for i in range(pairs)]
    total = sum(widths)
    row = (1 << total) - 1
    columns = [
        (((1 << width) - 1) << start) * (1 + (1 << total))
        for width, start in zip(widths, starts, strict=True)
    ]
    cover = smallest_cover([*columns, row, row << total])
    assert cover.greedy == pairs
    assert cover.chosen == (pairs, pairs + 1)


def test_of_equal_sets_the_earliest_is_chosen() -> None:
    assert smallest_cover([0b01, 0b11, 0b11]).chosen == (1,)


def test_nothing_needs_no_set() -> None:
    cover = smallest_cover([])
    assert (cover.chosen, cover.at_least, cover.proved) == ((), 0, True)
