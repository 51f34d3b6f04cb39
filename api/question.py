"""What can be asked, and its plainest spelling as a query string."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tuner.lookup import Numerics, Terms
from tuner.shape import MAX_EXTENT, GemmShape, OutputLayout, Problem
from tuner.store.repository import StoredDevice
from tuner.trial import PROTOCOL_COOL, PROTOCOL_HOT

_NUMBER = re.compile(rb"[1-9][0-9]{0,9}")
_KEY = re.compile(rb"[a-z0-9-]{1,40}")
_CHOICES: Mapping[bytes, Mapping[bytes, str]] = {
    b"dtype": {b"bf16": "bf16"},
    b"layout": {b"tn": "tn"},
    b"d": {b"row": "row", b"col": "col"},
    b"match": {b"any": "any", b"exact": "exact"},
    b"launch": {b"any": "any", b"plain": "plain"},
    b"numerics": {b"deterministic": "deterministic", b"invariant": "invariant"},
    b"protocol": {
        spelled.encode(): protocol
        for protocol in (PROTOCOL_HOT, PROTOCOL_COOL)
        for spelled in (protocol, protocol.replace("/", "%2F"), protocol.replace("/", "%2f"))
    },
}


@dataclass(frozen=True, slots=True)
class Question:
    """What `GET /best-config` can be asked; None: not said."""

    shape: GemmShape
    dtype: str = "bf16"
    layout: str = "tn"
    d: OutputLayout = "row"
    device: str | None = None
    sms: int | None = None
    protocol: str | None = None
    numerics: Numerics | None = None
    launch: Literal["any", "plain"] = "any"
    match: Literal["any", "exact"] = "any"

    @property
    def plain(self) -> bool:
        """Whether only configs without dependent launch are asked for."""
        return self.launch == "plain"

    @property
    def terms(self) -> Terms:
        return Terms(self.protocol, self.plain, self.numerics == "invariant")

    def problem(self, device: StoredDevice) -> Problem:
        return Problem(
            self.shape, self.sms or device.sms, dtype=self.dtype, layout=self.layout, d=self.d
        )


def read_question(query: bytes) -> Question | None:
    """The question of a query string; None unless it is plain and without fault."""
    told: dict[bytes, bytes] = {}
    for part in query.split(b"&"):
        name, equals, value = part.partition(b"=")
        if not equals or name in told:
            return None
        told[name] = value
    try:
        shape = GemmShape(*(_number(told.pop(name)) for name in (b"m", b"n", b"k")))
        device = told.pop(b"device", None)
        sms = told.pop(b"sms", None)
        chosen = {name.decode(): _CHOICES[name][value] for name, value in told.items()}
        return Question(
            shape,
            device=None if device is None else _matched(_KEY, device).decode(),
            sms=None if sms is None else _number(sms),
            **chosen,  # type: ignore[arg-type]  # the values are what their fields can be
        )
    except (KeyError, ValueError):
        return None


def _number(text: bytes) -> int:
    number = int(_matched(_NUMBER, text))
    if number > MAX_EXTENT:
        raise ValueError
    return number


def _matched(pattern: re.Pattern[bytes], text: bytes) -> bytes:
    if not pattern.fullmatch(text):
        raise ValueError
    return text
