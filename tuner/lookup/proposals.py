"""What to try on a problem that was not measured, by the model and by what was measured nearby.

A proposal costs, in ln(time): what the analytic model says, corrected by part of how far the model
was off where the config won; a little for every doubling to that shape; and more for a config that
won nowhere.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, log

from tuner.config import KernelConfig
from tuner.lookup.adapt import adapted
from tuner.lookup.book import Lesson
from tuner.lookup.cost_model import CostModel, estimate_us
from tuner.lookup.sound import sound_configs
from tuner.lookup.terms import Terms
from tuner.shape import Problem

OWN_FAULT = 0.5
"""Share of a winner's deviation, from what is usual around the problem, that is put down to the
config; the rest is put down to the shape it won on."""
FADING = 3.0
"""Doublings over which that share falls by a factor of e."""
PER_DOUBLING = 0.01
UNPROVEN = 0.04
CLOSE = 0.5
"""Doublings within which a winner is not second-guessed with configs that won nowhere."""

Near = tuple[float, Lesson]


@dataclass(frozen=True, slots=True)
class Proposal:
    """cost: what it is ranked by. log_us: ln of the time in µs that is predicted.

    lesson, distance: where it won, and how far away that is; None if nowhere.
    """

    config: KernelConfig
    cost: float
    log_us: float
    lesson: Lesson | None
    distance: float | None


def proposals(
    problem: Problem, near: Sequence[Near], terms: Terms, usual: float, model: CostModel
) -> list[Proposal]:
    """Configs for `problem`, the most promising first; only `faults` knows whether all are legal.

    near: problems that were measured, nearest first; their distances say how much they count.
    usual: how far the model is off, in ln(time), if nothing is near.
    """
    around = _around(near)
    # The nearest device that was measured says how fast this one is.
    here = around[near[0][1].answer.device_key] if near else usual
    found: dict[KernelConfig, Proposal] = {}
    for away, lesson in near:
        expected = around[lesson.answer.device_key]
        for config, off in lesson.winners:
            launched = adapted(config, lesson.problem, problem)
            if launched is None:
                continue
            fault = OWN_FAULT * exp(-away / FADING) * (off - expected)
            log_us = log(estimate_us(problem, launched, model)) + here + fault
            proposal = Proposal(launched, log_us + PER_DOUBLING * away, log_us, lesson, away)
            known = found.get(launched)
            if known is None or proposal.cost < known.cost:
                found[launched] = proposal
    if not near or near[0][0] > CLOSE or not found:
        for config in sound_configs(problem, model, split=not terms.invariant):
            log_us = log(estimate_us(problem, config, model)) + here
            found.setdefault(config, Proposal(config, log_us + UNPROVEN, log_us, None, None))
    return sorted(found.values(), key=lambda p: (p.cost, p.config))


def _around(near: Iterable[Near]) -> dict[str, float]:
    """By device, the mean deviation of the model, in which a doubling away counts 1/e."""
    sums: dict[str, tuple[float, float]] = {}
    for away, lesson in near:
        weight = exp(-away)
        total, weights = sums.get(lesson.answer.device_key, (0.0, 0.0))
        sums[lesson.answer.device_key] = (total + weight * lesson.off, weights + weight)
    return {key: total / weights for key, (total, weights) in sums.items()}
