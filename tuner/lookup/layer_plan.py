"""Which Ms of a layer to tune, so that every M between them can be answered.

An M between two that are tuned is answered with the config of either, so the next to be tuned is
the one at which the model expects that to lose most beside the best config there. A tile is used
best at the last M that it covers, so of neighbouring Ms that lose about as much it is the last.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from math import inf, log2, sqrt

from tuner.config import KernelConfig
from tuner.legality import faults
from tuner.lookup.adapt import adapted
from tuner.lookup.cost_model import H200, CostModel, estimate_us
from tuner.lookup.layer import InvalidLayer, at_m
from tuner.lookup.sound import sound_configs
from tuner.shape import Problem

MOST_MS = 12
"""Ms of one layer that are tuned."""
FIRST_MS = 9
"""Those that are planned before anything is measured; the others by what has won at these."""
LINK = 3.0
"""Doublings between two measured Ms beyond which nothing between them is answered."""
WIDE = 0.4
"""Doublings, from TILE_STEP on, between two tuned Ms that are halved where the model expects no
loss anywhere."""
WORTH = 0.01
"""A loss, as a share of the time, for which another M is tuned."""
ALIKE = 0.75
"""Share of the greatest loss that neighbouring Ms may lose to count as losing about as much."""
TILE_STEP = 16
"""Ms between which the model is not asked: tiles end at multiples of it."""
PER_DOUBLING = 24
"""Ms of a doubling, where that is coarser, at which it is."""


def first_ms(layer: Problem, low: int, high: int, most: int = FIRST_MS) -> tuple[int, ...]:
    """Up to `most` Ms from `low` to `high`, ascending; both ends, and none beyond LINK of the next.

    A range of no more Ms is taken whole. layer: the problem with any M.
    Raises: InvalidLayer for a range that `most` Ms cannot link.
    """
    if not 1 <= low <= high:
        raise InvalidLayer(f"M from {low} to {high} is no range. Name the lower end first, from 1.")
    if high - low < most:
        return tuple(range(low, high + 1))
    if log2(high / low) > LINK * (most - 2):
        raise InvalidLayer(
            f"M from {low} to {high} is more than {LINK * (most - 2):g} doublings, which {most} "
            "tuned Ms do not cover. Name a narrower range."
        )
    modelled = _Modelled(layer, H200)
    taken = sorted((low, high))
    while len(taken) < most and (m := _linking(taken)):
        taken = sorted((*taken, m))
    while len(taken) < most:
        m = _costliest(modelled, {t: modelled.best(t)[1] for t in taken})
        m = m or _halving(taken)
        if m is None:
            break
        taken = sorted((*taken, m))
    return tuple(taken)


def next_m(layer: Problem, won: Mapping[int, KernelConfig]) -> int | None:
    """The M to tune next, by what has won at each M that was tuned.

    None if no M between is expected to lose WORTH, and none lies in a gap wider than WIDE.
    """
    if len(won) < 2:
        return None
    ms = sorted(won)
    return _costliest(_Modelled(layer, H200), won) or _halving(ms)


class _Modelled:
    """What the model says of the Ms of one layer."""

    def __init__(self, layer: Problem, model: CostModel) -> None:
        self._layer, self._model = layer, model
        self.best = cache(self._best)
        self.slower = cache(self._slower)

    def _best(self, m: int) -> tuple[float, KernelConfig | None]:
        """µs of the best config that is modelled at an M, and the config."""
        problem = at_m(self._layer, m)
        legal = (c for c in sound_configs(problem, self._model) if not faults(c, problem))
        timed = ((estimate_us(problem, config, self._model), config) for config in legal)
        return min(timed, default=(inf, None))

    def _slower(self, config: KernelConfig | None, won_at: int, m: int) -> float:
        """How much slower than the best a config is that won at another M; inf if it cannot run."""
        problem = at_m(self._layer, m)
        if config is None or self.best(m)[1] is None:
            return inf
        launched = adapted(config, at_m(self._layer, won_at), problem) if m != won_at else config
        if launched is None or faults(launched, problem):
            return inf
        return estimate_us(problem, launched, self._model) / self.best(m)[0] - 1


def _costliest(modelled: _Modelled, won: Mapping[int, KernelConfig | None]) -> int | None:
    """The M whose better neighbour loses most, and WORTH at least, of what it does not lose at
    home; None if there is none."""
    found: list[tuple[float, int]] = []
    for a, b in pairwise(sorted(won)):
        losses = {m: _lost(modelled, won, a, b, m) for m in _between(a, b)}
        worst = max(losses.values(), default=0.0)
        if WORTH <= worst < inf:
            # From the first M that loses so much, as far as it stays about so.
            ms = sorted(losses)
            at = next(i for i, m in enumerate(ms) if losses[m] == worst)
            while at + 1 < len(ms) and losses[ms[at + 1]] >= ALIKE * worst:
                at += 1
            found.append((worst, -ms[at]))
    return -max(found)[1] if found else None


def _lost(
    modelled: _Modelled, won: Mapping[int, KernelConfig | None], a: int, b: int, m: int
) -> float:
    """What the better of two neighbours loses at an M beyond what the model says it loses where it
    won, which is the model's own fault."""
    return min(
        modelled.slower(won[of], of, m) - max(modelled.slower(won[of], of, of), 0.0)
        if won[of] is not None
        else inf
        for of in (a, b)
    )


def _between(a: int, b: int) -> Iterator[int]:
    """Ms between two: ends of tiles, no more than PER_DOUBLING a doubling."""
    m = a
    while True:
        step = max(m // PER_DOUBLING // TILE_STEP, 1) * TILE_STEP
        m = (m + step) // step * step
        if m >= b:
            return
        yield m


def _linking(ms: Sequence[int]) -> int | None:
    """The power of two in the middle of the widest gap, if that is wider than LINK."""
    a, b = max(pairwise(ms), key=lambda gap: gap[1] / gap[0])
    return 1 << round(log2(a * b) / 2) if log2(b / a) > LINK else None


def _halving(ms: Sequence[int]) -> int | None:
    """The end of a tile nearest to the middle of the widest gap that is WIDE and has one."""
    found = []
    for a, b in pairwise(ms):
        low = max(a, TILE_STEP)
        middle = round(sqrt(low * b) / TILE_STEP) * TILE_STEP
        if a < middle < b and b > low * 2**WIDE:
            found.append((b / low, middle))
    return max(found)[1] if found else None
