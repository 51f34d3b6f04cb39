"""Numbers that options take together: N,K of a layer, a range of M, budgets of multiprocessors."""

import re
from collections.abc import Sequence
from typing import Annotated

import typer

from tuner.errors import TunerError
from tuner.lookup.cross_races import Span
from tuner.shape import MAX_EXTENT, GemmShape

_DIGITS = "0*([1-9][0-9]{0,9})"
_LAYER = re.compile(rf" *{_DIGITS} *[,x ] *{_DIGITS} *")
_SPAN = re.compile(rf" *{_DIGITS}(?: *\.\. *{_DIGITS})? *")
_BUDGET = re.compile(rf" *{_DIGITS} *")


class BeyondDevice(TunerError):
    """More multiprocessors than the device has."""


LayerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--layer",
        metavar="N,K",
        help="A layer of a model, to be tuned for every M of --m: at 12 Ms at most. May be "
        "repeated.",
    ),
]
SpanOption = Annotated[
    str | None,
    typer.Option("--m", metavar="LOW..HIGH", help="With --layer: the Ms that are to be answered."),
]
BudgetsOption = Annotated[
    str | None,
    typer.Option(
        "--sms",
        metavar="SMS,...",
        help="Budgets of multiprocessors, each tuned on its own, for products that share the "
        "device with other work: 132,112,66. Default: all there are.",
    ),
]


def parse_layer(text: str) -> GemmShape:
    """N and K of a layer, with M = 1. Raises: BadParameter."""
    found = _LAYER.fullmatch(text)
    if found is None or any(int(extent) > MAX_EXTENT for extent in found.groups()):
        raise typer.BadParameter(
            f"{_shown(text)} is no layer; name N,K, each from 1 to {MAX_EXTENT}, such as 6144,4096",
            param_hint="--layer",
        )
    return GemmShape(1, int(found[1]), int(found[2]))


def parse_span(text: str) -> Span:
    """A range of M, or one. Raises: BadParameter."""
    found = _SPAN.fullmatch(text)
    low, high = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if not low <= high <= MAX_EXTENT:
        raise typer.BadParameter(
            f"{_shown(text)} is no range of M; name LOW..HIGH, from 1 to {MAX_EXTENT}, the lower "
            "end first, such as 1..8192",
            param_hint="--m",
        )
    return Span(low, high)


def parse_budgets(text: str) -> list[int]:
    """Numbers of multiprocessors, each once. Raises: BadParameter."""
    found = [_BUDGET.fullmatch(part) for part in text.split(",", 100)]
    budgets = [int(one[1]) for one in found if one]
    if len(budgets) != len(found):
        raise typer.BadParameter(
            f"{_shown(text)} is no list of multiprocessors; name whole numbers from 1, such as "
            "132,112,66",
            param_hint="--sms",
        )
    return list(dict.fromkeys(budgets))


def within(budgets: Sequence[int], sms: int, device: str) -> list[int]:
    """The budgets, if a device of `sms` multiprocessors has so many; all it has if none is named.

    Raises: BeyondDevice.
    """
    if too_many := [budget for budget in budgets if budget > sms]:
        raise BeyondDevice(
            f"{device} has {sms} multiprocessors, fewer than --sms {too_many[0]}. Name a smaller "
            "budget."
        )
    return list(budgets) or [sms]


def _shown(text: str) -> str:
    return f"{text[:40]!a}{'...' * (len(text) > 40)}"
