"""Races the stored best config against the libraries, on fresh samples, as evidence.

The rows keep every round, so that each ratio can be computed again: ratio = median over rounds of
baseline / ours within the round.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
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
from tuner.lookup.intervals import median_interval
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

    rounds: by the names of the evidence format: `tuned`, `cublas`, `cublas_again`,
        `cublaslt_best`, `article`.
    trials: configs that the latest search of the shape tried; None if none was stored.
    """

    problem: Problem
    state: BenchState
    detail: str = ""
    config: KernelConfig | None = None
    rounds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    algorithm: str | None = None
    conditions: Mapping[str, Any] = field(default_factory=dict)
    trials: int | None = None

    def median_us(self, contender: str) -> float | None:
        samples = self.rounds.get(contender)
        return median(samples) if samples else None

    def ratio(self, baseline: str) -> float | None:
        """How many times faster than `baseline` we are; None if it was not raced."""
        samples = self.rounds.get(baseline)
        return paired_ratio(samples, self.rounds["tuned"]) if samples else None

    @property
    def noise(self) -> float | None:
        """cuBLAS against itself in the same rounds; 1 would be a race without noise."""
        if not self.rounds:
            return None
        return paired_ratio(self.rounds["cublas_again"], self.rounds["cublas"])

    def to_json(self) -> dict[str, Any]:
        """A row of the evidence. Without dependent launch, `tuned_plain_us` is `tuned_us`."""
        assert self.config is not None
        shape, ours = self.problem.shape, self.rounds["tuned"]
        return {
            "m": shape.m,
            "n": shape.n,
            "k": shape.k,
            "d": self.problem.d,
            "sms": self.problem.sms,
            "trials": self.trials,
            "tuned_us": self.median_us("tuned"),
            "tuned_plain_us": self.median_us("tuned"),
            "cublas_us": self.median_us("cublas"),
            "cublaslt_best_us": self.median_us("cublaslt_best"),
            "article_us": self.median_us("article"),
            "tuned_ci95_us": list(median_interval(ours)),
            "tuned_tflops": shape.flops / median(ours) / 1e6,
            "ratio_cublas": self.ratio("cublas"),
            "ratio_cublaslt_best": self.ratio("cublaslt_best"),
            "ratio_article": self.ratio("article"),
            "noise": self.noise,
            "config": self.config.to_dict(),
            "cublaslt_algorithm": self.algorithm,
            "conditions": dict(self.conditions),
            "rounds": {name: list(samples) for name, samples in self.rounds.items()},
        }


def geometric_mean(raced: Iterable[Raced], baseline: str) -> float | None:
    """Over the shapes in which `baseline` was raced; None if there are none."""
    ratios = [ratio for one in raced if (ratio := one.ratio(baseline)) is not None]
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
    try:
        sampled = _sample(problem, ours, tools, terms)
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
        rounds=_rounds(problem, ours, sampled, terms),
        algorithm=_one(sampled, Contender("cublaslt")).contender.algorithm,
        conditions=asdict(_one(sampled, Contender("kernel", ours)).conditions),
        trials=tuned.trials if tuned else None,
    )


def _sample(problem: Problem, ours: KernelConfig, tools: Tools, terms: Terms) -> list[Sampled]:
    """Compile, prove and race; a contender without a usable time in every round is an error.

    Raises: InvalidConfig for a config that does not compile; DeviceError, DoesNotFit.
    """
    trusted = trusted_config(problem)
    kernels = [ours, article_config(problem)] if terms.article else [ours]
    futures = {c: tools.compiler.submit(c.variant) for c in dict.fromkeys((trusted, *kernels))}
    entrants = {config: _entrant(config, future.result()) for config, future in futures.items()}
    attempts = Attempts(tools.device, problem, entrants[trusted])
    proven = [entrants[config] for config in dict.fromkeys(kernels)]
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
    problem: Problem, ours: KernelConfig, sampled: Sequence[Sampled], terms: Terms
) -> dict[str, tuple[float, ...]]:
    pair = [one.samples_us for one in sampled if one.contender.name == "cublas"]
    rounds = {
        "tuned": _one(sampled, Contender("kernel", ours)).samples_us,
        "cublas": pair[0],
        "cublas_again": pair[1],
        "cublaslt_best": _one(sampled, Contender("cublaslt")).samples_us,
    }
    if terms.article:
        published = Contender("kernel", article_config(problem))
        rounds["article"] = _one(sampled, published).samples_us
    return rounds


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
