"""What a look-up returns, and its one JSON form."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from tuner.config import KernelConfig
from tuner.lookup.confidence import Confidence
from tuner.lookup.numerics import Numerics
from tuner.shape import GemmShape, Problem
from tuner.trial import Source, Toolchain

Tier = Literal["exact", "layer", "nearest", "sibling", "model"]
Use = Literal["kernel", "cublas", "cublaslt"]


@dataclass(frozen=True, slots=True)
class Match:
    """How the answer was found.

    exact: measured. layer: M lies inside a tuned interval. nearest: borrowed from a shape tuned on
    the device; sibling: on another Hopper part. model: no tuned shape is near, or none has a config
    that the analytic model thinks fit.
    from_shape: the tuned shape it was borrowed from, in the asked memory order of D.
    """

    tier: Tier = "exact"
    from_shape: GemmShape | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """The chosen config under one protocol, beside the libraries in the same races.

    ci95_us: 95 % interval of the median. speedup: median over rounds of cuBLAS / ours.
    cublaslt_best_us: the fastest cuBLASLt algorithm raced; None if none was.
    """

    protocol: str
    median_us: float
    tflops: float
    ci95_us: tuple[float, float]
    samples: int
    speedup: float
    cublas_us: float
    cublaslt_best_us: float | None

    def measurement(self) -> dict[str, Any]:
        return {
            "median_us": self.median_us,
            "tflops": self.tflops,
            "ci95_us": list(self.ci95_us),
            "samples": self.samples,
            "protocol": self.protocol,
        }

    def baseline(self) -> dict[str, Any]:
        return {"cublas_us": self.cublas_us, "cublaslt_best_us": self.cublaslt_best_us}


@dataclass(frozen=True, slots=True)
class Library:
    """Which library routine beats the kernel, and the version that was measured."""

    cublas_version: str | None
    algorithm: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """The config to use for a problem, what is known of its speed, and whether to use it at all.

    timings: one for each protocol that counted, the one that `measurement` shows first; empty
        for a tier that predicts instead of measuring, and then `speedup` is None.
    use: the fastest measured, or expected to be; `library` says how to call it where that is not
        the kernel.
    ties: the other configs that the races cannot tell from this one.
    toolchain: what the config was proven with or, for the tier model, the model scored with.
    measured_at: None for a tier that predicts.
    stale: made with another kernel, compiler or driver than the current ones.
    predicted: how sure a tier is that did not measure this problem; None for one that did.
    """

    problem: Problem
    device_key: str
    device_name: str
    match: Match
    config: KernelConfig
    timings: tuple[Timing, ...]
    speedup: float | None
    use: Use
    library: Library | None
    ties: tuple[KernelConfig, ...]
    toolchain: Toolchain
    measured_at: datetime | None
    stale: bool
    source: Source
    numerics: Numerics
    predicted: Confidence | None = None

    @property
    def confidence(self) -> Confidence:
        if self.predicted is not None:
            return self.predicted
        shown = self.measurement
        if shown is None:
            return Confidence(0, None, None, None)
        return Confidence(shown.samples, shown.ci95_us, None, 0.0)

    @property
    def measurement(self) -> Timing | None:
        return self.timings[0] if self.timings else None

    def promising(self, numerics: Numerics | None) -> "Answer":
        """The same, with no library to use where its results would promise less than asked.

        A library may change its algorithm, and so the bits of a row, from one M to the next.
        """
        if numerics == "invariant" and self.use != "kernel":
            return replace(self, use="kernel", library=None)
        return self

    def to_json(self) -> dict[str, Any]:
        """The body of `GET /best-config`; holds finite numbers only."""
        shown = self.measurement
        shape, came_from = self.problem.shape, self.match.from_shape
        return {
            "shape": _extents(shape),
            "dtype": self.problem.dtype,
            "layout": self.problem.layout,
            "d": self.problem.d,
            "epilogue": self.problem.epilogue,
            "sms": self.problem.sms,
            "device": {"name": self.device_name, "key": self.device_key},
            "match": {
                "tier": self.match.tier,
                "from_shape": _extents(came_from) if came_from else None,
            },
            "config": self.config.to_dict(),
            "measurement": shown.measurement() if shown else None,
            "baseline": shown.baseline() if shown else None,
            "speedup": self.speedup,
            "confidence": self.confidence.to_json(),
            "protocols": {t.protocol: _per_protocol(t) for t in self.timings},
            "use": self.use,
            "library": _library(self.library),
            "ties": [config.to_dict() for config in self.ties],
            "numerics": self.numerics,
            "kernel_hash": self.toolchain.kernel_hash,
            "toolchain": f"nvrtc {self.toolchain.nvrtc_version}",
            "measured_at": self.measured_at.isoformat() if self.measured_at else None,
            "stale": self.stale,
            "source": self.source,
        }


def _extents(shape: GemmShape) -> dict[str, int]:
    return {"m": shape.m, "n": shape.n, "k": shape.k}


def _per_protocol(timing: Timing) -> Mapping[str, Any]:
    return {**timing.measurement(), **timing.baseline(), "speedup": timing.speedup}


def _library(library: Library | None) -> Mapping[str, Any] | None:
    if library is None:
        return None
    return {"cublas_version": library.cublas_version, "algorithm": library.algorithm}
