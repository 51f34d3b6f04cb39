"""Why a look-up has no answer, in the same words over HTTP and on the command line."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tuner.lookup.numerics import Numerics
from tuner.shape import GemmShape, Problem
from tuner.trial import ShapeOutcome, ShapeState

MissState = Literal["never_tuned", "no_valid_config", "unsupported", "unknown_device"]


@dataclass(frozen=True, slots=True)
class Miss:
    """`detail` is a sentence; `counts`: attempts by how they ended, where there were any."""

    state: MissState
    detail: str
    counts: Mapping[str, int] | None = None


def why_none(
    problem: Problem,
    device: str,
    outcome: ShapeOutcome | None,
    *,
    plain: bool = False,
    numerics: Numerics | None = None,
) -> Miss:
    """What the latest tuning of `problem`, if there was one, says of an answer that is missing.

    A problem too large for the device is `unsupported`, as is a shape the kernel cannot run.
    device: how to call it in the sentence. plain, numerics: what `choose` was asked for.
    """
    if reason := problem.shape.unsupported_reason():
        return Miss("unsupported", reason)
    where = f"{problem.shape} (d={problem.d}, {problem.sms} SMs) on {device}"
    match outcome:
        case ShapeOutcome(state=ShapeState.UNSUPPORTED | ShapeState.DOES_NOT_FIT):
            return Miss("unsupported", outcome.detail or f"{where} cannot be run.")
        case ShapeOutcome(state=ShapeState.NO_VALID_CONFIG):
            counts = dict(outcome.counts)
            ended = ", ".join(f"{n} {s}" for s, n in sorted(counts.items())) or "none tried"
            detail = f"{where} was tuned and no config is fit to serve: {ended}."
            return Miss("no_valid_config", detail, counts)
        case ShapeOutcome(state=ShapeState.TUNED) if plain or numerics == "invariant":
            asked = ["invariant"] * (numerics == "invariant") + ["launched plainly"] * plain
            detail = f"{where} was tuned and no config that was raced is {' and '.join(asked)}."
            return Miss("no_valid_config", f"{detail} Ask without that.")
    return Miss("never_tuned", f"{where} has no stored config. Tune it with `tuner run`.")


def nothing_stored(shape: GemmShape) -> Miss:
    """The answer of a store that holds no device yet."""
    if reason := shape.unsupported_reason():
        return Miss("unsupported", reason)
    detail = f"Nothing is stored yet, so {shape} was never tuned. Tune it with `tuner run`."
    return Miss("never_tuned", detail)
