"""The shipped search as a contestant of `benchmarks/score_search.py`, played by `tuner.study`.

A whole study of the left-out shape runs on its recorded rows, in a memory that holds the other
shapes' rows as a database would.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from benchmarks.search_game import Game
from tuner.config import KernelConfig
from tuner.device.replay import RecordedCompiler, Recording, ReplayDevice
from tuner.lookup.cost_model import Estimate
from tuner.search.sampler import VARIANT_FAILURES
from tuner.shape import Problem
from tuner.study import Budget, Event, Tools, TrialDone, tune
from tuner.trial import Measurement, ShapeOutcome, ShapeState, Source, Toolchain


@dataclass
class Memory:
    """Rows and outcomes as a study stores them; implements `tuner.study.ports.Rows`."""

    stored: dict[Problem, list[Measurement]] = field(default_factory=dict)
    outcomes: dict[Problem, ShapeOutcome] = field(default_factory=dict)

    def add(self, rows: Sequence[Measurement], /) -> None:
        for row in rows:
            self.stored.setdefault(row.problem, []).append(row)

    def attempts(
        self, problem: Problem, device_key: str, *, sources: Collection[str]
    ) -> list[Measurement]:
        return [
            row
            for row in self.stored.get(problem, ())
            if row.device_key == device_key and row.source in sources
        ]

    def shapes(self, device_key: str) -> list[ShapeOutcome]:
        return [o for o in self.outcomes.values() if o.device_key == device_key]

    def setbacks(
        self, device_key: str, toolchain: Toolchain, *, sources: Collection[str]
    ) -> list[Measurement]:
        return [
            row
            for rows in self.stored.values()
            for row in rows
            if row.state in VARIANT_FAILURES
            and (row.device_key, row.toolchain) == (device_key, toolchain)
            and row.source in sources
        ]

    def outcome(
        self, problem: Problem, device_key: str, toolchain: Toolchain, source: Source
    ) -> ShapeOutcome | None:
        found = self.outcomes.get(problem)
        same = found and (found.device_key, found.toolchain) == (device_key, toolchain)
        return found if found and same and found.source == source else None

    def finish_shape(self, outcome: ShapeOutcome, /) -> None:
        self.outcomes[outcome.problem] = outcome


def remembered(recording: Recording, without: Collection[Problem]) -> Memory:
    """A memory of every recorded shape but some."""
    memory = Memory()
    for problem in recording.problems():
        if problem not in without:
            rows = recording.rows(problem)
            memory.add(rows)
            memory.finish_shape(
                ShapeOutcome(
                    problem,
                    recording.device.key,
                    recording.device.name,
                    recording.toolchain,
                    ShapeState.TUNED,
                    source=rows[0].source,
                )
            )
    return memory


def played(game: Game, memory: Memory, budget: int, estimate: Estimate) -> list[int]:
    """The moves of a whole study of the game's shape with a budget of so many trials.

    memory: rows of other shapes; what the study adds goes no further. estimate: the analytic model.
    """
    own = Memory(dict(memory.stored), dict(memory.outcomes))
    device = ReplayDevice(game.recording)
    told: list[KernelConfig] = []

    def follow(event: Event) -> None:
        if isinstance(event, TrialDone) and event.measurement.contender.config:
            told.append(event.measurement.contender.config)

    source = game.recording.rows(game.problem)[0].source
    tools = Tools(device, RecordedCompiler(device), own, "", source, menu=device, estimate=estimate)
    setbacks = own.setbacks(device.identify().key, game.recording.toolchain, sources=(source,))
    tune(game.problem, tools, Budget(trials=budget), follow, setbacks)
    position = {config: move for move, config in enumerate(game.configs)}
    return [position[config] for config in told]
