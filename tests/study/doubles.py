"""An in-memory repository that keeps the contract of the real one."""

from collections.abc import Collection, Sequence

from tuner.shape import Problem
from tuner.trial import Measurement, ShapeOutcome, Source, Toolchain, TrialState


class MemoryRows:
    """Implements what a study needs of a repository."""

    def __init__(self) -> None:
        self.rows: list[Measurement] = []
        self.outcomes: list[ShapeOutcome] = []

    def add(self, rows: Sequence[Measurement]) -> None:
        self.rows += rows

    def attempts(
        self,
        problem: Problem,
        device_key: str,
        *,
        sources: Collection[str],
        toolchain: Toolchain | None = None,
    ) -> list[Measurement]:
        return [
            row
            for row in self.rows
            if (row.problem, row.device_key) == (problem, device_key)
            and row.source in sources
            and toolchain in (None, row.toolchain)
        ]

    def setbacks(
        self, device_key: str, toolchain: Toolchain, *, sources: Collection[str]
    ) -> list[Measurement]:
        return [
            row
            for row in reversed(self.rows)
            if (row.device_key, row.toolchain) == (device_key, toolchain)
            and row.source in sources
            and row.state is not TrialState.OK
            and row.contender.config is not None
        ]

    def outcome(
        self, problem: Problem, device_key: str, toolchain: Toolchain, source: Source
    ) -> ShapeOutcome | None:
        wanted = (problem, device_key, toolchain, source)
        found = [
            o for o in self.outcomes if (o.problem, o.device_key, o.toolchain, o.source) == wanted
        ]
        return found[-1] if found else None

    def finish_shape(self, outcome: ShapeOutcome) -> None:
        self.outcomes.append(outcome)

    def shapes(self, device_key: str) -> list[ShapeOutcome]:
        latest = {o.problem: o for o in self.outcomes if o.device_key == device_key}
        return list(latest.values())
