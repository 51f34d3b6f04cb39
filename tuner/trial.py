"""What an attempt to measure something left behind: the rows that are never lost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from math import isfinite
from statistics import median
from typing import Literal

from tuner.config import KernelConfig, KernelVariant
from tuner.hardware import PEAK_FLOP_PER_SM_US, device_class
from tuner.shape import Problem

PROTOCOL_HOT = "graph-coldl2-hot/1"
PROTOCOL_COOL = "graph-coldl2-cool/1"
PROTOCOL_SCREEN = "graph-coldl2-hot-screen/1"
"""One quick look at a candidate, alone: it ranks, but is never compared with a race.

Its graphs follow one another without gaps, which the name calls hot; but candidates are proved in
between, so the card is about as cool as in a cool race. Stored rows carry the name, so it stays
until what is measured changes and its version with it.
"""
PROTOCOL_HEAT = "graph-coldl2-hot-heat/1"
"""A short hot race of many candidates: it chooses finalists, and is not compared with theirs."""

Source = Literal["measured", "replay", "import"]


class TrialState(StrEnum):
    """How an attempt ended; everything but `ok` is kept as knowledge of what not to try."""

    OK = "ok"
    COMPILE_REFUSED = "compile_refused"
    COMPILE_TIMEOUT = "compile_timeout"
    WRONG_RESULT = "wrong_result"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    IMPLAUSIBLE = "implausible"
    UNSTABLE = "unstable"


class ShapeState(StrEnum):
    """How the tuning of one shape ended."""

    TUNED = "tuned"
    NO_VALID_CONFIG = "no_valid_config"
    UNSUPPORTED = "unsupported"
    DOES_NOT_FIT = "does_not_fit"
    NOT_RECORDED = "not_recorded"


@dataclass(frozen=True, slots=True)
class Contender:
    """Who was measured: our kernel with a config, or a library with its algorithm.

    `algorithm` describes a cuBLASLt algorithm by its attributes; None for the others.
    """

    name: Literal["kernel", "cublas", "cublaslt"]
    config: KernelConfig | None = None
    algorithm: str | None = None


@dataclass(frozen=True, slots=True)
class Toolchain:
    """What the kernel was made from; part of a row's identity."""

    kernel_hash: str
    nvrtc_version: str


@dataclass(frozen=True, slots=True)
class Conditions:
    """The state of the device around a measurement; None where it could not be read."""

    driver: str | None = None
    cublas_version: str | None = None
    gpu_uuid: str | None = None
    sm_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttle_reasons: int | None = None


@dataclass(frozen=True, slots=True)
class Cubin:
    """A compiled variant: where its bytes are and what the compiler said of it."""

    variant: KernelVariant
    path: str
    registers: int
    spill_bytes: int
    seconds: float
    cached: bool


@dataclass(frozen=True, slots=True)
class CompileFailure:
    """A variant without a cubin: refused, too slow to compile, or the compiler died."""

    variant: KernelVariant
    state: TrialState
    detail: str


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a device reports of one contender: a state, and samples in µs where it is `ok`.

    rejected_rounds: of its race, left out for all contenders because the card was slowed down.
    """

    contender: Contender
    state: TrialState
    samples_us: tuple[float, ...] = ()
    detail: str = ""
    conditions: Conditions = Conditions()
    rejected_rounds: int = 0

    def checked(self) -> "Sampled":
        """The same, `implausible` if a sample is not a positive finite time."""
        if self.state is TrialState.OK and not (
            self.samples_us and all(isfinite(s) and s > 0 for s in self.samples_us)
        ):
            detail = f"samples are not positive finite times: {list(self.samples_us)[:4]}"
            return Sampled(self.contender, TrialState.IMPLAUSIBLE, (), detail, self.conditions)
        return self


@dataclass(frozen=True, slots=True)
class Measurement:
    """One append-only row.

    race: groups contenders whose samples are rounds of one shuffled race; sample i of each was
        taken in round i. None for screenings and failures outside a race.
    """

    problem: Problem
    device_key: str
    device_name: str
    protocol: str
    contender: Contender
    toolchain: Toolchain
    state: TrialState
    samples_us: tuple[float, ...] = ()
    detail: str = ""
    conditions: Conditions = Conditions()
    source: Source = "measured"
    run_id: str = ""
    race: str | None = None
    worker: str = ""
    measured_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def median_us(self) -> float | None:
        return median(self.samples_us) if self.samples_us else None


@dataclass(frozen=True, slots=True)
class ShapeOutcome:
    """How the tuning of one problem ended, and what it took.

    counts: attempts by trial state; compiled: variants that were not in the cache.
    verify_seconds, measure_seconds: wall time the device spent proving and timing.
    """

    problem: Problem
    device_key: str
    device_name: str
    toolchain: Toolchain
    state: ShapeState
    detail: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    trials: int = 0
    compiled: int = 0
    seconds: float = 0.0
    verify_seconds: float = 0.0
    measure_seconds: float = 0.0
    source: Source = "measured"
    run_id: str = ""
    finished_at: datetime = field(default_factory=lambda: datetime.now(UTC))


def shortest_us(problem: Problem, contender: Contender, device_key: str) -> float:
    """Microseconds that the tensor cores need at least; less is a mistake and no measurement.

    Only our kernel keeps to the SM budget of the problem: a library has the whole device.
    """
    device = device_class(device_key)
    whole = device.sms if device and contender.config is None else 0
    return problem.shape.flops / (max(problem.sms, whole, 1) * PEAK_FLOP_PER_SM_US)


def paired_ratio(baseline_us: Sequence[float], ours_us: Sequence[float]) -> float:
    """Median over rounds of baseline / ours within the round: above 1, we are faster.

    Raises: ValueError if the two do not cover the same rounds.
    """
    return median(b / o for b, o in zip(baseline_us, ours_us, strict=True))
