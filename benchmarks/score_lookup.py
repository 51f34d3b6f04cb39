"""Score the look-up tiers by leaving measured shapes out: `python -m benchmarks.score_lookup`.

Prints, for the tiers and for what is done without them, how much slower the answers are than the
best config recorded for the left-out shape (mean, 95th percentile, worst), and how often the stated
95 % intervals hold. How a config is scored that was not recorded there, `benchmarks/left_out.py`
says. `--write` puts what the service tells of its predictions into `tuner/lookup/tier_regret.json`.

The analytic model is fitted again without each left-out shape (`--refit`), or its answers would be
judged by what it was made from.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from math import ceil, inf, sqrt
from pathlib import Path
from random import Random
from statistics import NormalDist, fmean, median
from time import process_time
from typing import Any

from benchmarks.fit_model import Times, fit, recorded_times
from benchmarks.left_out import NAIVE, Case, Recorded, left_out, recorded_shapes
from tuner.device.replay import Recording
from tuner.lookup import Book, find
from tuner.lookup.cost_model import H200, CostModel
from tuner.lookup.intervals import median_interval
from tuner.lookup.neighbours import REACH
from tuner.shape import Problem

OUT = Path(__file__).parents[1] / "tuner" / "lookup" / "tier_regret.json"
EDGES = (0.5, 1.0, 2.0, 4.0, REACH)
"""Doublings at which a band of distances ends."""
FEWEST = 5
"""Shapes that a band has at least, or it is one with the next."""
Row = dict[str, Any]


def spread(regrets: Sequence[float]) -> Row:
    """Mean, 95th percentile (the worst of fewer than twenty) and worst."""
    ordered = sorted(regrets)
    p95 = ordered[ceil(0.95 * len(ordered)) - 1]
    return {"cases": len(ordered), "mean": fmean(ordered), "p95": p95, "worst": ordered[-1]}


def log_width(off: Sequence[float]) -> float:
    """Half of a 95 % interval of the next deviation: they scatter about 0 with one variance."""
    count = len(off)
    return student(count) * sqrt(fmean(o * o for o in off) * (1 + 1 / count))


def student(degrees: int) -> float:
    """The 97.5th percentile of Student's t, by Cornish and Fisher's expansion of the normal."""
    z = NormalDist().inv_cdf(0.975)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3


def once(cases: Iterable[Case]) -> list[Case]:
    """For each shape the case that left least out with it."""
    found: dict[Problem, Case] = {}
    for case in sorted(cases, key=lambda c: (c.radius, c.problem)):
        found.setdefault(case.problem, case)
    return list(found.values())


def bands(cases: Sequence[Case]) -> list[tuple[float, list[Case]]]:
    """Cases by distance, one of each shape in a band; the last band has no end."""
    ends: list[float] = []
    low = -1.0
    for high in EDGES:
        if len(once(within(cases, low, high))) >= FEWEST:
            ends.append(high)
            low = high
    ends = [*ends[:-1], inf]
    return [
        (high, once(within(cases, low, high)))
        for low, high in zip([-1.0, *ends[:-1]], ends, strict=True)
    ]


def within(cases: Iterable[Case], low: float, high: float) -> list[Case]:
    """Cases more than `low` and at most `high` doublings from the shape that answered."""
    return [case for case in cases if low < (case.distance or 0.0) <= high]


def covered(cases: Sequence[Case]) -> int:
    """Shapes whose time lies in the interval that the others of the band give."""
    off = [case.log_off for case in cases if case.log_off is not None]
    others = ([*off[:i], *off[i + 1 :]] for i in range(len(off)))
    return sum(
        bool(rest) and abs(one) <= log_width(rest) for one, rest in zip(off, others, strict=True)
    )


def halves(shapes: Sequence[Recorded]) -> tuple[int, int, float]:
    """Whether the interval of a race's first half holds the median of its second.

    Returns: how many do, of how many, and the share expected of rounds that do not drift.
    """
    held = total = 0
    sizes: list[tuple[int, int]] = []
    for shape in shapes:
        for candidate in shape.raced.values():
            for evidence in candidate.evidence:
                cut = len(evidence.samples_us) // 2
                first, second = evidence.samples_us[:-cut], evidence.samples_us[-cut:]
                low, high = median_interval(first)
                held += low <= median(second) <= high
                total += 1
                sizes.append((len(first), len(second)))
    random = Random(1)
    expected = fmean(_holds(random, *random.choice(sizes)) for _ in range(20_000))
    return held, total, expected


def _holds(random: Random, first: int, second: int) -> bool:
    low, high = median_interval([random.random() for _ in range(first)])
    return low <= median(random.random() for _ in range(second)) <= high


def refitted(times: Times, steps: int, problem: Problem) -> CostModel:
    """The model fitted on all shapes but one."""
    return fit({p: rows for p, rows in times.items() if p != problem}, steps, seed=0)


def models(times: Times, steps: int, problems: Sequence[Problem]) -> Callable[[Problem], CostModel]:
    if not steps:
        return lambda _: H200
    with ProcessPoolExecutor() as pool:
        found = dict(
            zip(problems, pool.map(partial(refitted, times, steps), problems), strict=True)
        )
    return found.__getitem__


def table(cases: Sequence[Case]) -> list[Row]:
    """One row for each rule."""
    tiers = [case for case in cases if case.rule not in NAIVE]
    asked = [case for case in tiers if not case.radius]
    rows = {
        "look-up": asked,
        "  of it nearest": [case for case in asked if case.rule == "nearest"],
        "  of it model": [case for case in asked if case.rule == "model"],
        "model, with nothing measured": [case for case in tiers if case.radius == inf],
        **{rule: [case for case in cases if case.rule == rule] for rule in NAIVE},
    }
    return [
        {
            "rule": rule,
            **spread([case.regret for case in found]),
            "recorded": sum(case.recorded for case in found),
        }
        for rule, found in rows.items()
        if found
    ]


def shipped(shapes: Sequence[Recorded], cases: Sequence[Case], told: Row) -> Row:
    """What `tuner.lookup.regret` reads, and beside it the table that was printed."""
    tiers = {}
    for tier in ("nearest", "model"):
        of_tier = [case for case in cases if case.rule == tier]
        tiers[tier] = [band_row(high, found) for high, found in bands(of_tier) if found]
    extents = [(s.problem.shape.m, s.problem.shape.n, s.problem.shape.k) for s in shapes]
    return {**told, "shapes": extents, "tiers": tiers}


def band_row(high: float, cases: Sequence[Case]) -> Row:
    row = spread([case.regret for case in cases])
    off = [case.log_off for case in cases if case.log_off is not None]
    return {
        "up_to": None if high == inf else high,
        "mean": round(row["mean"], 4),
        "p95": round(row["p95"], 4),
        "cases": row["cases"],
        "log_width": round(log_width(off), 4),
        "covered": covered(cases),
    }


def show(rows: Sequence[Row], scored: Row, held: tuple[int, int, float]) -> None:
    print("regret in % of the best recorded config, hot and cool together")
    print(f"{'rule':36} shapes   mean    p95  worst  recorded there")
    for row in rows:
        told = "  ".join(f"{100 * row[name]:5.1f}" for name in ("mean", "p95", "worst"))
        print(f"{row['rule']:36} {row['cases']:6}  {told}  {row['recorded']:5}")
    print("95 % intervals of predicted times, each from the other shapes of its band:")
    for tier, found in scored["tiers"].items():
        for band in found:
            end = "any distance" if band["up_to"] is None else f"up to {band['up_to']:g} doublings"
            print(
                f"  {tier}, {end}: {band['covered']} of {band['cases']} hold, factor "
                f"{2.718281828 ** band['log_width']:.2f} either way"
            )
    share = f"{held[0]} of {held[1]} ({held[0] / held[1]:.1%})"
    print(
        f"95 % intervals of measured medians: the first half of a race holds the median of the "
        f"second for {share}; {held[2]:.1%} would be expected without drift."
    )


def speed(shapes: Sequence[Recorded], device_key: str) -> str:
    """Look-ups a second in this process: of measured shapes, and of others for the first time."""
    books = {device_key: Book(device_key, device_key, [(s.best, s.under) for s in shapes])}
    random = Random(1)
    exact = [s.problem for s in shapes] * (20_000 // len(shapes))
    others = [
        replace(
            problem := random.choice(shapes).problem,
            shape=replace(problem.shape, m=random.randint(1, 2 * problem.shape.m)),
        )
        for _ in range(1000)
    ]
    told = []
    for asked, name in ((exact, "measured"), (list(set(others) - set(exact)), "other")):
        find(asked[0], books, device_key=device_key)
        began = process_time()
        for problem in asked:
            find(problem, books, device_key=device_key)
        told.append(f"{len(asked) / (process_time() - began):,.0f} {name} shapes")
    return " and ".join(told) + " a second of processor time looked up"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument(
        "--recording", default="h200", help="the name of a shipped one, or a file"
    )
    arguments.add_argument(
        "--refit", type=int, default=0, metavar="STEPS", help="0: the constants in use"
    )
    arguments.add_argument("--write", action="store_true", help=f"write {OUT.name}")
    chosen = arguments.parse_args()
    file = chosen.recording.endswith(".jsonl.gz")
    recording = Recording.load(Path(chosen.recording) if file else chosen.recording)
    shapes = recorded_shapes(recording)
    print(f"{len(shapes)} recorded shapes, {sum(len(s.raced) for s in shapes)} raced configs")
    if len(shapes) < 2:
        sys.exit("Leaving one out needs two recorded shapes or more.")
    times = recorded_times(recording)
    model_without = models(times, chosen.refit, [s.problem for s in shapes])
    cases = list(left_out(shapes, recording.device.key, model_without))
    rows = table(cases)
    told = {
        "command": " ".join(["python -m benchmarks.score_lookup", *sys.argv[1:]]),
        "recording": Path(chosen.recording).name,
        "device_key": recording.device.key,
        "kernel_hash": recording.toolchain.kernel_hash,
        "nvrtc_version": recording.toolchain.nvrtc_version,
        "table": [{k: round(v, 4) if k != "rule" else v for k, v in row.items()} for row in rows],
    }
    scored = shipped(shapes, cases, told)
    show(rows, scored, halves(shapes))
    print(speed(shapes, recording.device.key))
    if chosen.write:
        OUT.write_text(json.dumps(scored, indent=1) + "\n")


if __name__ == "__main__":
    main()
