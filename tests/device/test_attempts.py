"""Whose fault a failure is: the candidate's, somebody else's, or the device's."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.device.fake import FakeDevice, Faults
from tuner.device.attempts import Attempts
from tuner.device.protocol import Entrant, Prepared
from tuner.errors import (
    DeviceCrashed,
    DeviceError,
    DeviceKilled,
    DeviceTimeout,
    DeviceUnavailable,
    DoesNotFit,
)
from tuner.search.space import menu, trusted_config
from tuner.shape import GemmShape, Problem
from tuner.trial import PROTOCOL_HOT, Contender, Sampled, TrialState

PROBLEM = Problem(GemmShape(64, 2112, 7168), 132)
TRUSTED = Entrant(Contender("kernel", trusted_config(PROBLEM)))
ENTRANTS = [Entrant(Contender("kernel", c)) for c in menu(PROBLEM)[:4]]
LIBRARIES = [Entrant(Contender("cublas")), Entrant(Contender("cublaslt"))]


class Scripted(FakeDevice):
    """Raises what it is told to, call by call, then works."""

    def __init__(
        self,
        *,
        prepare: Sequence[Exception] = (),
        verify: Sequence[Exception] = (),
        race: Sequence[Exception] = (),
        faults: Faults | None = None,
    ) -> None:
        super().__init__(faults)
        self._script = {"prepare": list(prepare), "verify": list(verify), "race": list(race)}

    def prepare(self, problem: Problem, trusted: Entrant) -> Prepared:
        self._perhaps("prepare")
        return super().prepare(problem, trusted)

    def verify(self, entrant: Entrant) -> Sampled:
        self._perhaps("verify")
        return super().verify(entrant)

    def race(self, entrants: Sequence[Entrant], protocol: str, rounds: int) -> list[Sampled]:
        self._perhaps("race")
        return super().race(entrants, protocol, rounds)

    def _perhaps(self, call: str) -> None:
        if self._script[call]:
            raise self._script[call].pop(0)


def prepared_times(device: FakeDevice) -> int:
    return sum(name == "prepare" for name, _ in device.calls)


def test_operands_are_made_once_and_again_only_after_the_device_broke() -> None:
    device = Scripted(verify=[DeviceTimeout("too slow.")])
    attempts = Attempts(device, PROBLEM, TRUSTED)
    states = [attempts.attempt(e).state for e in ENTRANTS]
    assert states == [TrialState.TIMEOUT, TrialState.OK, TrialState.OK, TrialState.OK]
    assert prepared_times(device) == 2


def test_a_candidate_that_somebody_else_killed_gets_one_more_try_and_no_blame() -> None:
    once = Attempts(Scripted(verify=[DeviceKilled("killed.")]), PROBLEM, TRUSTED)
    assert once.attempt(ENTRANTS[0]).state is TrialState.OK
    twice = Attempts(
        Scripted(verify=[DeviceKilled("killed."), DeviceKilled("again.")]), PROBLEM, TRUSTED
    )
    sampled = twice.attempt(ENTRANTS[0])
    assert (sampled.state, sampled.detail) == (TrialState.CRASHED, "again.")


def test_an_error_of_a_class_nobody_listed_is_the_candidates_and_names_its_class() -> None:
    attempts = Attempts(Scripted(verify=[ZeroDivisionError("division by zero")]), PROBLEM, TRUSTED)
    sampled = attempts.attempt(ENTRANTS[0])
    assert sampled.state is TrialState.CRASHED
    assert sampled.detail == "ZeroDivisionError: division by zero"


def test_a_device_that_cannot_be_prepared_is_nobodys_trial() -> None:
    crashes = [DeviceCrashed("CUDA reported an error.")] * 3
    attempts = Attempts(Scripted(prepare=crashes), PROBLEM, TRUSTED)
    with pytest.raises(DeviceError, match="could not be prepared for 64x2112x7168 in 3 attempts"):
        attempts.attempt(ENTRANTS[0])
    assert Attempts(Scripted(prepare=crashes[:2]), PROBLEM, TRUSTED).prepare().operand_sets == 3


@pytest.mark.parametrize("error", [DoesNotFit("needs 9 GiB."), DeviceUnavailable("gone.")])
def test_what_trying_again_cannot_mend_is_raised_at_once(error: Exception) -> None:
    device = Scripted(prepare=[error])
    with pytest.raises(type(error)):
        Attempts(device, PROBLEM, TRUSTED).prepare()
    assert prepared_times(device) == 0


def test_a_race_that_somebody_killed_is_run_again_whole() -> None:
    device = Scripted(race=[DeviceKilled("killed.")])
    result = Attempts(device, PROBLEM, TRUSTED).race(ENTRANTS, PROTOCOL_HOT, 3)
    assert [s.contender for s in result.sampled] == [e.contender for e in ENTRANTS]
    assert result.removed == ()
    assert not any(name == "verify" for name, _ in device.calls)


def test_a_race_is_rid_of_the_entrant_that_breaks_it() -> None:
    config = ENTRANTS[1].contender.config
    assert config is not None
    bad = frozenset({config.variant})
    faults = Faults(hang_in_race=bad, sticky=bad)
    result = Attempts(FakeDevice(faults), PROBLEM, TRUSTED).race(ENTRANTS, PROTOCOL_HOT, 3)
    kept = [s.contender for s in result.sampled]
    assert kept == [e.contender for e in ENTRANTS if e is not ENTRANTS[1]]
    assert [(s.contender, s.state) for s in result.removed] == [
        (ENTRANTS[1].contender, TrialState.CRASHED)
    ]


def test_a_race_that_never_works_is_reported_after_three_attempts() -> None:
    device = Scripted(race=[DeviceCrashed("no.")] * 3)
    with pytest.raises(DeviceError, match=r"a race of 64x2112x7168 failed 3 times: no\."):
        Attempts(device, PROBLEM, TRUSTED).race(ENTRANTS, PROTOCOL_HOT, 3)


def test_time_spent_proving_and_measuring_is_told_apart() -> None:
    ticks = iter(range(100))
    clock: Callable[[], float] = lambda: float(next(ticks))  # noqa: E731
    attempts = Attempts(FakeDevice(), PROBLEM, TRUSTED, clock)
    attempts.attempt(ENTRANTS[0])
    attempts.race(ENTRANTS, PROTOCOL_HOT, 3)
    assert (attempts.verify_seconds, attempts.measure_seconds) == (2.0, 2.0)


REFUSALS = [DeviceError("the GPU ran out of memory."), DeviceUnavailable("the GPU fell off.")]


@pytest.mark.parametrize("error", REFUSALS)
def test_what_lies_in_no_candidate_is_raised_and_blames_none(error: DeviceError) -> None:
    device = Scripted(verify=[error])
    attempts = Attempts(device, PROBLEM, TRUSTED)
    with pytest.raises(type(error), match=str(error)):
        attempts.attempt(ENTRANTS[0])
    assert attempts.attempt(ENTRANTS[0]).state is TrialState.OK


@pytest.mark.parametrize("error", REFUSALS)
def test_a_race_ended_by_what_lies_in_nobody_proves_no_kernel_again(error: DeviceError) -> None:
    device = Scripted(race=[error])
    with pytest.raises(type(error), match=str(error)):
        Attempts(device, PROBLEM, TRUSTED).race([*ENTRANTS, *LIBRARIES], PROTOCOL_HOT, 3)
    assert not any(name == "verify" for name, _ in device.calls)


class BrokenLibrary(FakeDevice):
    """Every race that has the library in it raises."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__()
        self._name, self._error = name, error

    def race(self, entrants: Sequence[Entrant], protocol: str, rounds: int) -> list[Sampled]:
        if any(e.contender.name == self._name for e in entrants):
            raise self._error
        return super().race(entrants, protocol, rounds)


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (DeviceCrashed("cublasLtMatmul failed."), TrialState.CRASHED),
        (DeviceTimeout("race gave no answer."), TrialState.TIMEOUT),
        (DeviceError("the heuristic offers no algorithm."), TrialState.UNSTABLE),
    ],
)
def test_cublaslt_that_fails_is_taken_out_of_the_race_and_no_kernel_is_proved_again(
    error: Exception, state: TrialState
) -> None:
    device = BrokenLibrary("cublaslt", error)
    result = Attempts(device, PROBLEM, TRUSTED).race([*ENTRANTS, *LIBRARIES], PROTOCOL_HOT, 3)
    kept = [s.contender for s in result.sampled]
    assert kept == [*(e.contender for e in ENTRANTS), Contender("cublas")]
    assert [(s.contender.name, s.state, s.detail) for s in result.removed] == [
        ("cublaslt", state, str(error))
    ]
    assert not any(name == "verify" for name, _ in device.calls)


def test_without_cublas_there_is_no_race_and_the_error_names_it() -> None:
    device = BrokenLibrary("cublas", DeviceCrashed("cublasGemmEx failed."))
    with pytest.raises(DeviceError, match=r"cuBLAS itself fails on 64x2112x7168.*GemmEx failed"):
        Attempts(device, PROBLEM, TRUSTED).race([*ENTRANTS, *LIBRARIES], PROTOCOL_HOT, 3)
    assert not any(name == "verify" for name, _ in device.calls)


class ErringClock(FakeDevice):
    """Measures faster than physics the first `times` times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.left = times

    def screen(self, entrant: Entrant) -> Sampled:
        sampled = super().screen(entrant)
        self.left -= 1
        return sampled if self.left < 0 else replace(sampled, samples_us=(1e-3,) * 3)


@pytest.mark.parametrize(
    ("times", "state", "screens"), [(0, "ok", 1), (1, "ok", 2), (2, "implausible", 2)]
)
def test_what_is_faster_than_physics_is_measured_again_and_refused_if_it_stays_so(
    times: int, state: str, screens: int
) -> None:
    device = ErringClock(times)
    sampled = Attempts(device, PROBLEM, TRUSTED).attempt(ENTRANTS[0])
    assert sampled.state == state
    assert sum(name == "screen" for name, _ in device.calls) == screens
    if state == "implausible":
        assert sampled.samples_us == ()
        assert sampled.detail.endswith("tensor cores need. It was measured twice.")


def test_a_time_that_is_no_number_is_refused_at_once() -> None:
    config = ENTRANTS[0].contender.config
    assert config is not None
    device = FakeDevice(Faults(nan=frozenset({config.variant})))
    sampled = Attempts(device, PROBLEM, TRUSTED).attempt(ENTRANTS[0])
    assert sampled.state is TrialState.IMPLAUSIBLE
    assert sum(name == "screen" for name, _ in device.calls) == 1
