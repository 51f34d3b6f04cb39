"""How promising each candidate is, from this shape's measurements and from its neighbours'."""

from collections.abc import Iterable, Sequence
from math import log
from statistics import median

import numpy as np

from tuner.config import KernelConfig
from tuner.lookup.cost_model import Estimate, estimate_us
from tuner.search.seeds import nearest
from tuner.search.surrogate import Belief, Points, Vector, expected_improvement
from tuner.shape import Problem
from tuner.trial import PROTOCOL_HEAT, PROTOCOL_HOT, PROTOCOL_SCREEN, Measurement, TrialState

FAILURE_CAUTION = 0.5
"""How much of a candidate's promise a failure right beside it takes away. A guess."""
LESSON_SHAPES, PER_SHAPE = 6, 64
"""Other shapes that the belief is built on, and configs of each: the nearest shapes, their fastest
configs. More would teach less than they cost; solving grows with the cube."""
OFFSET_FROM = 16
"""Configs of a shape, its fastest, that tell how far the model is off for all of them."""

Lesson = tuple[Problem, KernelConfig, float]
"""A config of another shape and how far, in ln(time), it was off the model there."""


class Outlook:
    """The promise of every config of a pool, told of one trial after the other."""

    def __init__(
        self,
        problem: Problem,
        pool: Sequence[KernelConfig],
        others: Sequence[KernelConfig],
        lessons: Sequence[Lesson],
        estimate: Estimate = estimate_us,
    ) -> None:
        """others: configs that are no candidates and of which trials will tell."""
        configs = list(dict.fromkeys([*pool, *others]))
        self._count = len(pool)
        self._index = {config: i for i, config in enumerate(configs)}
        self._points = Points.of([(problem, c) for c in configs])
        self._modelled = np.array([log(estimate(problem, c)) for c in configs])
        seen = Points.of([(p, c) for p, c, _ in lessons])
        self._belief = Belief(self._points, seen, np.array([d for _, _, d in lessons]))
        self._expecting = self._belief.copy()
        self._expected: list[int] = []
        self._measured: list[int] = []
        self._failed: list[int] = []

    def knows(self, configs: Iterable[KernelConfig]) -> bool:
        return all(config in self._index for config in configs)

    def tell(self, config: KernelConfig, us: float | None) -> None:
        """How a trial ended; us: None for a failure."""
        index = self._index[config]
        if us is None:
            self._failed.append(index)
        else:
            self._belief.learn(index, log(us) - self._modelled[index])
            self._measured.append(index)
        self._expecting, self._expected = self._belief.copy(), []

    def promise(self, running: Iterable[KernelConfig]) -> Vector:
        """Expected improvement of each of the pool, less beside failures.

        running: under way, so the expected counts as measured.
        """
        for index in map(self._index.__getitem__, running):
            if index not in self._expected:
                self._expected.append(index)
                self._expecting.learn(index)
        mean = self._modelled + self._expecting.mean
        best = float(np.min(mean[self._measured])) if self._measured else float(np.min(mean))
        gain = expected_improvement(mean, self._expecting.variance, best)
        if self._failed:
            closest = np.min(
                self._points.variant_distance(self._points[np.array(self._failed)]), axis=1
            )
            gain = gain * (1 - FAILURE_CAUTION * np.exp(-2 * closest))
        return np.asarray(gain[: self._count])


def nearest_lessons(
    problem: Problem, lessons: Sequence[Measurement], estimate: Estimate = estimate_us
) -> list[Lesson]:
    """Deviations from the model on the shapes most like `problem`: the fastest configs of each."""
    by_problem: dict[Problem, list[Measurement]] = {}
    for row in lessons:
        if row.state is TrialState.OK and row.contender.config and row.median_us:
            by_problem.setdefault(row.problem, []).append(row)
    found: list[Lesson] = []
    for other in nearest(problem, by_problem)[:LESSON_SHAPES]:
        fastest = sorted((us, c) for c, us in hot_times(by_problem[other]).items())[:PER_SHAPE]
        deviations = [log(us / estimate(other, c)) for us, c in fastest]
        offset = median(deviations[:OFFSET_FROM])
        found += [(other, c, d - offset) for (_, c), d in zip(fastest, deviations, strict=True)]
    return found


def hot_times(rows: Sequence[Measurement]) -> dict[KernelConfig, float]:
    """Every config's time in µs of one problem, as raced or else as screened and brought to level.

    A screening meets a cooler card than a race; what was both raced and screened says by how much.
    """
    found: dict[str, dict[KernelConfig, float]] = {}
    for row in rows:
        if row.contender.config and row.median_us:
            found.setdefault(row.protocol, {})[row.contender.config] = row.median_us
    times = found.get(PROTOCOL_HOT, {})
    for protocol in (PROTOCOL_HEAT, PROTOCOL_SCREEN):
        more = found.get(protocol, {})
        both = [times[c] / us for c, us in more.items() if c in times]
        level = median(both) if both else 1.0
        times = {**{c: us * level for c, us in more.items()}, **times}
    return times
