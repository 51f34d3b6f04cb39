"""One problem on one device: prove and time candidates, and survive those that break it.

Whatever a candidate does becomes its state. Only what is not a candidate's doing is raised.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tuner.device.protocol import Device, Entrant, Prepared
from tuner.errors import (
    DeviceCrashed,
    DeviceError,
    DeviceKilled,
    DeviceTimeout,
    DeviceUnavailable,
    DoesNotFit,
    TunerError,
)
from tuner.shape import Problem
from tuner.trial import Sampled, TrialState, shortest_us

PREPARE_ATTEMPTS = 3
RACE_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class RaceResult:
    """What a race left: paired samples, and who had to be taken out of it, and why."""

    sampled: tuple[Sampled, ...]
    removed: tuple[Sampled, ...] = ()


class Attempts:
    """Attempts and races of `problem`; prepares the device again after whatever broke it.

    Every method raises DoesNotFit if the operands exceed the device, DeviceUnavailable if there is
    no device any more, and DeviceError for what is no candidate's fault: no memory left, a cubin
    that is gone, cuBLAS failing, or a device that cannot be prepared.
    """

    def __init__(
        self,
        device: Device,
        problem: Problem,
        trusted: Entrant,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.verify_seconds = 0.0
        self.measure_seconds = 0.0
        self._device = device
        self._problem = problem
        self._trusted = trusted
        self._clock = clock
        self._prepared: Prepared | None = None

    def prepare(self) -> Prepared:
        """Put the operands on the device, unless they are there."""
        if self._prepared is not None:
            return self._prepared
        failure: Exception | None = None
        for _ in range(PREPARE_ATTEMPTS):
            try:
                with self._verifying():
                    self._prepared = self._device.prepare(self._problem, self._trusted)
                return self._prepared
            except (DeviceTimeout, DeviceCrashed) as error:
                failure = error
            except (DoesNotFit, DeviceError):
                raise
            except Exception as error:  # of a class that nobody listed: the device's, so far
                failure = error
        raise DeviceError(
            f"the device could not be prepared for {self._problem.shape} in {PREPARE_ATTEMPTS} "
            f"attempts: {_described(failure)}"
        ) from failure

    def attempt(self, entrant: Entrant) -> Sampled:
        """Prove one candidate, then screen it; it is never screened unproven."""
        killed: DeviceKilled | None = None
        for _ in range(2):
            self.prepare()
            try:
                with self._verifying():
                    verified = self._device.verify(entrant)
                if verified.state is not TrialState.OK:
                    return verified
                return self._screened(entrant)
            except DeviceKilled as error:
                # Somebody else's doing, unless it happens every time.
                self._prepared = None
                killed = error
            except Exception as error:
                if _is_nobodys(error):
                    raise
                self._prepared = None
                return _failed(entrant, error)
        return _failed(entrant, killed)

    def _screened(self, entrant: Entrant) -> Sampled:
        """Timed once, and once more if that was faster than physics: a clock may err once, and
        what is refused speaks against the variant on every shape. NaN is refused at once."""
        refused: Sampled | None = None
        for _ in range(2):
            with self._measuring():
                screened = self._device.screen(entrant)
            checked = self._plausible(screened)
            finite = screened.checked().state is TrialState.OK
            if checked.state is not TrialState.IMPLAUSIBLE or not finite:
                return checked
            refused = checked
        assert refused is not None
        return replace(refused, detail=f"{refused.detail} It was measured twice.")

    def race(self, entrants: Sequence[Entrant], protocol: str, rounds: int) -> RaceResult:
        """Race all of `entrants`; who breaks the device is found out, taken out, and reported.

        cuBLASLt can be taken out like a kernel; without cuBLAS there is nothing to compare with.
        """
        racing = list(entrants)
        removed: list[Sampled] = []
        failure: Exception | None = None
        for _ in range(RACE_ATTEMPTS):
            self.prepare()
            try:
                with self._measuring():
                    sampled = self._device.race(racing, protocol, rounds)
                return RaceResult(tuple(map(self._plausible, sampled)), tuple(removed))
            except DeviceUnavailable:
                raise
            except DeviceKilled as error:
                self._prepared, failure = None, error
            except Exception as error:
                self._forget_after(error)
                failure = error
                culprits = self._failing_libraries(racing, protocol)
                if not culprits and _is_nobodys(error):
                    raise
                culprits = culprits or self._failing_kernels(racing)
                removed += culprits.values()
                racing = [e for e in racing if e not in culprits]
        raise DeviceError(
            f"a race of {self._problem.shape} failed {RACE_ATTEMPTS} times: {_described(failure)}"
        ) from failure

    def _failing_libraries(
        self, entrants: Sequence[Entrant], protocol: str
    ) -> dict[Entrant, Sampled]:
        """Libraries that cannot be raced alone, each with how; without cuBLAS there is no race."""
        failing: dict[Entrant, Sampled] = {}
        for library in dict.fromkeys(e for e in entrants if e.contender.config is None):
            self.prepare()
            try:
                with self._measuring():
                    self._device.race([library], protocol, 1)
            except DeviceUnavailable:
                raise
            except DeviceKilled:
                self._prepared = None
            except Exception as error:
                self._forget_after(error)
                if library.contender.name == "cublas":
                    raise DeviceError(
                        f"cuBLAS itself fails on {self._problem.shape}, so nothing can be compared "
                        f"with it: {_described(error)}"
                    ) from error
                failing[library] = _failed(library, error)
        return failing

    def _failing_kernels(self, entrants: Sequence[Entrant]) -> dict[Entrant, Sampled]:
        """Kernels that fail alone, each with how."""
        alone = {e: self.attempt(e) for e in entrants if e.contender.config is not None}
        return {e: sampled for e, sampled in alone.items() if sampled.state is not TrialState.OK}

    def _forget_after(self, error: Exception) -> None:
        """A device that only refused still holds the operands; any other is fresh."""
        if not _is_nobodys(error):
            self._prepared = None

    def _plausible(self, sampled: Sampled) -> Sampled:
        """The same, `implausible` if a sample is not a time this device can reach."""
        checked = sampled.checked()
        floor = shortest_us(self._problem, checked.contender, self._device.identify().key)
        if checked.state is TrialState.OK and min(checked.samples_us) < floor:
            detail = (
                f"{min(checked.samples_us):.4g} us is less than the {floor:.4g} us that the tensor "
                "cores need."
            )
            return Sampled(
                checked.contender, TrialState.IMPLAUSIBLE, (), detail, checked.conditions
            )
        return checked

    @contextmanager
    def _verifying(self) -> Iterator[None]:
        started = self._clock()
        try:
            yield
        finally:
            self.verify_seconds += self._clock() - started

    @contextmanager
    def _measuring(self) -> Iterator[None]:
        started = self._clock()
        try:
            yield
        finally:
            self.measure_seconds += self._clock() - started


def _is_nobodys(error: Exception) -> bool:
    """Whether the device refused for a reason that lies in no candidate, and is whole itself."""
    return isinstance(error, DeviceError) and not isinstance(error, DeviceTimeout | DeviceCrashed)


def _failed(entrant: Entrant, error: Exception | None) -> Sampled:
    state = TrialState.CRASHED
    if isinstance(error, DeviceTimeout):
        state = TrialState.TIMEOUT
    elif isinstance(error, Exception) and _is_nobodys(error):
        state = TrialState.UNSTABLE  # a library without an algorithm for this problem
    return Sampled(entrant.contender, state, detail=_described(error))


def _described(error: Exception | None) -> str:
    """A sentence of ours as it is; anything else behind the name of its class."""
    return str(error) if isinstance(error, TunerError) else f"{type(error).__name__}: {error}"
