"""Up to which M one config is the better one, and another from there on: a modelled guess."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import log

from tuner.config import KernelConfig
from tuner.legality import faults
from tuner.lookup.adapt import adapted
from tuner.lookup.cost_model import estimate_us
from tuner.lookup.layer import at_m
from tuner.shape import Problem

STEPS = 64
"""Places between two measured Ms at which the model is asked; all, where there are no more."""
ROUND = 8
"""Tiles end at multiples of it."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """A measured M of a layer, and how two configs were launched in the races there."""

    m: int
    first: KernelConfig
    second: KernelConfig


def last_of_first(
    layer: Problem, below: Meeting, above: Meeting, lead_below: float, lead_above: float
) -> int:
    """The M, from that of `below` to the one before that of `above`, up to which the first config
    is used.

    lead_below, lead_above: measured at the two Ms, ln(time of the second / time of the first).
    Between them the modelled lead is corrected by what it was off at the two, in proportion to
    doublings. The cut has the least of what each config is expected to lose on its side.
    """
    a, b = below.m, above.m
    modelled = _modelled(layer, below, above)
    off_below, off_above = lead_below - modelled[a], lead_above - modelled[b]
    leads = {}
    for m, lead in modelled.items():
        along = log(m / a) / log(b / a)
        leads[m] = lead + (1 - along) * off_below + along * off_above
    lost = sum(max(lead, 0.0) for lead in leads.values())
    middle = log(a * b) / 2
    cuts = []
    for m, lead in leads.items():
        # Its M goes over to the first config.
        lost += max(-lead, 0.0) - max(lead, 0.0)
        if m < b:
            cuts.append((round(lost, 9), abs(log(m) - middle), m))
    return min(cuts)[2]


@lru_cache(maxsize=4096)
def _modelled(layer: Problem, below: Meeting, above: Meeting) -> dict[int, float]:
    """By M, ascending, both ends included: ln(time of the second / time of the first)."""
    low, high = at_m(layer, below.m), at_m(layer, above.m)
    leads = {}
    for m in _asked(below.m, above.m):
        problem = at_m(layer, m)
        first, second = (
            _launched(below.first, low, problem),
            _launched(above.second, high, problem),
        )
        for end in (below, above):
            if m == end.m:
                first, second = end.first, end.second  # as they were raced
        if first is None or second is None:
            leads[m] = 0.0 if first is second else -BEYOND if first is None else BEYOND
        else:
            leads[m] = log(estimate_us(problem, second) / estimate_us(problem, first))
    return leads


BEYOND = 10.0
"""The lead of a config over one that cannot be launched."""


def _launched(config: KernelConfig, won_on: Problem, problem: Problem) -> KernelConfig | None:
    launched = adapted(config, won_on, problem)
    return launched if launched and not faults(launched, problem) else None


def _asked(below: int, above: int) -> Iterator[int]:
    """Both ends and STEPS places between them: ends of tiles, and the Ms right above those."""
    if above - below <= 2 * STEPS:
        yield from range(below, above + 1)
        return
    step = (above - below) // STEPS
    places = {below, above - 1, above}
    for m in range(below, above, step):
        end = m // ROUND * ROUND
        places |= {place for place in (end, end + 1) if below < place < above}
    yield from sorted(places)
