"""What a search knows before it measures: this shape's stored rows, and its neighbours'."""

from collections.abc import Collection, Sequence
from typing import Protocol

from tuner.config import KernelConfig
from tuner.lookup.cost_model import Estimate, estimate_us
from tuner.search.outlook import LESSON_SHAPES
from tuner.search.sampler import Searcher
from tuner.search.seeds import nearest, winners
from tuner.shape import Problem
from tuner.trial import Measurement, ShapeOutcome, Source, Toolchain


class Stored(Protocol):
    """Rows and outcomes that can be looked up."""

    def attempts(
        self, problem: Problem, device_key: str, *, sources: Collection[str]
    ) -> list[Measurement]: ...

    def shapes(self, device_key: str) -> list[ShapeOutcome]: ...


def informed_searcher(
    problem: Problem,
    candidates: Sequence[KernelConfig],
    stored: Stored,
    device_key: str,
    toolchain: Toolchain,
    source: Source,
    setbacks: Sequence[Measurement] = (),
    exactly: bool = False,
    estimate: Estimate = estimate_us,
) -> tuple[Searcher, list[Measurement]]:
    """A searcher told of all that is stored, and the attempts at `problem` that it counts as done.

    Rows of another kernel measure nothing any more, but what won under it is tried early.
    setbacks: failures on other shapes, which rule out their variants here.
    exactly: propose only `candidates`, as a recording demands.
    estimate: the analytic model that the search starts from.
    """

    def attempts(of: Problem) -> list[Measurement]:
        return stored.attempts(of, device_key, sources=(source,))

    own = attempts(problem)
    known = [row for row in own if row.toolchain == toolchain and row.race is None]
    tuned = (outcome.problem for outcome in stored.shapes(device_key))
    near = nearest(problem, tuned)[:LESSON_SHAPES]
    others = [row for neighbour in near for row in attempts(neighbour)]
    outdated = [row for row in [*own, *others] if row.toolchain != toolchain]
    searcher = Searcher(
        problem,
        candidates,
        known=known,
        lessons=[*setbacks, *(row for row in others if row.toolchain == toolchain)],
        won=winners(problem, outdated),
        exactly=exactly,
        estimate=estimate,
    )
    return searcher, known
