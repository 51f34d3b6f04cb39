"""Counts what a device was used for, and how long it worked."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tuner.device.protocol import Device, Entrant, Prepared
from tuner.hardware import DeviceIdentity
from tuner.shape import Problem
from tuner.trial import PROTOCOL_COOL, Sampled, TrialState


@dataclass(frozen=True, slots=True)
class Usage:
    """verify_seconds, measure_seconds: inside calls that prove, and that screen or race; all else
    is idle, the making of operands too. wall_seconds: since the counting began.

    screened: screenings that gave times. raced: configs that finished a cool race, which is the
    last of a shape. races, rounds, rejected_rounds: of both kinds and of heats.
    """

    verify_seconds: float = 0.0
    measure_seconds: float = 0.0
    wall_seconds: float = 0.0
    screened: int = 0
    raced: int = 0
    races: int = 0
    rounds: int = 0
    rejected_rounds: int = 0

    @property
    def busy(self) -> float:
        """The share of the wall time in which the device proved or measured."""
        worked = self.verify_seconds + self.measure_seconds
        return worked / self.wall_seconds if self.wall_seconds else 0.0


class TalliedDevice:
    """Implements `Device` by another one, and counts; calls that fail count their time too."""

    def __init__(self, device: Device, clock: Callable[[], float] = time.monotonic) -> None:
        self._device, self._clock = device, clock
        self._began = clock()
        self._seconds = {"verify": 0.0, "measure": 0.0}
        self._screened = self._raced = self._races = self._rounds = self._rejected = 0

    def usage(self) -> Usage:
        """What was counted up to now."""
        return Usage(
            self._seconds["verify"],
            self._seconds["measure"],
            self._clock() - self._began,
            self._screened,
            self._raced,
            self._races,
            self._rounds,
            self._rejected,
        )

    def identify(self) -> DeviceIdentity:
        return self._device.identify()

    def prepare(self, problem: Problem, trusted: Entrant) -> Prepared:
        return self._device.prepare(problem, trusted)

    def verify(self, entrant: Entrant) -> Sampled:
        with self._counting("verify"):
            return self._device.verify(entrant)

    def screen(self, entrant: Entrant) -> Sampled:
        with self._counting("measure"):
            screened = self._device.screen(entrant)
        self._screened += screened.state is TrialState.OK
        return screened

    def race(self, entrants: Sequence[Entrant], protocol: str, rounds: int) -> list[Sampled]:
        with self._counting("measure"):
            raced = self._device.race(entrants, protocol, rounds)
        finished = [one for one in raced if one.state is TrialState.OK]
        if protocol == PROTOCOL_COOL:
            self._raced += sum(one.contender.config is not None for one in finished)
        rejected = max((one.rejected_rounds for one in raced), default=0)
        self._races += 1
        self._rounds += rejected + max((len(one.samples_us) for one in finished), default=0)
        self._rejected += rejected
        return raced

    def close(self) -> None:
        self._device.close()

    @contextmanager
    def _counting(self, what: str) -> Iterator[None]:
        started = self._clock()
        try:
            yield
        finally:
            self._seconds[what] += self._clock() - started
