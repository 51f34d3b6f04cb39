"""Fit the search's analytic model to a recording: `python -m benchmarks.fit_model`.

Minimises, over the recorded hot races, how far modelled times scatter around measured ones among
the fast configs, and how slow the configs are that the model ranks first. Prints the constants for
`tuner/lookup/cost_model.py`, and for each shape how wrong the model is: with the constants in use,
with all shapes fitted, and with that shape left out of the fit. Its error is how far modelled times
are off (median, %), how far they scatter about that (standard deviation, %), how well they rank
(Spearman's coefficient), and the regret of the configs it ranks first.
"""

import argparse
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from math import exp, log, sqrt
from random import Random
from statistics import correlation, fmean, median, pstdev

from tuner.config import KernelConfig
from tuner.device.replay import Recording
from tuner.lookup.cost_model import H200, CostModel, estimate_us
from tuner.shape import Problem
from tuner.trial import PROTOCOL_HOT

BOUNDS: Mapping[str, tuple[float, float]] = {
    "clock_mhz": (1000, 1980),
    "l2_bytes_per_cycle": (30, 150),
    "load_latency_cycles": (200, 4000),
    "store_bytes_per_cycle": (8, 200),
    "epilogue_cycles": (0, 4000),
    "launch_us": (0.5, 5),
    "cluster_cycles": (0, 400),
    "sharpness": (1.2, 10),
    "overlap": (0.5, 1),
    "exchange_cycles": (0, 10000),
    "exchange_bytes_per_cycle": (5, 200),
    "dependent_us": (0, 2),
    "unaligned_traffic": (1, 3),
}
START = CostModel(1600, 60, 1100, 40, 700, 2, 60, 4, 0.5, 3500, 30, 0.5, 2)
"""Round figures from before anything was recorded, so that a shape left out is truly unseen."""
NEAR = 0.2
"""Configs this much slower than the best weigh 1/e: the model is for finding fast ones."""
FIRST = 12
ROWS = 64
"""Configs of a shape that are fitted: a fit looks at each of them once for every step."""
Times = Mapping[Problem, Sequence[tuple[KernelConfig, float]]]


def recorded_times(recording: Recording) -> Times:
    """Median µs of every config in the recorded hot race of each shape."""
    return {
        problem: [
            (row.contender.config, median(row.samples_us))
            for row in recording.race(problem, PROTOCOL_HOT)
            if row.contender.config is not None and row.samples_us
        ]
        for problem in recording.problems()
    }


def order(
    problem: Problem, times: Sequence[tuple[KernelConfig, float]], model: CostModel
) -> list[float]:
    """Measured µs in the order in which the model ranks the configs."""
    return [us for _, us in sorted(times, key=lambda t: (estimate_us(problem, t[0], model), t[0]))]


def regret(
    problem: Problem, times: Sequence[tuple[KernelConfig, float]], model: CostModel, count: int
) -> float:
    """How much slower, in %, the best of the model's first `count` is than the best recorded."""
    ranked = order(problem, times, model)
    return 100 * (min(ranked[:count]) / min(ranked) - 1)


@dataclass(frozen=True, slots=True)
class Error:
    """How wrong a model is about one shape.

    off_percent: the median of modelled / measured - 1. scatter_percent: standard deviation of its
    logarithm, in %. rank: Spearman's coefficient of modelled and measured times.
    """

    off_percent: float
    scatter_percent: float
    rank: float


def error(problem: Problem, times: Sequence[tuple[KernelConfig, float]], model: CostModel) -> Error:
    modelled = [estimate_us(problem, config, model) for config, _ in times]
    off = [log(guess / us) for guess, (_, us) in zip(modelled, times, strict=True)]
    measured = [us for _, us in times]
    return Error(
        100 * (exp(median(off)) - 1),
        100 * pstdev(off),
        correlation(ranks(modelled), ranks(measured)),
    )


def ranks(values: Sequence[float]) -> list[float]:
    """The place of each value; equals share the mean of theirs."""
    ordered = sorted(values)
    return [(bisect_left(ordered, v) + bisect_right(ordered, v) - 1) / 2 for v in values]


def loss(times: Times, model: CostModel) -> float:
    """Scatter of the residuals, a little of their mean, and the slowness of what ranks first."""
    total = 0.0
    for problem, rows in times.items():
        best = min(us for _, us in rows)
        weights = [exp(-(us / best - 1) / NEAR) for _, us in rows]
        residuals = [log(estimate_us(problem, c, model) / us) for c, us in rows]
        mean = sum(w * r for w, r in zip(weights, residuals, strict=True)) / sum(weights)
        spread = sum(w * (r - mean) ** 2 for w, r in zip(weights, residuals, strict=True))
        first = fmean(us / best - 1 for us in order(problem, rows, model)[:FIRST])
        total += sqrt(spread / sum(weights)) + 0.05 * abs(mean) + 0.15 * first
    return total


def thinned(times: Times, random: Random) -> Times:
    """At most `ROWS` configs of each shape: the fastest for certain, others drawn evenly."""
    kept = {}
    for problem, rows in times.items():
        fastest_first = sorted(rows, key=lambda row: row[1])
        fastest, others = fastest_first[: ROWS // 4], fastest_first[ROWS // 4 :]
        kept[problem] = fastest + random.sample(others, min(ROWS - len(fastest), len(others)))
    return kept


def fit(times: Times, steps: int, seed: int) -> CostModel:
    """A random search from `START`, in steps that get smaller."""
    random = Random(seed)
    times = thinned(times, random)
    best, lowest = START, loss(times, START)
    for step in range(steps):
        scale = 0.25 * 0.5 ** (4 * step // steps)
        changed = []
        for field, value in zip(fields(CostModel), astuple(best), strict=True):
            low, high = BOUNDS[field.name]
            if random.random() < 0.35:
                value += random.gauss(0, scale * (high - low))
            changed.append(min(max(value, low), high))
        tried = CostModel(*changed)
        if (found := loss(times, tried)) < lowest:
            best, lowest = tried, found
    return best


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--recording", default="h200")
    arguments.add_argument("--steps", type=int, default=1500)
    arguments.add_argument("--seed", type=int, default=0)
    chosen = arguments.parse_args()
    times = recorded_times(Recording.load(chosen.recording))
    fitted = fit(times, chosen.steps, chosen.seed)
    for field in fields(CostModel):
        used = getattr(H200, field.name)
        print(f"{field.name}: {getattr(fitted, field.name):.4g} (in use {used:g})")
    print("error: off %, scatter %, rank; then regret in % of the first 8 and 16 configs")
    print(f"{'shape':>16}: in use | fitted | fitted without the shape")
    errors: dict[str, list[Error]] = {"in use": [], "fitted": [], "without the shape": []}
    for problem, rows in times.items():
        others = {p: r for p, r in times.items() if p != problem}
        without = fit(others, chosen.steps // 2, chosen.seed)
        parts = []
        for name, model in zip(errors, (H200, fitted, without), strict=True):
            wrong = error(problem, rows, model)
            errors[name].append(wrong)
            first = " ".join(f"{regret(problem, rows, model, count):5.2f}" for count in (8, 16))
            parts.append(
                f"{wrong.off_percent:+5.1f} {wrong.scatter_percent:5.1f} {wrong.rank:.2f}; {first}"
            )
        print(f"{problem.shape!s:>16}: {' | '.join(parts)}")
    for name, found in errors.items():
        print(
            f"mean over shapes, {name}: off {fmean(abs(e.off_percent) for e in found):.1f} % "
            f"either way, scatter {fmean(e.scatter_percent for e in found):.1f} %, "
            f"rank {fmean(e.rank for e in found):.2f}"
        )


if __name__ == "__main__":
    main()
