"""Searches that the shipped one is compared with, all cold but the portfolio.

Each makes moves in a `Game` and learns what these reveal. Samplers that make up configs of their
own get the recorded config most like what they made up, of those not measured yet, and are told
of that one.
"""

import warnings
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.trial import TrialState, create_trial

from benchmarks.left_out import coordinates
from benchmarks.search_game import Game
from tuner.config import CHOICES, SWITCHES, KernelConfig

Matrix = NDArray[np.float64]


def random_moves(game: Game, budget: int, seed: int) -> list[int]:
    """Every config with the same chance, none twice."""
    moves = list(range(len(game.configs)))
    Random(seed).shuffle(moves)
    return moves[:budget]


def tpe_moves(game: Game, budget: int, seed: int) -> list[int]:
    """Optuna's TPE, multivariate."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = TPESampler(multivariate=True, seed=seed)
    return _sampled(game, budget, sampler)


def gp_moves(game: Game, budget: int, seed: int) -> list[int]:
    """Optuna's Gaussian process. Needs torch and scipy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return _sampled(game, budget, GPSampler(seed=seed))


def _sampled(game: Game, budget: int, sampler: BaseSampler) -> list[int]:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    fields = Fields(game.configs)
    study = optuna.create_study(sampler=sampler)
    placed = np.array([coordinates(config) for config in game.configs])
    left = np.ones(len(game.configs), dtype=bool)
    moves: list[int] = []
    for _ in range(min(budget, len(game.configs))):
        trial = study.ask(fields.distributions)
        wanted = np.array(coordinates(fields.config(trial.params)))
        study.tell(trial, state=TrialState.FAIL)  # what is measured is a trial of its own
        away = np.abs(placed - wanted).sum(axis=1)
        move = int(np.argmin(np.where(left, away, np.inf)))
        left[move] = False
        moves.append(move)
        us = game.screened_us[move]
        study.add_trial(
            create_trial(
                state=TrialState.FAIL if us is None else TrialState.COMPLETE,
                value=us,
                params=fields.params(game.configs[move]),
                distributions=fields.distributions,
            )
        )
    return moves


class Fields:
    """The fields in which some configs differ: named ones as categories, numbers as ranks."""

    def __init__(self, configs: Sequence[KernelConfig]) -> None:
        every = [config.to_dict() for config in configs]
        self._same = every[0]
        self._values = {
            name: values
            for name in self._same
            if len(values := sorted({one[name] for one in every})) > 1
        }
        self.distributions: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(values)
            if name in CHOICES or name in SWITCHES
            else IntDistribution(0, len(values) - 1)
            for name, values in self._values.items()
        }

    def values(self, name: str) -> list[Any]:
        """Every value of one of `params`, in order."""
        values = self._values[name]
        named = isinstance(self.distributions[name], CategoricalDistribution)
        return list(values) if named else list(range(len(values)))

    def params(self, config: KernelConfig) -> dict[str, object]:
        told = config.to_dict()
        return {
            name: told[name]
            if isinstance(self.distributions[name], CategoricalDistribution)
            else values.index(told[name])
            for name, values in self._values.items()
        }

    def config(self, params: dict[str, object]) -> KernelConfig:
        chosen = {
            name: params[name]
            if isinstance(self.distributions[name], CategoricalDistribution)
            else values[int(str(params[name]))]
            for name, values in self._values.items()
        }
        return KernelConfig.from_dict({**self._same, **chosen})


Portfolio = Sequence[KernelConfig]


def portfolio(others: Sequence[Game], size: int) -> Portfolio:
    """Configs that together lose least on the shapes of `others`, the greediest choice first.

    A config that was not recorded on a shape counts there as the recorded one most like it.
    """
    pool = list(
        dict.fromkeys(
            config
            for game in others
            for config, us in zip(game.configs, game.screened_us, strict=True)
            if us is not None
        )
    )
    losses = np.stack([_losses(game, pool) for game in others], axis=1)
    best = np.full(len(others), np.inf)
    chosen: list[int] = []
    for _ in range(min(size, len(pool))):
        with_each = np.minimum(losses, best).mean(axis=1)
        with_each[chosen] = np.inf
        if not np.isfinite(with_each).any() or (np.isfinite(best).all() and best.max() <= 0):
            break  # nothing is left to gain
        chosen.append(int(np.argmin(with_each)))
        best = np.minimum(best, losses[chosen[-1]])
    # What loses least alone comes after what the greedy choice could use.
    alone = np.argsort(losses.mean(axis=1), kind="stable")
    rest = [int(i) for i in alone if int(i) not in set(chosen)]
    return [pool[i] for i in [*chosen, *rest][:size]]


def _losses(game: Game, pool: Sequence[KernelConfig]) -> Matrix:
    """Regret on one shape of the recorded config most like each of `pool`."""
    worked = [move for move, us in enumerate(game.screened_us) if us is not None]
    placed = np.array([coordinates(game.configs[move]) for move in worked])
    nearest = [
        worked[int(np.argmin(np.abs(placed - np.array(coordinates(config))).sum(axis=1)))]
        for config in pool
    ]
    return np.array([game.regret(move) for move in nearest])


def portfolio_moves(game: Game, budget: int, chosen: Portfolio) -> list[int]:
    """The portfolio in order, each config as the unmeasured recorded one most like it."""
    placed = np.array([coordinates(config) for config in game.configs])
    left = np.ones(len(game.configs), dtype=bool)
    moves: list[int] = []
    for config in chosen[:budget]:
        if not left.any():
            break
        away = np.abs(placed - np.array(coordinates(config))).sum(axis=1)
        move = int(np.argmin(np.where(left, away, np.inf)))
        left[move] = False
        moves.append(move)
    return moves


Rival = Callable[[Game, int, int], list[int]]
RIVALS: dict[str, Rival] = {
    "random": random_moves,
    "Optuna TPE, multivariate, cold": tpe_moves,
    "Optuna GP, cold": gp_moves,
}
