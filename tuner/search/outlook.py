"""How promising each candidate is, from this shape's measurements and from its neighbours'."""

from collections.abc import Sequence
from math import log
from statistics import median

import numpy as np

from tuner.config import KernelConfig
from tuner.lookup.cost_model import estimate_us
from tuner.search.seeds import nearest
from tuner.search.surrogate import Belief, Points, expected_improvement
from tuner.shape import Problem
from tuner.trial import PROTOCOL_SCREEN, Measurement, TrialState

FAILURE_CAUTION = 0.5
"""How much of a candidate's promise a failure right beside it takes away. A guess."""
MAX_LESSONS = 256
"""Rows of other shapes that the belief is built on: the nearest, to keep asking quick. A guess at
where more would teach less than they cost; solving grows with the cube."""

Lesson = tuple[Problem, KernelConfig, float]
"""A config of another shape and how far, in ln(time), it was off the model there."""


class Outlook:
    """The promise of every config of a pool, given what is done; lasts until more is done."""

    def __init__(
        self,
        problem: Problem,
        pool: Sequence[KernelConfig],
        lessons: Sequence[Lesson],
        done: Sequence[tuple[KernelConfig, float]],
        failed: Sequence[KernelConfig],
        running: Sequence[KernelConfig],
    ) -> None:
        self._pool, self._counts = pool, (len(done), len(failed))
        self._index = {c: i for i, c in enumerate(dict.fromkeys([*pool, *running]))}
        self._expected: set[KernelConfig] = set()

        own = [log(us / estimate_us(problem, c)) for c, us in done]
        offset = _offset(own)
        seen = [(problem, c) for c, _ in done] + [(p, c) for p, c, _ in lessons]
        deviations = np.array([d - offset for d in own] + [d for _, _, d in lessons])
        points = Points.of([(problem, c) for c in self._index])
        self._belief = Belief(Points.of(seen), deviations, points)
        modelled = np.array([log(estimate_us(problem, c)) + offset for c in self._index])
        self._mean = modelled + self._belief.mean
        self._best = min((log(us) for _, us in done), default=float(np.min(self._mean)))
        self._caution = np.ones(len(self._index))
        if failed:
            near = Points.of([(problem, c) for c in failed])
            closest = np.min(points.variant_distance(near), axis=1)
            self._caution -= FAILURE_CAUTION * np.exp(-2 * closest)

    def still_holds(
        self,
        pool: Sequence[KernelConfig],
        done: Sequence[tuple[KernelConfig, float]],
        failed: Sequence[KernelConfig],
    ) -> bool:
        return pool is self._pool and (len(done), len(failed)) == self._counts

    def promise(self, running: Sequence[KernelConfig]) -> dict[KernelConfig, float]:
        """Expected improvement, less beside failures; what is under way counts as known."""
        for config in running:
            if config in self._index and config not in self._expected:
                self._expected.add(config)
                self._belief.expect(self._index[config])
        gain = expected_improvement(self._mean, self._belief.variance, self._best)
        return dict(zip(self._index, (gain * self._caution).tolist(), strict=True))


def _offset(deviations: Sequence[float]) -> float:
    """How far the model is off for a shape as a whole, which ranks nothing."""
    return median(deviations) if deviations else 0.0


def nearest_lessons(problem: Problem, lessons: Sequence[Measurement]) -> list[Lesson]:
    """Deviations from the model on the shapes most like `problem`, `MAX_LESSONS` of them."""
    by_problem: dict[Problem, list[tuple[KernelConfig, float]]] = {}
    for row in lessons:
        screened = row.protocol == PROTOCOL_SCREEN and row.state is TrialState.OK
        if screened and row.contender.config and row.median_us:
            pairs = by_problem.setdefault(row.problem, [])
            pairs.append((row.contender.config, row.median_us))
    found: list[Lesson] = []
    for other in nearest(problem, by_problem):
        pairs = by_problem[other][: MAX_LESSONS - len(found)]
        deviations = [log(us / estimate_us(other, c)) for c, us in pairs]
        offset = _offset(deviations)
        found += [(other, c, d - offset) for (c, _), d in zip(pairs, deviations, strict=True)]
    return found
