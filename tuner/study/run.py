"""Tune a list of problems, one after the other."""

from collections.abc import Sequence

from tuner.shape import Problem
from tuner.study.pipeline import NO_CANDIDATE, Study
from tuner.study.ports import Tools
from tuner.study.progress import Budget, OnEvent, ShapeEnded, ShapeStarted
from tuner.trial import Measurement, ShapeOutcome, ShapeState


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
    # A device that broke, a missing recording or full memory may be mended by now.
    final = outcome is not None and (
        outcome.state is ShapeState.TUNED or outcome.detail == NO_CANDIDATE
    )
    return outcome if final else None


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
