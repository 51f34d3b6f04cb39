"""How well a median is known, assuming nothing about how the samples are distributed."""

from collections.abc import Sequence
from math import comb


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """A 95 % interval of the median, from order statistics.

    The median lies below the l-th smallest sample only if fewer than l samples fall below it,
    which is a matter of fair coins. With fewer than six samples no pair of them reaches 95 %, and
    the interval is all that was seen. Raises: ValueError without samples.
    """
    if not samples:
        raise ValueError("no samples, no interval")
    ordered = sorted(samples)
    rank = _outer_rank(len(ordered))
    return ordered[rank - 1], ordered[-rank]


def _outer_rank(count: int) -> int:
    """The largest l with P(Binomial(count, 1/2) < l) <= 2.5 %, at least 1."""
    rank, below = 1, 1 + count
    while 40 * below <= 2**count:
        rank += 1
        below += comb(count, rank)
    return rank
