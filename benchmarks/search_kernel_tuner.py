"""Kernel Tuner's strategies as contestants, on its own simulation runner.

Its search space and its cache are the recorded configs of one shape. Its runner counts a config
once, however often a strategy asks for it.
"""

import io
import random
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.search_game import Game
from benchmarks.search_rivals import Fields

STRATEGIES = ("random_sample", "genetic_algorithm", "simulated_annealing", "diff_evo", "bayes_opt")
"""Modules of `kernel_tuner.strategies`, each with its default options. Those that walk from
neighbour to neighbour are left out: recorded configs are too sparse to have any."""


def strategy_moves(game: Game, budget: int, seed: int, strategy: str) -> list[int]:
    """What a strategy measures, in order; where it stops early, random configs follow.

    Raises: ImportError without the extra `compare`.
    """
    from kernel_tuner import util
    from kernel_tuner.interface import Options
    from kernel_tuner.runners.simulation import SimulationRunner
    from kernel_tuner.searchspace import Searchspace

    random.seed(seed)
    np.random.seed(seed)
    fields = Fields(game.configs)
    entries = [fields.params(config) for config in game.configs]
    names = list(entries[0])
    cache: dict[str, dict[str, Any]] = {}
    position = {}
    for move, (entry, us) in enumerate(zip(entries, game.screened_us, strict=True)):
        key = ",".join(str(entry[name]) for name in names)
        position[key] = move
        failure = util.RuntimeFailedConfig()
        cache[key] = {**entry, "time": us} if us else {**entry, "__error__": failure}
    values = {name: fields.values(name) for name in names}
    space = Searchspace(None, None, None, from_cache={"tune_params": values, "cache": cache})
    options = Options(
        tune_params=values,
        restrictions=None,
        cache=cache,
        cachefile=None,
        metrics=None,
        objective=["time"],
        objective_higher_is_better=[False],
        strategy_options=Options(max_fevals=budget),
        max_fevals=budget,
        budget=util.TuningBudget(None, budget),
        verbose=False,
        eps=1.0,
        seed=seed,
    )
    device = Options(quiet=True, device=0, platform=0)
    runner = SimulationRunner(None, Options(kernel_name="gemm"), device, 1, None)
    moves: dict[int, None] = {}
    plain = runner.run

    def run(asked: list[tuple[object, ...]], told: Options) -> list[object]:
        found: list[object] = plain(asked, told)
        for element, result in zip(asked, found, strict=True):
            key = ",".join(str(value) for value in element)
            if result is not None and key in position:
                moves[position[key]] = None
        return found

    runner.run = run
    module = import_module(f"kernel_tuner.strategies.{strategy}")
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        module.tune(space, runner, options)
    rest = [move for move in range(len(game.configs)) if move not in moves]
    random.shuffle(rest)
    return [*moves, *rest][:budget]


def strategies() -> dict[str, Callable[[Game, int, int], list[int]]]:
    return {f"Kernel Tuner, {name}": partial(strategy_moves, strategy=name) for name in STRATEGIES}
