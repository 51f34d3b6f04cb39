"""Races the stored best config against the libraries, on fresh samples, as evidence.

The rows keep every round, so that each ratio can be computed again: ratio = median over rounds of
baseline / ours within the round.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from math import prod
from statistics import median
from typing import Any, Protocol
from uuid import uuid4

from tuner.config import KernelConfig, KernelVariant
from tuner.device.attempts import Attempts
from tuner.device.origin import Origin
from tuner.device.protocol import Device, Entrant
from tuner.errors import DeviceError, DeviceUnavailable, DoesNotFit, InvalidConfig
from tuner.lookup import Answer
from tuner.search.space import article_config, trusted_config
from tuner.shape import Problem
from tuner.trial import (
    CompileFailure,
    Contender,
    Cubin,
    Measurement,
    Sampled,
    ShapeOutcome,
    Source,
    Toolchain,
    TrialState,
    paired_ratio,
)

TUNED, PLAIN, ARTICLE = "tuned", "tuned_plain", "article"
"""Our contenders: the best config, the best without dependent launch, the published one."""


class BenchState(StrEnum):
    """How the race of one shape ended; all but `raced` leave no row in the evidence."""

    RACED = "raced"
    NOT_TUNED = "not_tuned"
    UNSUPPORTED = "unsupported"
    DOES_NOT_FIT = "does_not_fit"
    FAILED = "failed"


class Compiler(Protocol):
    """What a race needs of the compiler."""

    def toolchain(self) -> Toolchain: ...

    def submit(self, variant: KernelVariant, /) -> Future[Cubin | CompileFailure]: ...


class Answers(Protocol):
    """What a race needs of the database."""

    def best(
        self,
        problem: Problem,
        device_key: str,
        protocol: str | None = None,
        current: Toolchain | None = None,
        *,
        plain: bool = False,
    ) -> Answer | None: ...

    def latest_outcome(self, problem: Problem, device_key: str) -> ShapeOutcome | None: ...

    def add(self, rows: Sequence[Measurement], /) -> None: ...


@dataclass(frozen=True, slots=True)
class Tools:
    """What races are run with."""

    device: Device
    compiler: Compiler
    answers: Answers


@dataclass(frozen=True, slots=True)
class Terms:
    """How to race.

    ranked_by: the protocol whose best config is raced; None takes the default answer, which is
        fast under both. article: race the config this project started from as well.
    keep: store the rounds too; a replay of recorded rounds would only repeat them.
    """

    protocol: str
    rounds: int
    ranked_by: str | None = None
    article: bool = False
    keep: bool = True
    source: Source = "measured"
    run_id: str = ""
    worker: str = ""


@dataclass(frozen=True, slots=True)
class Raced:
    """One shape's race: samples in µs of each contender, sample i taken in round i.

    config, plain_config: the contenders `tuned` and `tuned_plain`, one where they are the same.
    rounds: by the names of the evidence format: `tuned`, `tuned_plain` if it is another contender,
        `cublas`, `cublas_again`, `cublaslt_best`, `article`.
    trials: configs that the latest search of the shape tried; None if none was stored.
    """

    problem: Problem
    state: BenchState
    detail: str = ""
    config: KernelConfig | None = None
    plain_config: KernelConfig | None = None
    rounds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    algorithm: str | None = None
    conditions: Mapping[str, Any] = field(default_factory=dict)
    trials: int | None = None

    def median_us(self, contender: str) -> float | None:
        samples = self._samples(contender)
        return median(samples) if samples else None

    def ratio(self, baseline: str, ours: str = TUNED) -> float | None:
        """How many times faster than `baseline` we are; None if it was not raced."""
        samples = self._samples(baseline)
        return paired_ratio(samples, self._samples(ours)) if samples else None

    def _samples(self, contender: str) -> Sequence[float]:
        one = contender == PLAIN and self.plain_config == self.config
        return self.rounds.get(TUNED if one else contender, ())

    @property
    def noise(self) -> float | None:
        """cuBLAS against itself in the same rounds; 1 would be a race without noise."""
        if not self.rounds:
            return None
        return paired_ratio(self.rounds["cublas_again"], self.rounds["cublas"])


def geometric_mean(raced: Iterable[Raced], baseline: str, ours: str = TUNED) -> float | None:
    """Over the shapes in which `baseline` was raced; None if there are none."""
    ratios = [ratio for one in raced if (ratio := one.ratio(baseline, ours)) is not None]
    return prod(ratio ** (1 / len(ratios)) for ratio in ratios) if ratios else None


def race(problem: Problem, tools: Tools, terms: Terms) -> Raced:
    """Race one problem; what a shape or a kernel does becomes its state.

    Raises: DeviceUnavailable, StoreError, or CompileError where no compiler works.
    """
    if reason := problem.shape.unsupported_reason():
        return Raced(problem, BenchState.UNSUPPORTED, reason)
    toolchain = tools.compiler.toolchain()
    device_key = tools.device.identify().key
    answer = tools.answers.best(problem, device_key, terms.ranked_by, toolchain)
    if answer is None:
        return Raced(problem, BenchState.NOT_TUNED, f"{problem.shape} has no stored config.")
    ours = answer.config
    kernels = _kernels(problem, ours, tools, terms)
    try:
        sampled = _sample(problem, kernels, tools, terms)
    except DoesNotFit as refused:
        return Raced(problem, BenchState.DOES_NOT_FIT, str(refused), ours)
    except DeviceUnavailable:
        raise
    except (DeviceError, InvalidConfig) as failed:
        return Raced(problem, BenchState.FAILED, str(failed), ours)
    if terms.keep:
        tools.answers.add(_rows(problem, sampled, tools, terms))
    tuned = tools.answers.latest_outcome(problem, device_key)
    return Raced(
        problem,
        BenchState.RACED,
        config=ours,
        plain_config=kernels.get(PLAIN, ours),
        rounds=_rounds(kernels, sampled),
        algorithm=_one(sampled, Contender("cublaslt")).contender.algorithm,
        conditions=asdict(_one(sampled, Contender("kernel", ours)).conditions),
        trials=tuned.trials if tuned else None,
    )


def _kernels(
    problem: Problem, ours: KernelConfig, tools: Tools, terms: Terms
) -> dict[str, KernelConfig]:
    """Our contenders beside `ours`, by name: PLAIN only where `ours` is a dependent launch."""
    kernels = {TUNED: ours}
    if ours.knobs.dependent_launch:
        device_key, toolchain = tools.device.identify().key, tools.compiler.toolchain()
        found = tools.answers.best(problem, device_key, terms.ranked_by, toolchain, plain=True)
        # Without a stored one, the same launch made plain: it is proved like any other.
        same = replace(ours, knobs=replace(ours.knobs, dependent_launch=False))
        kernels[PLAIN] = found.config if found else same
    if terms.article:
        kernels[ARTICLE] = article_config(problem)
    return kernels


def _sample(
    problem: Problem, kernels: Mapping[str, KernelConfig], tools: Tools, terms: Terms
) -> list[Sampled]:
    """Compile, prove and race; a contender without a usable time in every round is an error.

    Raises: InvalidConfig for a config that does not compile; DeviceError, DoesNotFit.
    """
    trusted = trusted_config(problem)
    ours = dict.fromkeys(kernels.values())
    futures = {c: tools.compiler.submit(c.variant) for c in dict.fromkeys((trusted, *ours))}
    entrants = {config: _entrant(config, future.result()) for config, future in futures.items()}
    attempts = Attempts(tools.device, problem, entrants[trusted])
    proven = [entrants[config] for config in ours]
    for entrant in proven:
        _require_ok(attempts.attempt(entrant))
    # cuBLAS runs twice: an A/A pair, whose ratio shows the noise.
    libraries = [Entrant(Contender(name)) for name in ("cublas", "cublas", "cublaslt")]
    result = attempts.race([*proven, *libraries], terms.protocol, terms.rounds)
    for one in (*result.removed, *result.sampled):
        _require_ok(one)
    if len({len(one.samples_us) for one in result.sampled}) != 1:
        raise DeviceError("the contenders of one race cover different rounds.")
    return list(result.sampled)


def _entrant(config: KernelConfig, compiled: Cubin | CompileFailure) -> Entrant:
    if isinstance(compiled, CompileFailure):
        raise InvalidConfig(f"{config} did not compile: {compiled.state}, {compiled.detail}")
    return Entrant(Contender("kernel", config), compiled)


def _require_ok(sampled: Sampled) -> None:
    if sampled.state is not TrialState.OK:
        who = sampled.contender.config or sampled.contender.name
        raise DeviceError(f"{who} ended {sampled.state}: {sampled.detail}")


def _one(sampled: Sequence[Sampled], contender: Contender) -> Sampled:
    """The first result of a kernel's config, or of a library whatever its algorithm."""
    return next(
        one
        for one in sampled
        if (one.contender.name, one.contender.config) == (contender.name, contender.config)
    )


def _rounds(
    kernels: Mapping[str, KernelConfig], sampled: Sequence[Sampled]
) -> dict[str, tuple[float, ...]]:
    pair = [one.samples_us for one in sampled if one.contender.name == "cublas"]
    libraries = {
        "cublas": pair[0],
        "cublas_again": pair[1],
        "cublaslt_best": _one(sampled, Contender("cublaslt")).samples_us,
    }
    ours = {
        name: _one(sampled, Contender("kernel", config)).samples_us
        for name, config in kernels.items()
    }
    return ours | libraries


def _rows(
    problem: Problem, sampled: Sequence[Sampled], tools: Tools, terms: Terms
) -> list[Measurement]:
    """The race as it is stored; contenders that raced twice are two rows."""
    origin = Origin(
        problem,
        tools.device.identify(),
        tools.compiler.toolchain(),
        terms.source,
        terms.run_id,
        terms.worker,
    )
    race_id = uuid4().hex
    return [origin.row(one, terms.protocol, race_id) for one in sampled]
