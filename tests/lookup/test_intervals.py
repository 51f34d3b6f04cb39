from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.lookup.intervals import median_interval

TIMES = st.floats(1e-3, 1e9)


@pytest.mark.parametrize(
    ("count", "ranks"), [(6, (1, 6)), (9, (2, 8)), (25, (8, 18)), (50, (18, 33)), (100, (40, 61))]
)
def test_the_ranks_are_those_of_printed_tables(count: int, ranks: tuple[int, int]) -> None:
    samples = [float(value) for value in range(1, count + 1)]
    assert median_interval(samples) == ranks


@pytest.mark.parametrize("count", range(6, 80))
def test_the_interval_holds_the_median_at_95_percent_and_no_narrower_one_does(count: int) -> None:
    low, high = median_interval([float(value) for value in range(1, count + 1)])
    rank = int(low)
    assert (low, high) == (rank, count + 1 - rank)

    def coverage(outer: int) -> float:
        beyond: int = sum(comb(count, i) for i in range(outer))
        return 1 - float(2 * beyond / 2**count)

    assert coverage(rank) >= 0.95 > coverage(rank + 1)


@pytest.mark.parametrize("count", range(1, 6))
def test_few_samples_give_all_that_was_seen(count: int) -> None:
    assert median_interval([float(value) for value in range(count)]) == (0.0, count - 1)


def test_no_samples_are_an_error() -> None:
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])


@given(st.lists(TIMES, min_size=1, max_size=60))
def test_the_order_of_samples_does_not_matter(samples: list[float]) -> None:
    shuffled = sorted(samples, reverse=True)
    low, high = median_interval(samples)
    assert median_interval(shuffled) == (low, high)
    assert min(samples) <= low <= high <= max(samples)
