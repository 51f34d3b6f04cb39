"""What one race says of an answer beside what might have been better, and many of them together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean, geometric_mean, median
from typing import Any

from tuner.config import KernelConfig
from tuner.errors import DeviceError
from tuner.lookup import Answer
from tuner.shape import Problem
from tuner.trial import Contender, Sampled, TrialState, paired_ratio

CUBLAS = Contender("cublas")
AIM = 0.03
"""The regret that no answer is to exceed."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One race. best: the fastest by one half of the rounds; None for cuBLAS.

    regret: how much slower the answer is in the other half, 0 where it is not; noise: cuBLAS
    against itself, less 1. Times are medians in µs.
    """

    m: int
    answer: Answer
    best: KernelConfig | None
    answer_us: float
    best_us: float
    cublas_us: float
    regret: float
    noise: float
    entrants: int

    def to_json(self) -> dict[str, Any]:
        return {
            "m": self.m,
            "use": self.answer.use,
            "config": str(self.answer.config),
            "best": "cublas" if self.best is None else str(self.best),
            "answer_us": round(self.answer_us, 4),
            "best_us": round(self.best_us, 4),
            "cublas_us": round(self.cublas_us, 4),
            "regret": round(self.regret, 6),
            "noise": round(self.noise, 6),
            "entrants": self.entrants,
        }


def loss(m: int, answer: Answer, sampled: Sequence[Sampled]) -> Loss:
    """What a race says of an answer. Raises: DeviceError if the answer or cuBLAS has no
    usable time.
    """
    sound = [one for one in sampled if one.state is TrialState.OK]
    cublas = [one.samples_us for one in sound if one.contender == CUBLAS]
    rivals = {one.contender.config: one.samples_us for one in reversed(sound)}
    if len(cublas) != 2 or (answer.use == "kernel" and answer.config not in rivals):
        broken = [
            f"{one.contender}: {one.state} {one.detail}" for one in sampled if one not in sound
        ]
        raise DeviceError(f"M={m}: the race broke: {'; '.join(broken) or 'cuBLAS is missing'}")
    ours = rivals[answer.config if answer.use == "kernel" else None]
    best = min(rivals, key=lambda who: median(rivals[who][::2]))
    slower = 1.0 if rivals[best] is ours else paired_ratio(ours[1::2], rivals[best][1::2])
    return Loss(
        m,
        answer,
        best,
        median(ours),
        median(rivals[best]),
        median(cublas[0]),
        max(slower - 1, 0.0),
        paired_ratio(cublas[1], cublas[0]) - 1,
        len(sampled),
    )


def row_of(key: Problem, losses: Sequence[Loss]) -> dict[str, Any]:
    """Some neighbouring Ms of one layer."""
    return {"n": key.shape.n, "k": key.shape.k, "ms": [one.to_json() for one in losses]}


def told(row: Mapping[str, Any]) -> str:
    ms = row["ms"]
    worst = max(ms, key=lambda one: one["regret"])
    return (
        f"N={row['n']} K={row['k']} M {ms[0]['m']}..{ms[-1]['m']}: worst {worst['regret']:.1%} at "
        f"M={worst['m']}, mean {fmean(one['regret'] for one in ms):.2%}"
    )


def summary(
    rows: Sequence[Mapping[str, Any]], unanswered: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    """Worst and mean regret, of each layer and of all; Ms without an interval beside them."""
    layers = dict.fromkeys(f"{row['n']}x{row['k']}" for row in rows)
    of_layer = {
        name: [one for row in rows if f"{row['n']}x{row['k']}" == name for one in row["ms"]]
        for name in layers
    }
    everything = [one for ms in of_layer.values() for one in ms]
    regrets = [one["regret"] for one in everything]
    return {
        "aim_worst_regret": AIM,
        "worst_regret": max(regrets, default=None),
        "mean_regret": fmean(regrets) if regrets else None,
        "within_aim": sum(regret <= AIM for regret in regrets),
        "raced": len(regrets),
        "unanswered": {name: list(ms) for name, ms in unanswered.items() if ms},
        "noise_worst": max((abs(one["noise"]) for one in everything), default=None),
        "layers": {name: _of_one(ms) for name, ms in of_layer.items()},
    }


def _of_one(ms: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    regrets = sorted(one["regret"] for one in ms)
    worst = max(ms, key=lambda one: one["regret"])
    return {
        "raced": len(ms),
        "worst_regret": worst["regret"],
        "worst_m": worst["m"],
        "p95_regret": regrets[ceil(0.95 * len(regrets)) - 1],
        "mean_regret": fmean(regrets),
        "ratio_cublas": geometric_mean([one["cublas_us"] / one["answer_us"] for one in ms]),
    }
