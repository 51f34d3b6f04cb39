"""From races to the best config. Standard library only: server, client and search share it."""

from tuner.lookup.answer import Answer, Library, Match, Timing
from tuner.lookup.book import Book
from tuner.lookup.choose import COUNTED_PROTOCOLS, choose
from tuner.lookup.confidence import Confidence, Regret
from tuner.lookup.layer import Interval, Layer
from tuner.lookup.miss import Miss, MissState, nothing_stored, why_none
from tuner.lookup.numerics import Numerics, numerics_of
from tuner.lookup.on_terms import answers_on_terms
from tuner.lookup.race import Race
from tuner.lookup.terms import Terms
from tuner.lookup.tiers import Books, find

__all__ = [
    "COUNTED_PROTOCOLS",
    "Answer",
    "Book",
    "Books",
    "Confidence",
    "Interval",
    "Layer",
    "Library",
    "Match",
    "Miss",
    "MissState",
    "Numerics",
    "Race",
    "Regret",
    "Terms",
    "Timing",
    "answers_on_terms",
    "choose",
    "find",
    "nothing_stored",
    "numerics_of",
    "why_none",
]
