"""From races to the best config. Standard library only: server, client and search share it."""

from tuner.lookup.answer import Answer, Library, Match, Timing
from tuner.lookup.choose import COUNTED_PROTOCOLS, choose
from tuner.lookup.miss import Miss, MissState, nothing_stored, why_none
from tuner.lookup.numerics import Numerics, numerics_of
from tuner.lookup.race import Race

__all__ = [
    "COUNTED_PROTOCOLS",
    "Answer",
    "Library",
    "Match",
    "Miss",
    "MissState",
    "Numerics",
    "Race",
    "Timing",
    "choose",
    "nothing_stored",
    "numerics_of",
    "why_none",
]
