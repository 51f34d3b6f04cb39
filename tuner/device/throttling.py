"""Which rounds of a race say nothing: the card was slowed down in them, not by its protocol."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

HARDWARE_SLOWDOWN = 0x8
SOFTWARE_THERMAL = 0x20
HARDWARE_THERMAL = 0x40
POWER_BRAKE = 0x80
SLOWED = HARDWARE_SLOWDOWN | SOFTWARE_THERMAL | HARDWARE_THERMAL | POWER_BRAKE
"""NVML's reasons that count. The power cap (0x4) does not: a hot race is run at it."""
LOWEST_CLOCK_RATIO = 0.85
"""Of the race's median clock; power alone moves it by less from one round to the next."""
MOST_REJECTED = 0.5
"""Of a race's rounds; where more were slowed down, that is how the card is, and none is better."""


@dataclass(frozen=True, slots=True)
class Look:
    """The card during one round; None for what it does not tell."""

    sm_clock_mhz: int | None = None
    throttle_reasons: int | None = None


def rejected(looks: Sequence[Look]) -> frozenset[int]:
    """The rounds to leave out, one look each; none if that would be most of them."""
    clocks = [look.sm_clock_mhz for look in looks if look.sm_clock_mhz is not None]
    lowest = LOWEST_CLOCK_RATIO * median(clocks) if clocks else 0.0
    found = frozenset(
        index
        for index, look in enumerate(looks)
        if (look.throttle_reasons or 0) & SLOWED
        or (look.sm_clock_mhz is not None and look.sm_clock_mhz < lowest)
    )
    return found if len(found) <= MOST_REJECTED * len(looks) else frozenset()


def without(samples: Sequence[float], rounds: frozenset[int]) -> list[float]:
    """The samples of the other rounds, in order; all contenders lose the same ones."""
    return [sample for index, sample in enumerate(samples) if index not in rounds]


def described(rounds: frozenset[int], of: int) -> str:
    """A sentence for the rows of the race; empty if no round was left out."""
    if not rounds:
        return ""
    return f"{len(rounds)} of {of} rounds were left out: the card was slowed down in them."
