"""Tune a list of problems, one after the other."""

import time
from collections.abc import Sequence

from tuner.search.sampler import VARIANT_FAILURES
from tuner.shape import Problem
from tuner.study.pipeline import NO_CANDIDATE, Study
from tuner.study.ports import Lease, Tools
from tuner.study.progress import Budget, OnEvent, Remark, ShapeEnded, ShapeStarted
from tuner.study.turns import Alone, Turns
from tuner.trial import Measurement, ShapeOutcome, ShapeState

WAIT_S = 1.0
"""Between two looks at what other drivers are tuning."""


def run_all(
    problems: Sequence[Problem], tools: Tools, budget: Budget, on_event: OnEvent = lambda _: None
) -> list[ShapeOutcome]:
    """Tune every problem that is not done; one that fails does not stop the others.

    A problem that another driver tunes comes last: it is then taken as that driver left it, or
    tuned here if that driver died.
    Raises: DeviceUnavailable, StoreError, or CompileError where no compiler works; what was
    finished is stored. So it is when the user interrupts.
    """
    ended: dict[int, ShapeOutcome] = {}
    setbacks = stored_setbacks(tools)
    turns = Turns(tools)
    left, waited = list(enumerate(problems, start=1)), False
    while left:
        taken = []
        for position, problem in left:
            done = finished(problem, tools) or turns.ended_elsewhere(problem)
            lease = Alone() if done else turns.claim(problem)
            if lease is None:
                taken.append((position, problem))
                continue
            on_event(ShapeStarted(problem, position, len(problems)))
            with lease:
                # Another driver may have ended it just before it was claimed.
                done = done or finished(problem, tools)
                outcome = done or tune(problem, tools, budget, on_event, setbacks, lease)
            ended[position] = outcome
            on_event(ShapeEnded(outcome, position, len(problems), resumed=done is not None))
        if len(taken) == len(left):
            if not waited:
                on_event(
                    Remark(f"waiting for other drivers, which tune what is left: {len(left)}.")
                )
                waited = True
            time.sleep(WAIT_S)
        left = taken
    return [ended[position] for position in sorted(ended)]


def stored_setbacks(tools: Tools) -> list[Measurement]:
    """Failures on any shape of this device and kernel that rule out their variants on all."""
    found = tools.repository.setbacks(
        tools.device.identify().key, tools.compiler.toolchain(), sources=(tools.source,)
    )
    return [row for row in found if row.state in VARIANT_FAILURES]


def finished(problem: Problem, tools: Tools) -> ShapeOutcome | None:
    """The stored outcome of `problem`, if it need not be tuned again on this device."""
    key, toolchain = tools.device.identify().key, tools.compiler.toolchain()
    outcome = tools.repository.outcome(problem, key, toolchain, tools.source)
    # A device that broke, a missing recording or full memory may be mended by now.
    final = outcome is not None and (
        # A detail tells of a winner that drifted: it is to be tuned anew.
        (outcome.state is ShapeState.TUNED and not outcome.detail) or outcome.detail == NO_CANDIDATE
    )
    return outcome if final else None


def tune(
    problem: Problem,
    tools: Tools,
    budget: Budget,
    on_event: OnEvent = lambda _: None,
    setbacks: list[Measurement] | None = None,
    lease: Lease | None = None,
) -> ShapeOutcome:
    """Search, race and store one problem; return how it ended.

    Rows count whenever they come. The outcome of a lease that was lost does too, unless the
    driver that took it over has ended the problem.
    setbacks: failures that speak against a variant on every shape; read and added to.
    Raises: as `run_all`.
    """
    if done := finished(problem, tools):
        return done
    study = Study(problem, tools, budget, on_event, [] if setbacks is None else setbacks)
    state, detail = study.run()
    outcome = study.outcome(state, detail)
    if lease and not lease.is_held() and (theirs := finished(problem, tools)):
        on_event(
            Remark(
                f"{problem.shape}: this driver stood still for too long and another ended it; "
                "that result counts, and the measurements of both are kept."
            )
        )
        return theirs
    tools.repository.finish_shape(outcome)
    return outcome
