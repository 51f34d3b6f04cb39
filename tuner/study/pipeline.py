"""The pipeline of one problem: propose, compile, prove, time and store; then race the best.

Nothing that is measured is lost: every attempt is stored before the next one is told of it.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from uuid import uuid4

from tuner.config import KernelConfig, KernelVariant
from tuner.device.attempts import Attempts
from tuner.device.origin import Origin
from tuner.device.protocol import BEST_ALGORITHM, CUBLAS, Entrant
from tuner.errors import CompileError, DeviceError, DeviceUnavailable, DoesNotFit
from tuner.legality import faults
from tuner.search.finalists import HEAT, LAST_HEAT, choose_finalists
from tuner.search.knowledge import informed_searcher
from tuner.search.sampler import VARIANT_FAILURES, Searcher
from tuner.search.space import menu, trusted_config
from tuner.shape import Problem
from tuner.study.ahead import compiled_ahead
from tuner.study.ports import Tools
from tuner.study.progress import Budget, OnEvent, RaceStarted, TrialDone
from tuner.study.stopping import Plateau
from tuner.study.twins import Untwinned, is_twin, most_twins, no_twins_of, twin_of, without_twins
from tuner.trial import (
    PROTOCOL_COOL,
    PROTOCOL_HEAT,
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

NO_CANDIDATE = "no candidate was right and measurable."
Ask = Callable[[int], list[KernelConfig]]
NO_CUBIN = frozenset({TrialState.COMPILE_REFUSED, TrialState.COMPILE_TIMEOUT})


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
        self._origin = Origin(
            problem,
            tools.device.identify(),
            tools.compiler.toolchain(),
            tools.source,
            tools.run_id,
            tools.worker,
        )
        self._rows: list[Measurement] = []
        self._compiled: set[KernelVariant] = set()
        self._attempts: Attempts | None = None
        self._plateau = Plateau(budget.patience)
        # The dependent launches of a recording are candidates like any other.
        self._most_twins = 0 if tools.menu is not None else most_twins(budget)

    def run(self) -> tuple[ShapeState, str]:
        """How it ended, and why where that is not `tuned`."""
        if reason := self._problem.shape.unsupported_reason():
            return ShapeState.UNSUPPORTED, reason
        candidates = self._candidates()
        if self._tools.menu is not None and not candidates:
            return ShapeState.NOT_RECORDED, f"the recording has no {self._problem.shape}."
        try:
            self._attempts = attempts = Attempts(self._tools.device, self._problem, self._trusted())
            attempts.prepare()
            searcher = self._searcher(candidates)
            finalists = self._search(searcher, attempts)
            if not finalists:
                return ShapeState.NO_VALID_CONFIG, NO_CANDIDATE
            finalists += self._twins(attempts, finalists)
            entrants = [*self._kernels(finalists), CUBLAS]
            hot = self._race(
                attempts, [*entrants, BEST_ALGORITHM], PROTOCOL_HOT, self._budget.rounds_hot
            )
            # Who ran hot runs cool; the algorithm that was best hot by its name, and beside it the
            # one that is best cool.
            raced = dict.fromkeys(row.contender for row in hot)
            lasting = [e for e in entrants if e.contender in raced]
            named = [Entrant(c) for c in raced if c.algorithm is not None]
            lasting += [*named, BEST_ALGORITHM] if named else []
            self._race(attempts, lasting, PROTOCOL_COOL, self._budget.rounds_cool)
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
        """The end of it, with what it took."""
        return replace(
            self._origin.outcome(state, detail),
            counts=Counter(row.state.value for row in self._rows),
            trials=len(self._rows),
            compiled=len(self._compiled),
            seconds=time.monotonic() - self._started,
            verify_seconds=self._attempts.verify_seconds if self._attempts else 0.0,
            measure_seconds=self._attempts.measure_seconds if self._attempts else 0.0,
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
        origin, exactly = self._origin, self._tools.menu is not None
        plain = Untwinned(self._tools.repository)
        searcher, self._rows = informed_searcher(
            self._problem,
            candidates,
            self._tools.repository if exactly else plain,
            origin.device.key,
            origin.toolchain,
            origin.source,
            self._setbacks if exactly else without_twins(self._setbacks),
            exactly,
            self._tools.estimate,
        )
        self._rows += plain.tried(self._problem, origin.toolchain)
        return searcher

    def _search(self, searcher: Searcher, attempts: Attempts) -> list[KernelConfig]:
        """Compile-time variants, then launch knobs of the best of them; returns the finalists.

        A screening meets a card that cools between candidates. Heats rank the same candidates on a
        card at its power limit, where others win.
        """
        trials, finalists = self._budget.trials, self._budget.finalists
        set_aside = max(self._most_twins - sum(map(is_twin, self._rows)), 0)
        planned = trials - set_aside
        relaunches, most_bases = int(planned * self._budget.knob_share), self._budget.knob_bases
        self._measure(searcher, attempts, searcher.ask, planned - relaunches)
        hot = self._heat(attempts, searcher.fastest(HEAT[0][0]), HEAT)
        bases = choose_finalists(searcher.fastest(most_bases), hot, per_tile=2)[:most_bases]
        self._plateau.begin_anew()
        self._measure(searcher, attempts, lambda n: searcher.ask_knobs(n, bases), planned)
        # A recording may hold too few launches of those variants to use up the trials.
        self._measure(searcher, attempts, searcher.ask, planned)
        # Where fewer configs work than could have a twin, the search takes the rest as well.
        needed = len(searcher.fastest(set_aside, per_variant=2))
        self._measure(searcher, attempts, searcher.ask, trials - needed)
        screened = searcher.fastest(finalists, per_variant=2)
        entrants = dict.fromkeys([*screened, *searcher.relaunched(bases)])
        hot = self._heat(attempts, list(entrants), LAST_HEAT)
        return choose_finalists(screened, hot, per_variant=2, per_tile=4)[:finalists]

    def _twins(self, attempts: Attempts, finalists: Sequence[KernelConfig]) -> list[KernelConfig]:
        """The dependent launches of the first finalists, of which every chain was right."""
        known = {row.contender.config: row.state for row in self._rows}
        looked_at: list[KernelConfig] = []
        for twin in map(twin_of, finalists):
            if len(looked_at) == self._most_twins:
                break
            if twin not in known:
                spent = self._wanted(self._budget.trials, share=1.0) <= 0
                if spent or twin.variant in no_twins_of(self._setbacks):
                    continue
                compiled = self._tools.compiler.submit(twin.variant).result()
                known[twin] = self._keep(self._attempt(attempts, twin, compiled)).state
            looked_at.append(twin)
        return [twin for twin in looked_at if known[twin] is TrialState.OK]

    def _measure(self, searcher: Searcher, attempts: Attempts, ask: Ask, planned: int) -> None:
        ready = compiled_ahead(
            ask,
            self._tools.compiler.submit,
            self._budget.batch,
            wanted=lambda: 0 if self._plateau.is_reached else self._wanted(planned),
        )
        for config, compiled in ready:
            searcher.tell(self._keep(self._attempt(attempts, config, compiled)))

    def _heat(
        self, attempts: Attempts, configs: Sequence[KernelConfig], laps: Sequence[tuple[int, int]]
    ) -> list[KernelConfig]:
        """The configs as short hot races rank them, fastest first; those of a later lap lead."""
        ranking = list(configs)[: laps[0][0]]
        for most, rounds in laps:
            if len(ranking) < 2:
                break
            entrants = self._kernels(ranking[:most])
            rows = self._race(attempts, entrants, PROTOCOL_HOT, rounds, stored_as=PROTOCOL_HEAT)
            timed = [row for row in rows if row.state is TrialState.OK]
            timed.sort(key=lambda row: median(row.samples_us))
            ranked = [row.contender.config for row in timed if row.contender.config]
            ranking = [*ranked, *ranking[most:]]
        return ranking

    def _wanted(self, planned: int, share: float | None = None) -> int:
        """How many more configs to look at, up to `planned`: compile failures count half.

        share: of the time that the shape may take, by default the search's; after it none.
        """
        seconds = self._budget.seconds_per_shape
        elapsed = time.monotonic() - self._started
        if (
            seconds is not None
            and self._rows
            and elapsed > (share or self._budget.search_share) * seconds
        ):
            return 0
        return planned - self._spent()

    def _spent(self) -> int:
        return len(self._rows) - sum(row.state in NO_CUBIN for row in self._rows) // 2

    def _attempt(
        self, attempts: Attempts, config: KernelConfig, compiled: Cubin | CompileFailure
    ) -> Sampled:
        contender = Contender("kernel", config)
        if isinstance(compiled, CompileFailure):
            return Sampled(contender, compiled.state, detail=compiled.detail)
        if not compiled.cached:
            self._compiled.add(compiled.variant)
        return attempts.attempt(Entrant(contender, compiled))

    def _race(
        self,
        attempts: Attempts,
        entrants: Sequence[Entrant],
        protocol: str,
        rounds: int,
        stored_as: str | None = None,
        race_id: str | None = None,
    ) -> list[Measurement]:
        """Race the entrants under `protocol`, store every row of it, return those of the finishers.

        A kernel that broke the race is a failed attempt; a library that did is a failed row of it.
        """
        name = stored_as or protocol
        kernels = sum(e.contender.config is not None for e in entrants)
        self._on_event(RaceStarted(self._problem, name, kernels))
        result = attempts.race(entrants, protocol, rounds)
        race = race_id or uuid4().hex
        failed_libraries = []
        for sampled in result.removed:
            if sampled.contender.config is None:
                failed_libraries.append(self._origin.row(sampled, name, race))
            else:
                self._keep(sampled)
        rows = [self._origin.row(sampled, name, race) for sampled in result.sampled]
        self._tools.repository.add([*rows, *failed_libraries])
        return rows

    def _kernels(self, configs: Sequence[KernelConfig]) -> list[Entrant]:
        """Our entrants of a race, without those that broke an earlier one; all were compiled."""
        broken = {r.contender.config for r in self._rows if r.state is not TrialState.OK}
        sound = [c for c in configs if c not in broken]
        futures = [(c, self._tools.compiler.submit(c.variant)) for c in sound]
        built = [(c, future.result()) for c, future in futures]
        return [Entrant(Contender("kernel", c), x) for c, x in built if isinstance(x, Cubin)]

    def _keep(self, sampled: Sampled) -> Measurement:
        """Store an attempt outside a race, and tell of it."""
        row = self._origin.row(sampled, PROTOCOL_SCREEN)
        self._tools.repository.add([row])
        self._rows.append(row)
        self._plateau.observe(row.median_us)
        if row.state in VARIANT_FAILURES:
            self._setbacks.append(row)
        best = min(
            (r for r in self._rows if r.median_us),
            key=lambda r: r.median_us or 0.0,
            default=None,
        )
        self._on_event(TrialDone(row, self._spent(), self._budget.trials, best))
        return row
