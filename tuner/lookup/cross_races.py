"""Cross races: at each M of a layer, the best configs of all its Ms against one another.

They are races like any other, and count as such. Their ids say which Ms were tuned together, so
that a layer follows from its rows, wherever these were brought.
"""

import re
from dataclasses import dataclass

_ID = re.compile(r"cross-([1-9][0-9]{0,9})\.\.([1-9][0-9]{0,9})-")


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """The Ms of a layer that were asked for, from `low` to `high`, both included."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"


ID_START = "cross-"
"""What the id of every cross race begins with, and of no other."""


def cross_race_id(span: Span, unique: str) -> str:
    """The id of one cross race of a layer that was tuned over `span`."""
    return f"{ID_START}{span}-{unique}"


def span_of(race_id: str) -> Span | None:
    """The span of a cross race; None for the id of another race."""
    found = _ID.match(race_id)
    if found is None or int(found[1]) > int(found[2]):
        return None
    return Span(int(found[1]), int(found[2]))
