"""How long a device may take to answer, before it is taken for hung and killed."""

from dataclasses import dataclass

from tuner.hardware import PEAK_FLOP_PER_SM_US
from tuner.shape import Problem

SLOW_SHARE = 0.1
"""Of the SMs' peak: what a poor candidate still reaches on a shape whose launches take long. A
guess on the safe side; what a search proposes for such shapes was seen above a third."""
PREPARE_LAUNCHES = 24
"""The trusted config twice, and two products in higher precision, each like several launches."""
VERIFY_LAUNCHES = 8
SCREEN_LAUNCHES = 24
ENTRY_LAUNCHES = 10
"""What an entrant of a race is launched before and after its rounds."""
CUBLASLT_LAUNCHES = 300
"""The race of the algorithms that cuBLASLt offers, 64 at most, which are fast ones."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds each kind of call may take where launches are short.

    start: from spawning a child to its device being open. A race has `race` seconds, and
    `race_round` more for every round of every entrant. The methods add what long launches take.
    """

    start: float = 60.0
    identify: float = 20.0
    prepare: float = 60.0
    verify: float = 8.0
    screen: float = 8.0
    race: float = 30.0
    race_round: float = 0.5

    def to_prepare(self, problem: Problem) -> float:
        return self.prepare + PREPARE_LAUNCHES * slow_launch_s(problem)

    def to_verify(self, problem: Problem) -> float:
        return self.verify + VERIFY_LAUNCHES * slow_launch_s(problem)

    def to_screen(self, problem: Problem) -> float:
        return self.screen + SCREEN_LAUNCHES * slow_launch_s(problem)

    def to_race(self, problem: Problem, entrants: int, rounds: int) -> float:
        launches = CUBLASLT_LAUNCHES + entrants * (ENTRY_LAUNCHES + rounds)
        rounds_s = self.race_round * entrants * rounds
        return self.race + rounds_s + launches * slow_launch_s(problem)


def slow_launch_s(problem: Problem) -> float:
    """Seconds of one launch of a poor candidate."""
    flop_per_us = SLOW_SHARE * PEAK_FLOP_PER_SM_US * problem.sms
    return problem.shape.flops / flop_per_us / 1e6
