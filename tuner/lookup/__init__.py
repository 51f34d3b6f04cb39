"""From races to the best config. Standard library only: server, client and search share it."""

from tuner.lookup.answer import Answer, Library, Match, Timing
from tuner.lookup.choose import choose
from tuner.lookup.numerics import numerics_of
from tuner.lookup.race import Race

__all__ = ["Answer", "Library", "Match", "Race", "Timing", "choose", "numerics_of"]
