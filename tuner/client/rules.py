"""The full rules of look-ups, which the service follows too; loaded when they are first needed."""

from __future__ import annotations

from time import monotonic
from typing import Any

from tuner.errors import TunerError
from tuner.legality import faults
from tuner.lookup import Book, Miss, find
from tuner.lookup.entries import answer_of
from tuner.lookup.snapshot import Snapshot
from tuner.shape import GemmShape, Problem
from tuner.trial import PROTOCOL_COOL, PROTOCOL_HOT, Toolchain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.client.told import Told
    from tuner.entry import Key

CHECK_S = 0.2
"""Time for the check of a whole snapshot; else each entry is checked when it is asked for."""
PROTOCOLS = (None, PROTOCOL_HOT, PROTOCOL_COOL)
Question = tuple[Any, ...]
"""M, N, K, d, sms, protocol, numerics, launch and match, as they were asked."""


class Refusal(Exception):
    """There is no answer; a sentence says why. tunable: tuning could give one."""

    def __init__(self, reason: str, tunable: bool) -> None:
        super().__init__(reason)
        self.tunable = tunable


class Rules:
    """Answers from snapshots by `tuner.lookup`; the device's own comes first."""

    def __init__(self, device: str, told: Sequence[Told], kernel_hash: str | None) -> None:
        """Raises: TunerError for a snapshot of another form."""
        self._device = device
        self._books = {one.device_key: _book(one, kernel_hash) for one in told}

    def answer(self, question: Question) -> dict[str, Any]:
        """The body of `GET /best-config`. Raises: Refusal."""
        m, n, k, d, sms, protocol, numerics, launch, match = question
        if protocol not in PROTOCOLS:
            allowed = ", ".join(map(str, PROTOCOLS))
            said = f"protocol must be one of {allowed}, not {str(protocol)[:80]!a}."
            raise Refusal(said, tunable=False)
        try:
            problem = Problem(GemmShape(m, n, k), sms, d=d)
            found = find(
                problem,
                self._books,
                device_key=self._device,
                match=match,
                protocol=protocol,
                numerics=numerics,
                plain=launch == "plain",
            )
        except TunerError as error:
            raise Refusal(str(error), False) from None
        if isinstance(found, Miss):
            raise Refusal(found.detail, found.state == "never_tuned")
        return found.to_json()


def check(told: Told) -> None:
    """Mark a snapshot as checked if all of it can be read and every config is legal.

    Gives up, and leaves it unmarked, where that takes longer than CHECK_S.
    """
    until = monotonic() + CHECK_S
    try:
        for one in told.answers():
            answer = answer_of(one, told.device_key, told.device_name)
            if faults(answer.config, answer.problem) or monotonic() > until:
                return
    except (AttributeError, KeyError, TypeError, ValueError, TunerError):
        return
    told.mark_checked()


def can_be_used(told: Told, key: Key, label: str) -> bool:
    """Whether one exact answer of a snapshot that was not checked can be read and is legal."""
    try:
        found = told.answer(key, label)
        if found is None:
            return False
        answer = answer_of(found, told.device_key, told.device_name)
    except (AttributeError, KeyError, TypeError, ValueError, TunerError):
        return False
    return not faults(answer.config, answer.problem)


def _book(told: Told, kernel_hash: str | None) -> Book:
    current = None
    if kernel_hash is not None:
        current = Toolchain(kernel_hash, told.newest_compiler(kernel_hash))
    return Book.from_snapshot(Snapshot(told.body), current=current)
