"""What a run shows while it works: a bar on a terminal, one line per shape elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from tuner.cli.formats import called, ended_without, microseconds, plural, times_faster
from tuner.lookup import Answer
from tuner.study import Event, RaceStarted, Remark, ShapeEnded, ShapeStarted, TrialDone
from tuner.trial import ShapeOutcome, ShapeState

Show = Callable[[Event, Answer | None], None]


@contextmanager
def shown_on(console: Console, total: int) -> Iterator[Show]:
    """What to call with every event of a run, and with the answer of a shape that ended."""
    if not console.is_terminal:
        yield partial(_print_line, console)
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        transient=True,
    ) as bars:
        shapes = bars.add_task("shapes", total=total, note="")
        trials = bars.add_task("", total=None, note="", visible=False)
        yield partial(_advance, bars, shapes, trials)


def _advance(
    bars: Progress, shapes: TaskID, trials: TaskID, event: Event, answer: Answer | None
) -> None:
    match event:
        case ShapeStarted(problem):
            bars.reset(trials, total=None, description=str(problem.shape), note="", visible=True)
        case TrialDone(_, done, planned, best):
            note = ""
            if best is not None and best.median_us:
                tflops = best.problem.shape.flops / best.median_us / 1e6
                note = f"best {microseconds(best.median_us)} us, {tflops:.0f} TFLOP/s"
            bars.update(trials, completed=done, total=planned, note=note)
        case RaceStarted(_, protocol, finalists):
            bars.update(trials, note=f"racing {finalists} finalists, {protocol}")
        case ShapeEnded():
            bars.advance(shapes)
            bars.update(trials, visible=False)
            _print_line(bars.console, event, answer)
        case Remark():
            _print_line(bars.console, event, answer)


def _print_line(console: Console, event: Event, answer: Answer | None) -> None:
    if isinstance(event, ShapeEnded):
        console.print(
            f"[{event.position}/{event.total}] {ended_line(event.outcome, event.resumed, answer)}",
            markup=False,
            soft_wrap=True,
        )
    elif isinstance(event, Remark):
        console.print(event.text, markup=False, soft_wrap=True)


def ended_line(outcome: ShapeOutcome, resumed: bool, answer: Answer | None) -> str:
    """How a shape ended, and what its best config does."""
    shape = outcome.problem.shape
    if outcome.state is not ShapeState.TUNED:
        return ended_without(shape, outcome.state, outcome.detail)
    name = called(outcome.problem, outcome.device_key)
    trials = plural(outcome.trials, "trial")
    took = "tuned before" if resumed else f"{trials}, {outcome.seconds:.1f} s"
    if answer is None or answer.measurement is None:
        return f"{name} {took}"
    best = answer.measurement
    return (
        f"{name} {microseconds(best.median_us)} us, {best.tflops:.0f} TFLOP/s, "
        f"{times_faster(best.speedup)} x cuBLAS ({took})"
    )
