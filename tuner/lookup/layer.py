"""A tuned layer: for one N and K, which config to use for every M of an interval."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from math import log2
from typing import Any, Self, get_args

from tuner.config import KernelConfig
from tuner.errors import TunerError
from tuner.lookup.answer import Use
from tuner.lookup.confidence import Regret
from tuner.lookup.terms import Terms
from tuner.shape import GemmShape, OutputLayout, Problem
from tuner.trial import Source, Toolchain


class InvalidLayer(TunerError):
    """A layer that contradicts itself, or JSON that is none; the message names the field."""


def at_m(problem: Problem, m: int) -> Problem:
    """The problem of the same layer with that M."""
    return replace(problem, shape=replace(problem.shape, m=m))


def layer_key(problem: Problem) -> Problem:
    """What names the layer of a problem: the one with M = 1."""
    return at_m(problem, 1)


@dataclass(frozen=True, slots=True)
class Interval:
    """One config for every M from `low` to `high`, both included.

    measured: the Ms inside that were raced. regret: how much slower than the best config found
        there this one was on them; its p95 is the worst, its cases are their number.
    use: what measured fastest on them, cuBLAS or this kernel.
    """

    low: int
    high: int
    config: KernelConfig
    use: Use
    measured: tuple[int, ...]
    regret: Regret

    def nearest(self, m: int) -> int:
        """The measured M that is nearest to `m` in doublings, the smaller of two."""
        return min(self.measured, key=lambda tuned: (abs(log2(tuned / m)), tuned))


@dataclass(frozen=True, slots=True)
class Layer:
    """Intervals of M in ascending order, apart from each other; gaps have no answer.

    terms: what the configs were chosen for. Raises: InvalidLayer.
    """

    n: int
    k: int
    sms: int
    terms: Terms
    intervals: tuple[Interval, ...]
    toolchain: Toolchain
    measured_at: datetime
    source: Source = "measured"
    dtype: str = "bf16"
    layout: str = "tn"
    d: OutputLayout = "row"
    epilogue: str = "none"

    def __post_init__(self) -> None:
        before = 0
        self.key  # noqa: B018  # raises for extents that no shape has
        for interval in self.intervals:
            if not before < interval.low <= interval.high:
                raise InvalidLayer(
                    f"intervals of M must ascend and not overlap; {interval.low} to "
                    f"{interval.high} comes after {before}."
                )
            if not interval.measured or not all(
                interval.low <= m <= interval.high for m in interval.measured
            ):
                raise InvalidLayer(
                    f"the interval {interval.low} to {interval.high} must hold every M that was "
                    f"measured for it, and one at least; it names {list(interval.measured)}."
                )
            before = interval.high

    @property
    def key(self) -> Problem:
        """The problem of this layer with M = 1, by which layers are found."""
        rest = (self.dtype, self.layout, self.d, self.epilogue)
        return Problem(GemmShape(1, self.n, self.k), self.sms, *rest)

    def interval(self, m: int) -> Interval | None:
        """The interval that holds `m`."""
        at = bisect_right(self.intervals, m, key=lambda interval: interval.low) - 1
        return self.intervals[at] if at >= 0 and m <= self.intervals[at].high else None

    def to_json(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "k": self.k,
            "sms": self.sms,
            "dtype": self.dtype,
            "layout": self.layout,
            "d": self.d,
            "epilogue": self.epilogue,
            "terms": self.terms.label,
            "kernel_hash": self.toolchain.kernel_hash,
            "toolchain": f"nvrtc {self.toolchain.nvrtc_version}",
            "measured_at": self.measured_at.isoformat(),
            "source": self.source,
            "intervals": [_interval_json(interval) for interval in self.intervals],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Raises: InvalidLayer for anything that `to_json` does not make."""
        try:
            return cls(
                int(values["n"]),
                int(values["k"]),
                int(values["sms"]),
                Terms.of_label(str(values["terms"])),
                tuple(_interval(interval) for interval in values["intervals"]),
                Toolchain(values["kernel_hash"], str(values["toolchain"]).removeprefix("nvrtc ")),
                datetime.fromisoformat(values["measured_at"]),
                _one_of(Source, values["source"]),
                str(values["dtype"]),
                str(values["layout"]),
                _one_of(OutputLayout, values["d"]),
                str(values["epilogue"]),
            )
        except (KeyError, TypeError, ValueError, TunerError) as error:
            raise InvalidLayer(f"a layer is not of this form ({error}).") from None


def _interval_json(interval: Interval) -> dict[str, Any]:
    return {
        "m": [interval.low, interval.high],
        "config": interval.config.to_dict(),
        "use": interval.use,
        "measured": list(interval.measured),
        "regret": interval.regret.to_json(),
    }


def _interval(values: Mapping[str, Any]) -> Interval:
    low, high = values["m"]
    regret = values["regret"]
    return Interval(
        int(low),
        int(high),
        KernelConfig.from_dict(values["config"]),
        _one_of(Use, values["use"]),
        tuple(int(m) for m in values["measured"]),
        Regret(float(regret["mean"]), float(regret["p95"]), int(regret["cases"])),
    )


def _one_of(choices: Any, value: object) -> Any:
    if value not in get_args(choices):
        raise InvalidLayer(f"{value!r} is not one of {', '.join(get_args(choices))}.")
    return value
