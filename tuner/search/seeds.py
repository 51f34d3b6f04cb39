"""Where a search should begin: by the analytic model, and by what won on neighbouring shapes."""

from collections.abc import Iterable, Sequence
from itertools import islice

from tuner.config import KernelConfig, Reduction, Schedule
from tuner.lookup.cost_model import Estimate, estimate_us
from tuner.lookup.distance import distance
from tuner.search.space import article_config
from tuner.shape import Problem
from tuner.trial import PROTOCOL_HOT, Measurement, TrialState

Tile = tuple[int, int, Schedule, Reduction]
WINNERS_PER_SHAPE = 2


def ranked(
    problem: Problem, configs: Iterable[KernelConfig], estimate: Estimate = estimate_us
) -> list[KernelConfig]:
    """`configs` by modelled time, fastest first; equals keep a fixed order."""
    return sorted(configs, key=lambda c: (estimate(problem, c), c))


def seeds(
    problem: Problem,
    candidates: Sequence[KernelConfig],
    neighbours: Sequence[KernelConfig] = (),
    count: int = 16,
    estimate: Estimate = estimate_us,
) -> list[KernelConfig]:
    """Up to `count` configs to measure first, all of them different.

    The published configuration, what won on neighbouring shapes (as far as it is a candidate
    here), then the best modelled candidate of each tile.
    neighbours: best first; only their variants count, launched with this problem's defaults.
    """
    ordered = ranked(problem, candidates, estimate)
    by_variant = {c.variant: c for c in reversed(ordered)}
    best_of_tile: dict[Tile, KernelConfig] = {}
    for config in ordered:
        best_of_tile.setdefault(_tile(config), config)
    article = article_config(problem)
    first = [article] if article.variant in by_variant else []
    known = (by_variant[c.variant] for c in neighbours if c.variant in by_variant)
    return list(dict.fromkeys([*first, *islice(known, count // 2), *best_of_tile.values()]))[:count]


def _tile(config: KernelConfig) -> Tile:
    v = config.variant
    return v.block_m, v.block_n, v.schedule, v.reduction


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
