"""Dependent launch on chains:

    python -m benchmarks.chains --db sqlite:///tuner.db --out chains.json

On each of a dozen shapes 24 products in one CUDA graph, each of which reads what the one before
wrote, with and without a normalisation by a foreign kernel between them: our config launched
dependently, the same config launched plainly, and cuBLAS, in shuffled rounds on a hot card. Kept
are µs per step, every round, and whether each chain's buffers are, bit for bit, those of the same
chain run one step at a time. The config is the fastest stored one that is launched dependently, or
else the fastest stored, or the best modelled of the menu, or what `--config` states, made so.
The weights of a chain are the same at every step, so small ones are read from L2.
"""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.chains_on_device import KINDS, ChainResult, RunChains
from benchmarks.harness import SHAPES, Bench, extents, gpu, gpu_parser
from benchmarks.stored import fastest, raced
from tuner.config import KernelConfig
from tuner.device.attempts import Attempts
from tuner.errors import DeviceError, DeviceUnavailable, DoesNotFit, InvalidConfig
from tuner.legality import faults
from tuner.lookup.race import Candidate
from tuner.search.seeds import ranked
from tuner.search.space import menu, trusted_config
from tuner.shape import Problem
from tuner.shape_files import read_shape_files
from tuner.store.engine import open_store
from tuner.trial import TrialState, paired_ratio

MODULE = "benchmarks.chains"
LAUNCHES = 24
DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class Choice:
    """The config that a shape's chain runs, and where it came from."""

    config: KernelConfig
    came_from: str


def dependent(config: KernelConfig) -> KernelConfig:
    return replace(config, knobs=replace(config.knobs, dependent_launch=True))


def choose(problem: Problem, found: Sequence[Candidate], stated: KernelConfig | None) -> Choice:
    """Raises: InvalidConfig if the stated config cannot run this problem."""
    if stated:
        if broken := faults(dependent(stated), problem):
            raise InvalidConfig(f"{problem.shape} cannot run the stated config: {broken[0]}")
        return Choice(dependent(stated), "stated")
    if best := fastest(found, lambda config: config.knobs.dependent_launch):
        return Choice(best, "fastest stored with dependent launch")
    if best := fastest(found):
        return Choice(dependent(best), "fastest stored, launched dependently")
    modelled = ranked(problem, menu(problem))[0]
    return Choice(dependent(modelled), "best modelled, launched dependently")


def described(problem: Problem, choice: Choice, result: ChainResult) -> dict[str, Any]:
    """One row of the evidence. Ratios are medians over rounds: above 1, dependent is faster."""
    rows: dict[str, Any] = {}
    for kind, rounds in result.rounds.items():
        ours = rounds["dependent"]
        rows[kind] = {
            "us_per_step": {who: round(median(us), 4) for who, us in rounds.items()},
            "plain_over_dependent": paired_ratio(rounds["plain"], ours),
            "cublas_over_dependent": paired_ratio(rounds["cublas"], ours),
            "wrong_elements": result.wrong[kind],
            "rounds": {who: [round(us, 4) for us in of_one] for who, of_one in rounds.items()},
        }
    return {
        **extents(problem.shape),
        "launches": LAUNCHES,
        "config_from": choice.came_from,
        "config": choice.config.to_dict(),
        "right": right(result),
        **rows,
    }


def right(result: ChainResult) -> bool:
    """Every chain of ours gave the bits of the same chain one step at a time, every time."""
    return not any(count for of_kind in result.wrong.values() for count in of_kind.values())


def told(row: Mapping[str, Any]) -> str:
    parts = [f"{row['m']}x{row['n']}x{row['k']} ({row['config_from']})"]
    for kind in KINDS:
        us = row[kind]["us_per_step"]
        listed = " ".join(f"{who} {time:.2f}" for who, time in us.items())
        parts.append(f"{kind}: {listed} us, x{row[kind]['plain_over_dependent']:.3f}")
    return "; ".join([*parts, "right" if row["right"] else "WRONG"])


def run(bench: Bench, problem: Problem, choice: Choice, rounds: int) -> ChainResult:
    """Prove the config alone, then run and time its chains. Raises: DeviceError if it is wrong."""
    trusted = bench.entrant(trusted_config(problem))
    entrant = bench.entrant(choice.config)
    Attempts(bench.device, problem, trusted).prepare()
    verified = bench.device.verify(entrant)
    if verified.state is not TrialState.OK:
        raise DeviceError(f"{choice.config} ended {verified.state}: {verified.detail}")
    return bench.device.ask(RunChains(problem, entrant, LAUNCHES, rounds), DEADLINE_S)


def main() -> None:
    arguments = gpu_parser(__doc__, MODULE, database=True)
    arguments.add_argument("--shapes", type=Path, nargs="+", default=[SHAPES / "chains12.txt"])
    arguments.add_argument("--config", help="a config as JSON, for every shape")
    arguments.add_argument("--rounds", type=int, default=40)
    chosen = arguments.parse_args()
    stated = KernelConfig.from_dict(json.loads(chosen.config)) if chosen.config else None
    shapes = read_shape_files(chosen.shapes).shapes
    store = open_store(chosen.db, create=False) if chosen.db else nullcontext()
    with store as repository, gpu(chosen, MODULE) as bench:
        key = bench.device.identify().key
        failed: list[str] = []
        wrong: list[str] = []
        for shape in shapes:
            problem = Problem(shape, bench.sms)
            try:
                found = raced(repository, problem, key, bench.pool.toolchain())
                choice = choose(problem, found, stated)
                row = described(problem, choice, run(bench, problem, choice, chosen.rounds))
            except DeviceUnavailable:
                raise
            except (DeviceError, DoesNotFit, InvalidConfig) as error:
                failed.append(f"{shape}: {error}")
                print(failed[-1], flush=True)
                continue
            wrong += [] if row["right"] else [str(shape)]
            bench.results.add(row, told(row))
        bench.results.finish({"failed": failed, "wrong": wrong})
    if failed or wrong:
        raise SystemExit(os.EX_SOFTWARE)


if __name__ == "__main__":
    main()
