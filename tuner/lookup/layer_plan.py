"""Which Ms of a layer to tune, so that every M between them can be answered."""

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import pairwise
from math import isqrt, log2

from tuner.legality import faults
from tuner.lookup.cost_model import H200, CostModel, estimate_us
from tuner.lookup.layer import InvalidLayer, at_m
from tuner.lookup.sound import sound_configs
from tuner.shape import Problem

MOST_MS = 12
"""Ms of one layer that are tuned."""
FIRST_MS = 9
"""Those that are planned before anything is measured; the rest goes where the best changes."""
LINK = 2.0
"""Doublings between two measured Ms beyond which nothing between them is answered."""
CLOSED = 0.25
"""Doublings between two measured Ms that are near enough, though another config is best."""
PER_CHANGE = 0.25
"""Doublings that a change of the best modelled tile counts for. A guess."""
PER_DOUBLING = 8
"""Ms of a doubling at which the model is asked."""


def first_ms(layer: Problem, low: int, high: int, most: int = FIRST_MS) -> tuple[int, ...]:
    """Up to `most` Ms from `low` to `high`, ascending; both ends, and none beyond LINK of the next.

    The others are powers of two and the last Ms before another tile is modelled to be best: one
    after the other the one that is farthest from those that were taken, in doublings, where each
    change of the tile between two counts as PER_CHANGE more. A range of no more Ms is taken whole.
    layer: the problem with any M. Raises: InvalidLayer for a range that `most` Ms cannot link.
    """
    if not 1 <= low <= high:
        raise InvalidLayer(f"M from {low} to {high} is no range. Name the lower end first, from 1.")
    if high - low < most:
        return tuple(range(low, high + 1))
    if log2(high / low) > LINK * (most - 2):
        raise InvalidLayer(
            f"M from {low} to {high} is more than {LINK * (most - 2):g} doublings, which {most} "
            f"tuned Ms do not cover. Name a narrower range."
        )
    changes = tile_changes(layer, low, high)
    taken = {low, high}
    while len(taken) < most and (m := _in_widest_gap(sorted(taken))):
        taken.add(m)
    powers = {1 << bit for bit in range(high.bit_length()) if low < 1 << bit < high}
    at = partial(_coordinate, changes=changes)
    candidates = sorted((powers | set(changes)) - taken)
    while len(taken) < most and candidates:
        best = max(candidates, key=lambda m: (min(abs(at(m) - at(t)) for t in taken), -m))
        taken.add(best)
        candidates.remove(best)
    return tuple(sorted(taken))


def next_m(ms: Sequence[int], changed: Collection[int]) -> int | None:
    """The M to tune next: halfway, in doublings, in the widest gap that the best changes in.

    ms: those that were tuned, ascending. changed: each of them after which another config is best
    at the next. None where all such gaps are CLOSED.
    """
    gaps = [(a, b) for a, b in pairwise(ms) if a in changed and b - a > 1 and log2(b / a) > CLOSED]
    if not gaps:
        return None
    a, b = max(gaps, key=lambda gap: (log2(gap[1] / gap[0]), -gap[0]))
    return _halfway(a, b)


def tile_changes(layer: Problem, low: int, high: int, model: CostModel = H200) -> tuple[int, ...]:
    """Ms in between at which the best modelled tile is another than just above."""
    before: tuple[int, object] | None = None
    found: list[int] = []
    for m in _looked_at(low, high):
        tile = _best_tile(at_m(layer, m), model)
        if before and tile != before[1] and low < before[0]:
            found.append(before[0])
        before = m, tile
    return tuple(found)


def _looked_at(low: int, high: int) -> Iterator[int]:
    """PER_DOUBLING Ms a doubling; multiples of 16, at which tiles of M end, where that is finer."""
    m = low
    while m < high:
        yield m
        step = max(m // PER_DOUBLING, 1)
        m = m + step if m + step < 16 else max((m + step) // 16 * 16, m + 1)
    yield high


def _best_tile(problem: Problem, model: CostModel) -> object:
    legal = (c for c in sound_configs(problem, model) if not faults(c, problem))
    best = min(legal, key=lambda c: (estimate_us(problem, c, model), c), default=None)
    if best is None:
        return None
    v = best.variant
    return v.block_m, v.block_n, v.schedule, v.transposed_store, v.reduction


def _in_widest_gap(ms: Sequence[int]) -> int | None:
    """The power of two in the middle of the widest gap, if that is wider than LINK."""
    a, b = max(pairwise(ms), key=lambda gap: gap[1] / gap[0])
    return 1 << round(log2(a * b) / 2) if log2(b / a) > LINK else None


def _halfway(a: int, b: int) -> int:
    """Near the geometric mean of two Ms that are not next to each other, on a round number."""
    middle = isqrt(a * b)
    for unit in (1 << bit for bit in reversed(range(middle.bit_length()))):
        rounded = (middle + unit // 2) // unit * unit
        if a < rounded < b and abs(rounded - middle) * 4 <= b - a:
            return rounded
    return min(max(middle, a + 1), b - 1)


def _coordinate(m: int, changes: Sequence[int]) -> float:
    return log2(m) + PER_CHANGE * sum(change < m for change in changes)
