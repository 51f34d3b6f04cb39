"""Ask and tell: which config to measure next. An Optuna sampler over the legal menu.

The study lives in memory and is rebuilt from stored rows, so nothing of Optuna is ever kept.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalChoiceType,
    CategoricalDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from tuner.config import CHOICES, SWITCHES, KernelConfig, KernelVariant
from tuner.lookup.cost_model import Estimate, estimate_us
from tuner.search.launches import knob_neighbours
from tuner.search.open_pool import OpenPool
from tuner.search.outlook import Outlook, nearest_lessons
from tuner.search.seeds import seeds
from tuner.shape import MAX_EXTENT, Problem
from tuner.trial import Measurement, TrialState

VARIANT_FAILURES = frozenset(
    {
        TrialState.COMPILE_REFUSED,
        TrialState.COMPILE_TIMEOUT,
        TrialState.WRONG_RESULT,
        TrialState.TIMEOUT,
        TrialState.CRASHED,
    }
)
"""States that speak against a variant however it is launched, and whatever the shape."""
FAILURE = "failure"
"""User attribute of a failed trial: the state of the attempt."""
_CATEGORIES: dict[str, tuple[CategoricalChoiceType, ...]] = {
    **CHOICES,
    **dict.fromkeys(SWITCHES, (False, True)),
}


def distributions(config: KernelConfig) -> dict[str, BaseDistribution]:
    """Optuna's view of a config's fields. Bounds never depend on the menu, which may grow."""
    return {
        name: CategoricalDistribution(_CATEGORIES[name])
        if name in _CATEGORIES
        else IntDistribution(0, MAX_EXTENT)
        for name in config.to_dict()
    }


class MenuSampler(optuna.samplers.BaseSampler):
    """Proposes the config of the pool with the largest expected improvement, never one twice.

    first: proposed before any other of the pool, in order.
    lessons: rows of other problems; rows of this one come from the study.
    """

    def __init__(
        self,
        problem: Problem,
        first: Sequence[KernelConfig],
        lessons: Sequence[Measurement],
        estimate: Estimate = estimate_us,
    ) -> None:
        self.first = list(first)
        self._problem, self._estimate = problem, estimate
        self._banned = {
            m.contender.config.variant
            for m in lessons
            if m.state in VARIANT_FAILURES and m.contender.config
        }
        self._lessons = nearest_lessons(problem, lessons, estimate)
        self._entries: Sequence[KernelConfig] = ()
        self._pool = OpenPool(())
        self._outlook: Outlook | None = None
        self._configs: dict[int, KernelConfig] = {}
        self._seen: dict[int, OptunaState] = {}
        self._told: set[int] = set()

    def propose_from(self, pool: Sequence[KernelConfig]) -> None:
        """Propose these from now on, as far as no trial was about them."""
        if pool is self._entries:
            return
        self._entries = pool
        self._pool = OpenPool([*self.first, *pool], self._banned)
        self._outlook, self._seen = None, {}

    def infer_relative_search_space(
        self,
        study: optuna.Study,  # noqa: ARG002
        trial: FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        return distributions(self._pool.configs[0])

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],  # noqa: ARG002
    ) -> dict[str, Any]:
        others = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
        return self._propose(others).to_dict()

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        raise NotImplementedError("a config is proposed whole; its fields are not independent")

    def is_exhausted(self, trials: Sequence[FrozenTrial]) -> bool:
        """Whether nothing of the pool may be proposed any more."""
        self._look_at(trials)
        return len(self._pool) == 0

    def config(self, trial: FrozenTrial) -> KernelConfig:
        """The config that `trial` is about; a trial never changes it."""
        if trial.number not in self._configs:
            self._configs[trial.number] = KernelConfig.from_dict(trial.params)
        return self._configs[trial.number]

    def sort_out(
        self, trials: Sequence[FrozenTrial]
    ) -> tuple[list[tuple[KernelConfig, float]], list[KernelConfig], list[KernelConfig]]:
        """Measured configs with their µs, failed ones, and those still under way."""
        done: list[tuple[KernelConfig, float]] = []
        failed: list[KernelConfig] = []
        running: list[KernelConfig] = []
        for trial in trials:
            if trial.state is OptunaState.COMPLETE and trial.value is not None:
                done.append((self.config(trial), trial.value))
            elif trial.state is OptunaState.FAIL:
                failed.append(self.config(trial))
            else:
                running.append(self.config(trial))
        return done, failed, running

    def _look_at(self, trials: Sequence[FrozenTrial]) -> None:
        """Close the pool to what was tried, and to variants that failed."""
        for trial in trials:
            if self._seen.get(trial.number) is trial.state:
                continue
            self._seen[trial.number] = trial.state
            self._pool.take(self.config(trial))
            if trial.user_attrs.get(FAILURE) in VARIANT_FAILURES:
                self._pool.ban(self.config(trial).variant)

    def _propose(self, trials: Sequence[FrozenTrial]) -> KernelConfig:
        self._look_at(trials)
        while self.first:
            if (head := self.first.pop(0)) in self._pool:
                return head
        running = [self.config(trial) for trial in trials if not trial.state.is_finished()]
        promise = np.where(self._pool.left, self._up_to_date(trials).promise(running), -1.0)
        return self._pool.configs[int(np.argmax(promise))]

    def _up_to_date(self, trials: Sequence[FrozenTrial]) -> Outlook:
        """The outlook, told of every trial that has ended."""
        tried = [self.config(trial) for trial in trials]
        if self._outlook is None or not self._outlook.knows(tried):
            pool = self._pool.configs
            self._outlook = Outlook(self._problem, pool, tried, self._lessons, self._estimate)
            self._told = set()
        for trial in trials:
            if trial.state.is_finished() and trial.number not in self._told:
                self._told.add(trial.number)
                worked = trial.state is OptunaState.COMPLETE
                self._outlook.tell(self.config(trial), trial.value if worked else None)
        return self._outlook


class Searcher:
    """One problem's search: ask for configs to measure, tell how they did.

    candidates: the legal menu. known: stored rows of this problem, which count as told.
    lessons: rows of other problems of this device and kernel. won: configs that may have won, to
    begin with.
    exactly: propose nothing but `candidates`, knobs included, as a recording demands.
    estimate: the analytic model.
    The same rows in the same order lead to the same proposals.
    """

    def __init__(
        self,
        problem: Problem,
        candidates: Sequence[KernelConfig],
        *,
        known: Iterable[Measurement] = (),
        lessons: Sequence[Measurement] = (),
        won: Sequence[KernelConfig] = (),
        exactly: bool = False,
        estimate: Estimate = estimate_us,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._problem = problem
        self._candidates = list(candidates)
        self._exactly = exactly
        self._sampler = MenuSampler(problem, seeds(candidates, won), lessons, estimate)
        self._study = optuna.create_study(sampler=self._sampler)
        self._asked: dict[KernelConfig, optuna.Trial] = {}
        for measurement in known:
            self._add(measurement)

    def ask(self, count: int) -> list[KernelConfig]:
        """Up to `count` candidates not proposed before; empty when the menu is used up."""
        self._sampler.propose_from(self._candidates)
        return self._ask(count)

    def ask_knobs(self, count: int, bases: Sequence[KernelConfig]) -> list[KernelConfig]:
        """Up to `count` relaunches of the variants of `bases`, one knob apart.

        Each variant starts from its fastest launch, so a launch that turned out better is itself
        varied the next time, and knobs combine.
        """
        kept = {c.variant for c in bases}
        if self._exactly:
            pool = [c for c in self._candidates if c.variant in kept]
        else:
            best = [c for c in self.fastest(len(self._candidates)) if c.variant in kept]
            pool = [n for c in best for n in knob_neighbours(c, self._problem)]
        self._sampler.first = []
        self._sampler.propose_from(pool)
        return self._ask(count)

    def relaunched(self, bases: Sequence[KernelConfig]) -> list[KernelConfig]:
        """Every launch of the variants of `bases` that worked, fastest first."""
        kept = {c.variant for c in bases}
        every = self.fastest(MAX_EXTENT, per_variant=MAX_EXTENT)
        return [c for c in every if c.variant in kept]

    def tell(self, measurement: Measurement) -> None:
        """Report an attempt at an asked config, or at any other."""
        config = measurement.contender.config
        trial = self._asked.pop(config, None) if config else None
        if trial is None:
            self._add(measurement)
        elif measurement.state is TrialState.OK:
            self._study.tell(trial, measurement.median_us)
        else:
            trial.set_user_attr(FAILURE, measurement.state.value)
            self._study.tell(trial, state=OptunaState.FAIL)

    def fastest(self, count: int, per_variant: int = 1) -> list[KernelConfig]:
        """The `count` fastest configs that never failed, at most `per_variant` of one variant."""
        done, failed, _ = self._sampler.sort_out(self._study.get_trials(deepcopy=False))
        done = [(config, us) for config, us in done if config not in failed]
        taken: dict[KernelVariant, int] = {}
        chosen: list[KernelConfig] = []
        for config, _ in sorted(done, key=lambda pair: (pair[1], pair[0])):
            if taken.get(config.variant, 0) < per_variant:
                taken[config.variant] = taken.get(config.variant, 0) + 1
                chosen.append(config)
        return chosen[:count]

    def _ask(self, count: int) -> list[KernelConfig]:
        configs = []
        for _ in range(count):
            if self._sampler.is_exhausted(self._study.get_trials(deepcopy=False)):
                break
            trial = self._study.ask(distributions(self._candidates[0]))
            config = KernelConfig.from_dict(trial.params)
            self._asked[config] = trial
            configs.append(config)
        return configs

    def _add(self, measurement: Measurement) -> None:
        """A row that was not asked for here: stored earlier, or measured by another driver."""
        config = measurement.contender.config
        if config is None:
            return
        worked = measurement.state is TrialState.OK
        self._study.add_trial(
            optuna.trial.create_trial(
                state=OptunaState.COMPLETE if worked else OptunaState.FAIL,
                value=measurement.median_us if worked else None,
                params=config.to_dict(),
                distributions=distributions(config),
                user_attrs={} if worked else {FAILURE: measurement.state.value},
            )
        )
