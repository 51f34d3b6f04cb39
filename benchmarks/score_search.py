"""Score the search on recorded sweeps: `python -m benchmarks.score_search --out FILE`.

Every recorded shape is searched in turn by every contestant, as `benchmarks/search_game.py` says,
and the table tells for each budget of trials how much slower the config found is than the best
recorded one: mean and 95th percentile over shapes and seeds. Nothing that a contestant starts from
has seen the shape: the shipped search and the portfolio know the other shapes' rows alone, and the
analytic model is fitted again without it (with --folds fewer than shapes, without others as well).

Kernel Tuner's strategies and Optuna's Gaussian process take part where the extra `compare` is
installed; --without leaves out contestants by a part of their names.
"""

import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.fit_model import fit, recorded_times
from benchmarks.harness import Results, command_of, parser
from benchmarks.score_lookup import spread
from benchmarks.search_game import Game, game, playable
from benchmarks.search_kernel_tuner import strategies
from benchmarks.search_ours import played, remembered
from benchmarks.search_rivals import RIVALS, portfolio, portfolio_moves
from tuner.cli import evidence
from tuner.cli.provenance import commit_measured
from tuner.config import KernelConfig
from tuner.device.replay import Recording
from tuner.lookup.choose import TIE_MARGIN
from tuner.lookup.cost_model import CostModel, Estimate, estimate_us
from tuner.shape import Problem

BUDGETS = (8, 16, 24, 32, 48, 64, 96)
NEAR = 0.01
"""Regret at which a search has as good as arrived."""
SHIPPED = "shipped search"
ALONE = "shipped search, without transfer"
MODELLESS = "shipped search, without the model"
PORTFOLIO = "greedy portfolio"
SLOW = ("Optuna GP, cold",)
"""Contestants of which a seed takes minutes: they play one seed, and no budget above SLOW_MOST."""
SLOW_MOST = 32
ABLATIONS = (ALONE, MODELLESS)
"""Contestants that play a quarter of the seeds: whole studies at every budget take their time."""


@dataclass(frozen=True, slots=True)
class Task:
    """One contestant on one shape, with these seeds."""

    contestant: str
    recording: str
    problem: Problem
    seeds: tuple[int, ...]
    budgets: tuple[int, ...]
    model: CostModel


@dataclass(frozen=True, slots=True)
class Score:
    """One seed of a contestant on one shape.

    hot_us: what was found at each budget; None if nothing that works. moves_near: until a config
    within NEAR of the best was measured; None if the largest budget did not.
    """

    contestant: str
    problem: Problem
    best_us: float
    hot_us: Mapping[int, float | None]
    moves_near: int | None

    def regret(self, budget: int) -> float:
        us = self.hot_us[budget]
        return 1.0 if us is None else us / self.best_us - 1


@cache
def loaded(name: str) -> Recording:
    """A recording, read once in a process: the name of a shipped one, or a file."""
    return Recording.load(Path(name) if name.endswith(".gz") else name)


@cache
def learnt_portfolio(name: str, problem: Problem) -> tuple[KernelConfig, ...]:
    recording = loaded(name)
    others = [game(recording, other, 0) for other in playable(recording) if other != problem]
    return tuple(portfolio(others, max(BUDGETS)))


def flat(problem: Problem, config: KernelConfig) -> float:  # noqa: ARG001
    """What no model says: that all configs are alike."""
    return 1.0


def contestants() -> list[str]:
    """Everybody who can take part here."""
    found = [SHIPPED, ALONE, MODELLESS, PORTFOLIO, *RIVALS]
    if find_spec("torch") is None:
        found = [name for name in found if name not in SLOW]
    return found + (list(strategies()) if find_spec("kernel_tuner") else [])


def play(task: Task) -> list[Score]:
    """Every seed of one contestant on one shape."""
    recording = loaded(task.recording)
    return [_scored(task, game(recording, task.problem, seed), seed) for seed in task.seeds]


def _scored(task: Task, played_game: Game, seed: int) -> Score:
    moves = _moves(task, played_game, seed)
    found = {budget: played_game.found(moves[budget]) for budget in task.budgets}
    return Score(
        task.contestant,
        task.problem,
        played_game.best_us,
        {b: None if move is None else played_game.hot_us[move] for b, move in found.items()},
        played_game.moves_to_within(moves[max(task.budgets)], NEAR),
    )


def _moves(task: Task, played_game: Game, seed: int) -> dict[int, Sequence[int]]:
    """What is measured at each budget; a contestant that does not look ahead plays once."""
    if task.contestant in (SHIPPED, ALONE, MODELLESS):
        recording = loaded(task.recording)
        known = recording.problems() if task.contestant == ALONE else [task.problem]
        memory = remembered(recording, known)
        fitted: Estimate = partial(estimate_us, model=task.model)
        estimate = flat if task.contestant == MODELLESS else fitted
        return {b: played(played_game, memory, b, estimate) for b in task.budgets}
    most = 2 * max(task.budgets)  # two failed compiles count as one
    if task.contestant == PORTFOLIO:
        chosen = learnt_portfolio(task.recording, task.problem)
        moves = portfolio_moves(played_game, most, chosen)
    else:
        rival = {**RIVALS, **strategies()}[task.contestant]
        moves = rival(played_game, max(task.budgets), seed)
    return {b: played_game.affordable(moves, b) for b in task.budgets}


def models(
    name: str, folds: int, steps: int, pool: ProcessPoolExecutor
) -> dict[Problem, CostModel]:
    """For each shape, the analytic model fitted on a recording without it."""
    recording = loaded(name)
    problems = playable(recording)
    times = {p: rows for p, rows in recorded_times(recording).items() if p in problems}
    parts = [part for i in range(folds) if (part := problems[i::folds])]
    fits = [
        pool.submit(fit, {p: rows for p, rows in times.items() if p not in part}, steps, 0)
        for part in parts
    ]
    return {p: f.result() for part, f in zip(parts, fits, strict=True) for p in part}


def tasks(
    names: Iterable[str], recording: str, seeds: int, fitted: Mapping[Problem, CostModel]
) -> Iterator[Task]:
    """The longest first."""
    problems = playable(loaded(recording))
    for name in sorted(names, key=lambda n: n not in SLOW):
        slow = name in SLOW
        count = 1 if slow else -(-seeds // 4) if name in ABLATIONS else seeds
        budgets = tuple(b for b in BUDGETS if not slow or b <= SLOW_MOST)
        for problem in problems:
            yield Task(name, recording, problem, tuple(range(count)), budgets, fitted[problem])


def summarised(scores: Sequence[Score]) -> dict[str, Any]:
    """One contestant: regret and winner flips at each budget, and moves until it is near."""
    budgets = sorted(set.intersection(*(set(score.hot_us) for score in scores)))
    near = [score.moves_near for score in scores]
    reached = sorted(moves for moves in near if moves is not None)
    return {
        "contestant": scores[0].contestant,
        "games": len(scores),
        "regret": {
            str(budget): {
                name: round(value, 5)
                for name, value in spread([s.regret(budget) for s in scores]).items()
                if name in ("mean", "p95", "worst")
            }
            for budget in budgets
        },
        "flips": {str(budget): round(flip_rate(scores, budget), 4) for budget in budgets},
        "near": {
            "share": round(len(reached) / len(near), 4),
            "median_moves": median(reached) if reached else None,
        },
    }


def flip_rate(scores: Sequence[Score], budget: int) -> float:
    """Share of pairs of seeds of a shape whose finds differ by more than a tie."""
    rates = []
    for problem in {score.problem for score in scores}:
        found = [s.hot_us[budget] or float("inf") for s in scores if s.problem == problem]
        pairs = list(combinations(found, 2))
        flips = [max(a, b) / min(a, b) - 1 > TIE_MARGIN for a, b in pairs if min(a, b) < max(a, b)]
        rates += [sum(flips) / len(pairs)] if pairs else []
    return fmean(rates) if rates else 0.0


def shown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table for a terminal: mean / 95th percentile of the regret in %."""
    head = f"{'contestant':38}" + "".join(f"{budget:>13}" for budget in BUDGETS)
    lines = [f"{head}  to 1 %  flips"]
    for row in rows:
        cells = "".join(f"{regret_cell(row, budget):>13}" for budget in BUDGETS)
        near, last = row["near"], list(row["flips"].values())[-1]
        moves = "-" if near["median_moves"] is None else f"{near['median_moves']:.0f}"
        lines.append(f"{row['contestant']:38}{cells}  {moves:>6}  {100 * last:4.0f}%")
    return "\n".join(lines)


def regret_cell(row: Mapping[str, Any], budget: int) -> str:
    found = row["regret"].get(str(budget))
    return f"{100 * found['mean']:.2f} / {100 * found['p95']:.2f}" if found else "-"


def main(given: Sequence[str] | None = None) -> None:
    arguments = parser(__doc__, "benchmarks.score_search")
    arguments.add_argument(
        "--recording", nargs="+", default=["h200"], help="names of shipped ones, or files"
    )
    arguments.add_argument("--seeds", type=int, default=20)
    arguments.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments.add_argument("--folds", type=int, default=6, help="fits of the analytic model")
    arguments.add_argument("--steps", type=int, default=300, help="of each fit")
    arguments.add_argument("--without", nargs="*", default=[], metavar="PART")
    chosen = arguments.parse_args(given)
    if min(chosen.seeds, chosen.jobs, chosen.folds, chosen.steps) < 1:
        sys.exit("--seeds, --jobs, --folds and --steps take 1 or more.")
    names = [n for n in contestants() if not any(part in n for part in chosen.without)]
    if too_few := [name for name in chosen.recording if len(playable(loaded(name))) < 2]:
        sys.exit(f"{too_few[0]} has fewer than two shapes; leaving one out needs two or more.")
    if not names:
        sys.exit("--without leaves nobody to play; name fewer.")
    first = loaded(chosen.recording[0])
    results = Results(
        chosen.out,
        {
            **evidence.origin(
                command_of("benchmarks.score_search", given),
                commit_measured(chosen.commit),
                first.device,
                first.toolchain,
            ),
            "source": "replay",
        },
    )
    scores: list[Score] = []
    # Each process works alone on small matrices; threads would only get in each other's way.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(chosen.jobs, mp_context=spawning) as pool:
        waiting: list[Future[list[Score]]] = []
        for recording in chosen.recording:
            fitted = models(recording, chosen.folds, chosen.steps, pool)
            asked = tasks(names, recording, chosen.seeds, fitted)
            waiting += [pool.submit(play, task) for task in asked]
        for done in as_completed(waiting):
            scores += done.result()
    of_each = {name: [s for s in scores if s.contestant == name] for name in names}
    for found in of_each.values():
        row = summarised(sorted(found, key=lambda s: s.problem))
        results.add(row, row["contestant"])
    print(shown(results.rows))
    shapes = {score.problem for score in scores}
    results.finish({"shapes": len(shapes), "seeds": chosen.seeds, "budgets": list(BUDGETS)})


if __name__ == "__main__":
    main()
