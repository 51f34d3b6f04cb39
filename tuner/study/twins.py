"""Twins: finalists launched a second time, dependently, and kept apart from the search.

A twin begins before the stream's previous kernel has ended. It has its finalist's cubin, so there
is nothing to search; in a search it would stand for its variant twice, and breed more twins.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from math import inf

from tuner.config import KernelConfig, KernelVariant
from tuner.search.knowledge import Stored
from tuner.shape import Problem
from tuner.study.progress import Budget
from tuner.trial import Measurement, ShapeOutcome, Toolchain

MOST_TWINS = 4
"""Finalists, the best first, that have one."""
TWIN_SHARE = 1 / 8
"""Of `Budget.trials`, the most that twins get."""


def most_twins(budget: Budget) -> int:
    """How many trials are set aside for twins; each is one."""
    return min(MOST_TWINS, int(budget.trials * TWIN_SHARE), budget.finalists)


def twin_of(config: KernelConfig) -> KernelConfig:
    """The same launch as a dependent one."""
    return replace(config, knobs=replace(config.knobs, dependent_launch=True))


def is_twin(row: Measurement) -> bool:
    return row.contender.config is not None and row.contender.config.knobs.dependent_launch


def without_twins(rows: Iterable[Measurement]) -> list[Measurement]:
    return [row for row in rows if not is_twin(row)]


def no_twins_of(setbacks: Iterable[Measurement]) -> set[KernelVariant]:
    """Variants of which a dependent launch failed, which says nothing of their other launches."""
    configs = (row.contender.config for row in setbacks)
    return {c.variant for c in configs if c is not None and c.knobs.dependent_launch}


class Untwinned:
    """Stored rows as a search may learn from them; `twins` has the attempts it is not told of.

    A finalist and its twin in one race are one row, that of the faster: it tells which variant won.
    """

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self.twins: list[Measurement] = []

    def attempts(
        self, problem: Problem, device_key: str, *, sources: Collection[str]
    ) -> list[Measurement]:
        found = self._stored.attempts(problem, device_key, sources=sources)
        alone = [row for row in found if row.race is None]
        self.twins += filter(is_twin, alone)
        return [*without_twins(alone), *_fastest_of_pairs(row for row in found if row.race)]

    def shapes(self, device_key: str) -> list[ShapeOutcome]:
        return self._stored.shapes(device_key)

    def tried(self, problem: Problem, toolchain: Toolchain) -> list[Measurement]:
        """Twins of `problem` that need not be tried again."""
        return [r for r in self.twins if (r.problem, r.toolchain) == (problem, toolchain)]


def _fastest_of_pairs(raced: Iterable[Measurement]) -> list[Measurement]:
    pairs: dict[tuple[object, ...], Measurement] = {}
    for row in sorted(raced, key=lambda row: row.median_us or inf):
        config = row.contender.config
        pairs.setdefault((row.race, row.contender if config is None else twin_of(config)), row)
    return list(pairs.values())
