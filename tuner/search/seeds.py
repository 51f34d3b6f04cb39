"""Where a search should begin, and which shapes and configs have something to tell."""

from collections.abc import Iterable, Sequence
from itertools import islice

from tuner.config import KernelConfig
from tuner.lookup.cost_model import Estimate, estimate_us
from tuner.lookup.distance import distance
from tuner.shape import Problem
from tuner.trial import PROTOCOL_HOT, Measurement, TrialState

WINNERS_PER_SHAPE = 2
MOST_SEEDS = 8


def ranked(
    problem: Problem, configs: Iterable[KernelConfig], estimate: Estimate = estimate_us
) -> list[KernelConfig]:
    """`configs` by modelled time, fastest first; equals keep a fixed order."""
    return sorted(configs, key=lambda c: (estimate(problem, c), c))


def seeds(candidates: Sequence[KernelConfig], won: Sequence[KernelConfig]) -> list[KernelConfig]:
    """Up to `MOST_SEEDS` candidates to measure first: what won before, as far as it is one here.

    won: best first; only their variants count, launched as the candidates are.
    """
    by_variant = {c.variant: c for c in reversed(candidates)}
    known = (by_variant[c.variant] for c in won if c.variant in by_variant)
    return list(islice(dict.fromkeys(known), MOST_SEEDS))


def nearest(problem: Problem, others: Iterable[Problem]) -> list[Problem]:
    """`others` without `problem`, the most similar first; equals keep a fixed order."""
    return sorted(set(others) - {problem}, key=lambda p: (distance(p, problem), p))


def winners(problem: Problem, rows: Iterable[Measurement]) -> list[KernelConfig]:
    """The fastest raced configs of each shape in `rows`, `problem` first and then by nearness."""
    raced: dict[Problem, list[tuple[float, KernelConfig]]] = {}
    for row in rows:
        us, config = row.median_us, row.contender.config
        if row.protocol == PROTOCOL_HOT and row.state is TrialState.OK and config and us:
            raced.setdefault(row.problem, []).append((us, config))
    order = [problem, *nearest(problem, raced)]
    return [c for p in order for _, c in sorted(raced.get(p, []))[:WINNERS_PER_SHAPE]]
