"""Times a few known configs of one problem again: each is proved, then all race the libraries."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from tuner.config import KernelConfig
from tuner.device.attempts import Attempts
from tuner.device.origin import Origin
from tuner.device.protocol import BEST_ALGORITHM, CUBLAS, Entrant
from tuner.errors import CompileError, DeviceError, DeviceUnavailable, DoesNotFit
from tuner.legality import faults
from tuner.search.space import trusted_config
from tuner.shape import Problem
from tuner.study.ports import Tools
from tuner.study.progress import Budget
from tuner.trial import (
    PROTOCOL_COOL,
    PROTOCOL_HOT,
    PROTOCOL_SCREEN,
    CompileFailure,
    Contender,
    Cubin,
    Measurement,
    Sampled,
    ShapeOutcome,
    ShapeState,
    TrialState,
)

AS_SEARCHED = Budget()
"""What is timed again races in as many rounds as the finalists of a search."""


@dataclass(frozen=True, slots=True)
class Retimed:
    """How it ended and the rows it left, all of which are stored; the outcome is not."""

    outcome: ShapeOutcome
    rows: tuple[Measurement, ...]


def retime(problem: Problem, configs: Sequence[KernelConfig], tools: Tools) -> Retimed:
    """Prove and screen each of `configs`, then race those that are right, hot and cool.

    What a shape or a config does becomes its state; a config that is not legal any more, or that a
    recording does not hold, is left out.
    Raises: DeviceUnavailable, StoreError, or CompileError where no compiler works.
    """
    return _Retiming(problem, tools).run(configs)


class _Retiming:
    def __init__(self, problem: Problem, tools: Tools) -> None:
        self._problem, self._tools = problem, tools
        self._origin = Origin(
            problem,
            tools.device.identify(),
            tools.compiler.toolchain(),
            tools.source,
            tools.run_id,
            tools.worker,
        )
        self._rows: list[Measurement] = []

    def run(self, configs: Sequence[KernelConfig]) -> Retimed:
        began = time.monotonic()
        attempts = Attempts(self._tools.device, self._problem, self._trusted())
        try:
            state, detail = self._timed(attempts, self._runnable(configs))
        except DoesNotFit as error:
            state, detail = ShapeState.DOES_NOT_FIT, str(error)
        except DeviceUnavailable:
            raise
        except DeviceError as error:
            state, detail = ShapeState.NO_VALID_CONFIG, str(error)
        tried = [row for row in self._rows if row.race is None]
        outcome = replace(
            self._origin.outcome(state, detail),
            counts=Counter(row.state.value for row in tried),
            trials=len(tried),
            seconds=time.monotonic() - began,
            verify_seconds=attempts.verify_seconds,
            measure_seconds=attempts.measure_seconds,
        )
        return Retimed(outcome, tuple(self._rows))

    def _timed(self, attempts: Attempts, configs: Sequence[KernelConfig]) -> tuple[ShapeState, str]:
        if not configs:
            return ShapeState.NO_VALID_CONFIG, "none of its configs can be run here any more."
        attempts.prepare()
        sound = [e for c in configs if (e := self._sound(attempts, c))]
        if not sound:
            return ShapeState.NO_VALID_CONFIG, "none of its configs is right and measurable."
        everybody = [*sound, CUBLAS, BEST_ALGORITHM]
        hot = self._race(attempts, everybody, PROTOCOL_HOT, AS_SEARCHED.rounds_hot)
        raced = dict.fromkeys(row.contender for row in hot)
        lasting = [e for e in (*sound, CUBLAS) if e.contender in raced]
        named = [Entrant(c) for c in raced if c.algorithm is not None]
        lasting += [*named, BEST_ALGORITHM] if named else []
        self._race(attempts, lasting, PROTOCOL_COOL, AS_SEARCHED.rounds_cool)
        if {"kernel", "cublas"} <= {r.contender.name for r in hot if r.state is TrialState.OK}:
            return ShapeState.TUNED, ""
        return ShapeState.NO_VALID_CONFIG, "the race had no kernel, or no cuBLAS, that finished."

    def _trusted(self) -> Entrant:
        config = trusted_config(self._problem)
        compiled = self._tools.compiler.submit(config.variant).result()
        if isinstance(compiled, CompileFailure):
            raise CompileError(f"the trusted config does not compile: {compiled.detail}")
        return Entrant(Contender("kernel", config), compiled)

    def _runnable(self, configs: Sequence[KernelConfig]) -> list[KernelConfig]:
        legal = [c for c in configs if not faults(c, self._problem)]
        if self._tools.menu is None:
            return legal
        recorded = set(self._tools.menu.recorded_configs(self._problem))
        return [c for c in legal if c in recorded]

    def _sound(self, attempts: Attempts, config: KernelConfig) -> Entrant | None:
        compiled: Cubin | CompileFailure = self._tools.compiler.submit(config.variant).result()
        contender = Contender("kernel", config)
        if isinstance(compiled, CompileFailure):
            self._keep([Sampled(contender, compiled.state, detail=compiled.detail)])
            return None
        entrant = Entrant(contender, compiled)
        sampled = attempts.attempt(entrant)
        self._keep([sampled])
        return entrant if sampled.state is TrialState.OK else None

    def _race(
        self, attempts: Attempts, entrants: Sequence[Entrant], protocol: str, rounds: int
    ) -> list[Measurement]:
        result = attempts.race(entrants, protocol, rounds)
        race = uuid4().hex
        self._keep([one for one in result.removed if one.contender.config is not None])
        libraries = [one for one in result.removed if one.contender.config is None]
        self._keep(libraries, protocol, race)
        return self._keep(result.sampled, protocol, race)

    def _keep(
        self, sampled: Sequence[Sampled], protocol: str = PROTOCOL_SCREEN, race: str | None = None
    ) -> list[Measurement]:
        rows = [self._origin.row(one, protocol, race) for one in sampled]
        self._tools.repository.add(rows)
        self._rows += rows
        return rows
