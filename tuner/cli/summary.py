"""What a run leaves on the screen: the table, the counts, and what to do next."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from tuner.cli.formats import (
    CONFIG_LEGEND,
    called,
    confidence,
    listed,
    microseconds,
    plural,
    short_config,
    times_faster,
)
from tuner.device.tally import Usage
from tuner.lookup import Answer
from tuner.trial import ShapeOutcome, ShapeState, TrialState

LEGEND = (
    "hot: us, TFLOP/s, samples and half their 95 % interval; x cuBLAS: hot/cool; x Lt: best "
    f"cuBLASLt\n{CONFIG_LEGEND}"
)

Result = tuple[ShapeOutcome, Answer | None]


def print_table(console: Console, results: Sequence[Result]) -> None:
    """One row per shape; its state stands where a config would."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("M x N x K", no_wrap=True)
    table.add_column("best config")
    for heading in ("us", "TFLOP/s", "x cuBLAS", "x Lt", "95 %"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("use", no_wrap=True)
    for outcome, answer in results:
        name = called(outcome.problem, outcome.device_key)
        table.add_row(name, *_cells(outcome, answer))
    console.print(table)
    if any(answer for _, answer in results):
        console.print(LEGEND, style="dim")


def counts(results: Sequence[Result]) -> str:
    """`3 tuned, 1 unsupported; attempts: 120 ok, 4 compile_refused`."""
    states = Counter(outcome.state.value for outcome, _ in results)
    attempts: Counter[str] = Counter()
    for outcome, _ in results:
        attempts.update(outcome.counts)
    text = listed([(s.value, states[s.value]) for s in ShapeState if states[s.value]])
    if attempts:
        by_state = [(s.value, attempts[s.value]) for s in TrialState if attempts[s.value]]
        text += f"; attempts: {listed(by_state)}"
    return f"{plural(len(results), 'shape')}: {text}." if results else "No shape was finished."


def used(usage: Usage) -> str:
    """How the device spent the run, and what it was asked."""
    return (
        f"Device: busy {usage.busy:.0%} of {usage.wall_seconds:.1f} s (proving "
        f"{usage.verify_seconds:.1f} s, measuring {usage.measure_seconds:.1f} s); "
        f"{plural(usage.screened, 'config')} screened, {usage.raced} raced; "
        f"{usage.rejected_rounds} of {plural(usage.rounds, 'round')} rejected as throttled."
    )


def usage_json(usage: Usage) -> dict[str, Any]:
    """The same figures; seconds, and `busy` as a share."""
    told = {name: round(value, 4) for name, value in asdict(usage).items()}
    return {"busy": round(usage.busy, 4), **told}


def to_json(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Each shape's outcome with the service's answer, None where there is none."""
    return [
        {
            "m": outcome.problem.shape.m,
            "n": outcome.problem.shape.n,
            "k": outcome.problem.shape.k,
            "sms": outcome.problem.sms,
            "state": outcome.state.value,
            "detail": outcome.detail,
            "counts": dict(outcome.counts),
            "trials": outcome.trials,
            "compiled": outcome.compiled,
            "seconds": round(outcome.seconds, 3),
            "answer": answer.to_json() if answer else None,
        }
        for outcome, answer in results
    ]


def _cells(outcome: ShapeOutcome, answer: Answer | None) -> list[str]:
    if answer is None:
        return [outcome.state.value]
    if (shown := answer.measurement) is None:
        return [short_config(answer.config, answer.problem.sms)]
    lt = shown.cublaslt_best_us
    return [
        short_config(answer.config, answer.problem.sms),
        microseconds(shown.median_us),
        f"{shown.tflops:.0f}",
        "/".join(times_faster(timing.speedup) for timing in answer.timings),
        times_faster(lt / shown.median_us if lt else None),
        confidence(shown),
        answer.use,
    ]
