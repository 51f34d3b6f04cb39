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
    """Two neighbouring measured Ms of a layer, and the config that is launched at the lower."""

    layer: Problem
    below: int
    above: int
    first: KernelConfig


def last_of_first(
    meeting: Meeting, second: KernelConfig, lead_below: float, lead_above: float
) -> int:
    """The M, from `below` to `above` - 1, up to which the first config is used.

    lead_below, lead_above: measured at the two Ms, ln(time of the second / time of the first).
    Between them the modelled lead is corrected by what it was off at the two, in proportion to
    doublings. The cut has the least of what each config is expected to lose on its side.
    """
    a, b = meeting.below, meeting.above
    modelled = _modelled(meeting, second)
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
def _modelled(meeting: Meeting, second: KernelConfig) -> dict[int, float]:
    """By M, ascending, both ends included: ln(time of the second / time of the first)."""
    leads = {}
    for m in _asked(meeting.below, meeting.above):
        problem = at_m(meeting.layer, m)
        ours = _launched(meeting.first, at_m(meeting.layer, meeting.below), problem)
        theirs = _launched(second, at_m(meeting.layer, meeting.above), problem)
        if m in (meeting.below, meeting.above):
            ours, theirs = meeting.first, second  # as they were raced
        if ours is None or theirs is None:
            leads[m] = 0.0 if ours is theirs else -BEYOND if ours is None else BEYOND
        else:
            leads[m] = log(estimate_us(problem, theirs) / estimate_us(problem, ours))
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
