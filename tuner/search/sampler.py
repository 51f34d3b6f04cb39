"""Ask and tell: which config to measure next. An Optuna sampler over the legal menu.

The study lives in memory and is rebuilt from stored rows, so nothing of Optuna is ever kept.
"""

from collections.abc import Iterable, Sequence
from typing import Any

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
from tuner.search.launches import knob_neighbours
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
    """Proposes the config of `pool` with the largest expected improvement, never one twice.

    pool: what may be proposed now; first: proposed before any other of the pool, in order.
    lessons: rows of other problems; rows of this one come from the study.
    """

    def __init__(
        self, problem: Problem, first: Sequence[KernelConfig], lessons: Sequence[Measurement]
    ) -> None:
        self.pool: Sequence[KernelConfig] = ()
        self.first = list(first)
        self._problem = problem
        self._banned = {
            m.contender.config.variant
            for m in lessons
            if m.state in VARIANT_FAILURES and m.contender.config
        }
        self._lessons = nearest_lessons(problem, lessons)
        self._outlook: Outlook | None = None
        self._configs: dict[int, KernelConfig] = {}

    def infer_relative_search_space(
        self,
        study: optuna.Study,  # noqa: ARG002
        trial: FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        return distributions(self.pool[0])

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

    def open(self, trials: Sequence[FrozenTrial]) -> list[KernelConfig]:
        """What of `first` and the pool may still be proposed, in that order."""
        taken = {self.config(t) for t in trials}
        failed = (t for t in trials if t.user_attrs.get(FAILURE) in VARIANT_FAILURES)
        banned = self._banned | {self.config(t).variant for t in failed}
        entries = dict.fromkeys([*self.first, *self.pool]) if self.first else self.pool
        return [c for c in entries if c not in taken and c.variant not in banned]

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

    def _propose(self, trials: Sequence[FrozenTrial]) -> KernelConfig:
        candidates = self.open(trials)
        while self.first:
            if (head := self.first.pop(0)) in candidates:
                return head
        done, failed, running = self.sort_out(trials)
        if self._outlook is None or not self._outlook.still_holds(self.pool, done, failed):
            self._outlook = Outlook(self._problem, self.pool, self._lessons, done, failed, running)
        promise = self._outlook.promise(running)
        return max(candidates, key=promise.__getitem__)


class Searcher:
    """One problem's search: ask for configs to measure, tell how they did.

    candidates: the legal menu. known: stored rows of this problem, which count as told.
    lessons: rows of other problems of this device and kernel; neighbours: configs to begin with.
    exactly: propose nothing but `candidates`, knobs included, as a recording demands.
    The same rows in the same order lead to the same proposals.
    """

    def __init__(
        self,
        problem: Problem,
        candidates: Sequence[KernelConfig],
        *,
        known: Iterable[Measurement] = (),
        lessons: Sequence[Measurement] = (),
        neighbours: Sequence[KernelConfig] = (),
        exactly: bool = False,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._problem = problem
        self._candidates = list(candidates)
        self._exactly = exactly
        first = seeds(problem, candidates, neighbours) if candidates else []
        if exactly:
            first = [c for c in first if c in frozenset(candidates)]
        self._sampler = MenuSampler(problem, first, lessons)
        self._study = optuna.create_study(sampler=self._sampler)
        self._asked: dict[KernelConfig, optuna.Trial] = {}
        for measurement in known:
            self._add(measurement)

    def ask(self, count: int) -> list[KernelConfig]:
        """Up to `count` candidates not proposed before; empty when the menu is used up."""
        self._sampler.pool = self._candidates
        return self._ask(count)

    def ask_knobs(self, count: int, bases: Sequence[KernelConfig]) -> list[KernelConfig]:
        """Up to `count` relaunches of the variants of `bases`, one knob apart.

        Each variant starts from its fastest launch, so a launch that turned out better is itself
        varied the next time, and knobs combine.
        """
        kept = {c.variant for c in bases}
        if self._exactly:
            self._sampler.pool = [c for c in self._candidates if c.variant in kept]
        else:
            best = [c for c in self.fastest(len(self._candidates)) if c.variant in kept]
            self._sampler.pool = [n for c in best for n in knob_neighbours(c, self._problem)]
        self._sampler.first = []
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
            if not self._sampler.open(self._study.get_trials(deepcopy=False)):
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
