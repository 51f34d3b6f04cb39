"""What a search may cost, and what it tells while it runs."""

from collections.abc import Callable
from dataclasses import dataclass

from tuner.shape import Problem
from tuner.trial import Measurement, ShapeOutcome


@dataclass(frozen=True, slots=True)
class Budget:
    """What one shape may cost.

    trials: configs to screen, twins of finalists among them.
    seconds_per_shape: None for no limit; the races at the end may overrun it.
    finalists: configs raced, in `rounds_hot` and `rounds_cool` rounds.
    batch: configs proposed and compiled ahead of the device.
    patience: trials without a faster config that end the search of variants, and then that of
        their launches; None to use up the trials.
    search_share: of `seconds_per_shape`, what the search may take; the rest is for twins and races.
    knob_share: of `trials`, what relaunches of `knob_bases` variants get, the best of the screening
        and the best of the heat; they compile nothing.
    """

    trials: int = 96
    seconds_per_shape: float | None = None
    finalists: int = 8
    rounds_hot: int = 25
    rounds_cool: int = 15
    batch: int = 16
    patience: int | None = None
    search_share: float = 0.7
    knob_share: float = 1 / 3
    knob_bases: int = 6


@dataclass(frozen=True, slots=True)
class ShapeStarted:
    """Shape `position` of `total` begins, counted from 1."""

    problem: Problem
    position: int
    total: int


@dataclass(frozen=True, slots=True)
class TrialDone:
    """An attempt is stored; `done` of `planned`, where two failed compiles count as one.

    best: the fastest screened so far.
    """

    measurement: Measurement
    done: int
    planned: int
    best: Measurement | None


@dataclass(frozen=True, slots=True)
class RaceStarted:
    """Finalists are about to be raced."""

    problem: Problem
    protocol: str
    finalists: int


@dataclass(frozen=True, slots=True)
class ShapeEnded:
    """Shape `position` of `total` ended; `resumed` if that was so before this run."""

    outcome: ShapeOutcome
    position: int
    total: int
    resumed: bool


@dataclass(frozen=True, slots=True)
class Remark:
    """A sentence about other drivers of the same list, or about what no shape's end tells."""

    text: str


Event = ShapeStarted | TrialDone | RaceStarted | ShapeEnded | Remark
OnEvent = Callable[[Event], None]
