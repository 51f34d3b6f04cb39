"""The pipeline: propose, compile, prove, time and store; then race the best and store that.

Nothing that is measured is lost: every attempt is stored before the next one is told of it.
"""

import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

from tuner.config import KernelConfig, KernelVariant
from tuner.device.bench import Bench
from tuner.device.protocol import Device, Entrant, Menu
from tuner.errors import CompileError, DeviceError, DeviceUnavailable, DoesNotFit
from tuner.hardware import DeviceIdentity
from tuner.legality import faults
from tuner.search.ahead import compiled_ahead
from tuner.search.progress import (
    Budget,
    Event,
    OnEvent,
    RaceStarted,
    ShapeEnded,
    ShapeStarted,
    TrialDone,
)
from tuner.search.sampler import VARIANT_FAILURES, Searcher
from tuner.search.seeds import nearest, winners
from tuner.search.space import menu, trusted_config
from tuner.shape import Problem
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
    Source,
    Toolchain,
    TrialState,
)

__all__ = [
    "Budget",
    "Event",
    "RaceStarted",
    "ShapeEnded",
    "ShapeStarted",
    "Tools",
    "TrialDone",
    "run_all",
    "tune",
]

SEARCH_SHARE = 0.7
"""Of `Budget.seconds_per_shape`, what the search may take; the rest is for the races."""
KNOB_SHARE = 1 / 3
"""Of `Budget.trials`, what relaunches of the best variants get: they compile nothing."""
NEIGHBOURS = 6
"""Tuned shapes that a search learns from: the nearest."""
NO_CUBIN = frozenset({TrialState.COMPILE_REFUSED, TrialState.COMPILE_TIMEOUT})


class Compiler(Protocol):
    """Where cubins come from."""

    def toolchain(self) -> Toolchain: ...

    def submit(self, variant: KernelVariant) -> Future[Cubin | CompileFailure]: ...


class Rows(Protocol):
    """Where rows are kept."""

    def add(self, rows: Sequence[Measurement], /) -> None: ...

    def attempts(
        self,
        problem: Problem,
        device_key: str,
        *,
        sources: Collection[str],
        toolchain: Toolchain | None = None,
    ) -> list[Measurement]: ...

    def outcome(
        self, problem: Problem, device_key: str, toolchain: Toolchain, source: Source
    ) -> ShapeOutcome | None: ...

    def finish_shape(self, outcome: ShapeOutcome, /) -> None: ...

    def shapes(self, device_key: str) -> list[ShapeOutcome]: ...


@dataclass(frozen=True, slots=True)
class Tools:
    """What tuning needs. `menu`: where a device can only answer for some configs, as replay."""

    device: Device
    compiler: Compiler
    repository: Rows
    run_id: str
    source: Source = "measured"
    worker: str = ""
    menu: Menu | None = None


def run_all(
    problems: Sequence[Problem], tools: Tools, budget: Budget, on_event: OnEvent = lambda _: None
) -> list[ShapeOutcome]:
    """Tune every problem that is not done; one that fails does not stop the others.

    Raises: DeviceUnavailable, StoreError, or CompileError where no compiler works; what was
    finished is stored. So it is when the user interrupts.
    """
    outcomes = []
    setbacks: list[Measurement] = []
    for position, problem in enumerate(problems, start=1):
        on_event(ShapeStarted(problem, position, len(problems)))
        done = finished(problem, tools)
        outcome = done or tune(problem, tools, budget, on_event, setbacks)
        outcomes.append(outcome)
        on_event(ShapeEnded(outcome, position, len(problems), resumed=done is not None))
    return outcomes


def finished(problem: Problem, tools: Tools) -> ShapeOutcome | None:
    """The stored outcome of `problem`, if it need not be tuned again on this device."""
    key, toolchain = tools.device.identify().key, tools.compiler.toolchain()
    outcome = tools.repository.outcome(problem, key, toolchain, tools.source)
    if outcome is None:
        return None
    searched = outcome.state is ShapeState.NO_VALID_CONFIG and outcome.trials > 0
    return outcome if outcome.state is ShapeState.TUNED or searched else None


def tune(
    problem: Problem,
    tools: Tools,
    budget: Budget,
    on_event: OnEvent = lambda _: None,
    setbacks: list[Measurement] | None = None,
) -> ShapeOutcome:
    """Search, race and store one problem; return how it ended.

    setbacks: failures that speak against a variant on every shape; read and added to.
    Raises: as `run_all`.
    """
    if done := finished(problem, tools):
        return done
    study = Study(problem, tools, budget, on_event, [] if setbacks is None else setbacks)
    state, detail = study.run()
    outcome = study.outcome(state, detail)
    tools.repository.finish_shape(outcome)
    return outcome


class Study:
    """The tuning of one problem, from its menu to its races."""

    def __init__(
        self,
        problem: Problem,
        tools: Tools,
        budget: Budget,
        on_event: OnEvent,
        setbacks: list[Measurement],
    ) -> None:
        self._problem, self._tools, self._budget = problem, tools, budget
        self._on_event, self._setbacks = on_event, setbacks
        self._started = time.monotonic()
        self._identity: DeviceIdentity = tools.device.identify()
        self._toolchain = tools.compiler.toolchain()
        self._rows: list[Measurement] = []
        self._compiled: set[KernelVariant] = set()
        self._bench: Bench | None = None

    def run(self) -> tuple[ShapeState, str]:
        """How it ended, and why where that is not `tuned`."""
        if reason := self._problem.shape.unsupported_reason():
            return ShapeState.UNSUPPORTED, reason
        candidates = self._candidates()
        if self._tools.menu is not None and not candidates:
            return ShapeState.NOT_RECORDED, f"the recording has no {self._problem.shape}."
        try:
            self._bench = bench = Bench(self._tools.device, self._problem, self._trusted())
            bench.prepare()
            searcher = self._searcher(candidates)
            self._search(searcher, bench)
            finalists = searcher.fastest(self._budget.finalists, per_variant=3)
            if not finalists:
                return ShapeState.NO_VALID_CONFIG, "no candidate was right and measurable."
            hot = self._race(bench, finalists, PROTOCOL_HOT, self._budget.rounds_hot)
            lasting = [c for c in finalists if any(r.contender.config == c for r in hot)]
            self._race(bench, lasting, PROTOCOL_COOL, self._budget.rounds_cool)
        except DoesNotFit as error:
            return ShapeState.DOES_NOT_FIT, str(error)
        except DeviceUnavailable:
            raise
        except DeviceError as error:
            return ShapeState.NO_VALID_CONFIG, str(error)
        names = {row.contender.name for row in hot if row.state is TrialState.OK}
        if {"kernel", "cublas"} <= names:
            return ShapeState.TUNED, ""
        return ShapeState.NO_VALID_CONFIG, "the race had no kernel, or no cuBLAS, that finished."

    def outcome(self, state: ShapeState, detail: str) -> ShapeOutcome:
        counts: dict[str, int] = {}
        for row in self._rows:
            counts[row.state.value] = counts.get(row.state.value, 0) + 1
        return ShapeOutcome(
            self._problem,
            self._identity.key,
            self._identity.name,
            self._toolchain,
            state,
            detail,
            counts,
            trials=len(self._rows),
            compiled=len(self._compiled),
            seconds=time.monotonic() - self._started,
            verify_seconds=self._bench.verify_seconds if self._bench else 0.0,
            measure_seconds=self._bench.measure_seconds if self._bench else 0.0,
            source=self._tools.source,
            run_id=self._tools.run_id,
        )

    def _candidates(self) -> list[KernelConfig]:
        if self._tools.menu is None:
            return menu(self._problem)
        recorded = self._tools.menu.recorded_configs(self._problem)
        return [c for c in recorded if not faults(c, self._problem)]

    def _trusted(self) -> Entrant:
        config = trusted_config(self._problem)
        compiled = self._tools.compiler.submit(config.variant).result()
        if isinstance(compiled, CompileFailure):
            raise CompileError(f"the trusted config does not compile: {compiled.detail}")
        return Entrant(Contender("kernel", config), compiled)

    def _searcher(self, candidates: list[KernelConfig]) -> Searcher:
        """A search that knows what is stored of this shape and of its neighbours."""
        stored = self._stored(self._problem)
        known = [row for row in stored if row.toolchain == self._toolchain and row.race is None]
        self._rows += known
        tuned = (outcome.problem for outcome in self._tools.repository.shapes(self._identity.key))
        near = nearest(self._problem, tuned)[:NEIGHBOURS]
        others = [row for problem in near for row in self._stored(problem)]
        return Searcher(
            self._problem,
            candidates,
            known=known,
            lessons=self._setbacks + [r for r in others if r.toolchain == self._toolchain],
            neighbours=winners(self._problem, [*stored, *others]),
            exactly=self._tools.menu is not None,
        )

    def _stored(self, problem: Problem) -> list[Measurement]:
        key, sources = self._identity.key, (self._tools.source,)
        return self._tools.repository.attempts(problem, key, sources=sources)

    def _search(self, searcher: Searcher, bench: Bench) -> None:
        """Variants first, then launch knobs of the best; what these leave goes to variants."""
        knob_trials = int(self._budget.trials * KNOB_SHARE)
        for ask, planned in (
            (searcher.ask, self._budget.trials - knob_trials),
            (searcher.ask_knobs, self._budget.trials),
            (searcher.ask, self._budget.trials),
        ):
            ready = compiled_ahead(
                ask,
                self._tools.compiler.submit,
                self._budget.batch,
                wanted=lambda planned=planned: self._wanted(planned),  # type: ignore[misc]
            )
            for config, compiled in ready:
                searcher.tell(self._keep(self._attempt(bench, config, compiled)))

    def _wanted(self, planned: int) -> int:
        """How many more configs to look at, up to `planned`: compile failures count half."""
        seconds = self._budget.seconds_per_shape
        elapsed = time.monotonic() - self._started
        if seconds is not None and self._rows and elapsed > SEARCH_SHARE * seconds:
            return 0
        uncompiled = sum(row.state in NO_CUBIN for row in self._rows)
        return planned - len(self._rows) + uncompiled // 2

    def _attempt(
        self, bench: Bench, config: KernelConfig, compiled: Cubin | CompileFailure
    ) -> Sampled:
        contender = Contender("kernel", config)
        if isinstance(compiled, CompileFailure):
            return Sampled(contender, compiled.state, detail=compiled.detail)
        if not compiled.cached:
            self._compiled.add(compiled.variant)
        return bench.attempt(Entrant(contender, compiled))

    def _race(
        self, bench: Bench, finalists: Sequence[KernelConfig], protocol: str, rounds: int
    ) -> list[Measurement]:
        """Race the finalists and the libraries, and store every row of it."""
        self._on_event(RaceStarted(self._problem, protocol, len(finalists)))
        futures = {c: self._tools.compiler.submit(c.variant) for c in finalists}
        compiled = {c: future.result() for c, future in futures.items()}
        entrants = [
            *(
                Entrant(Contender("kernel", c), x)
                for c, x in compiled.items()
                if isinstance(x, Cubin)
            ),
            Entrant(Contender("cublas")),
            Entrant(Contender("cublaslt")),
        ]
        result = bench.race(entrants, protocol, rounds)
        for sampled in result.removed:
            self._keep(sampled)
        race = uuid4().hex
        rows = [self._row(sampled, protocol, race) for sampled in result.sampled]
        self._tools.repository.add(rows)
        return rows

    def _keep(self, sampled: Sampled) -> Measurement:
        """Store an attempt outside a race, and tell of it."""
        row = self._row(sampled, PROTOCOL_SCREEN, race=None)
        self._tools.repository.add([row])
        self._rows.append(row)
        if row.state in VARIANT_FAILURES:
            self._setbacks.append(row)
        best = min((r for r in self._rows if r.median_us), key=_median_us, default=None)
        self._on_event(TrialDone(row, len(self._rows), self._budget.trials, best))
        return row

    def _row(self, sampled: Sampled, protocol: str, race: str | None) -> Measurement:
        return Measurement(
            self._problem,
            self._identity.key,
            self._identity.name,
            protocol,
            sampled.contender,
            self._toolchain,
            sampled.state,
            sampled.samples_us,
            sampled.detail,
            sampled.conditions,
            self._tools.source,
            self._tools.run_id,
            race,
            self._tools.worker,
        )


def _median_us(row: Measurement) -> float:
    return row.median_us or float("inf")
