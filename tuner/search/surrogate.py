"""What measurements say about configs that were not measured: a small Gaussian process.

It learns how far the analytic model is off, in logarithms, so a shape starts from the model and
from what neighbouring shapes taught. Similarity falls with the distance between tiles, then
rings, then launch knobs, and between shapes; each level explains a share of the deviation.

Every number here, the divisors and weights of the features included, is a guess, chosen by hand and
fitted on nothing; the recordings in `tuner/recordings` hold what a fit needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import erf, log2, pi
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from tuner.config import PROMOTIONS, Eviction, KernelConfig, Raster
from tuner.shape import Problem

Vector = NDArray[np.float64]

TILE_DEVIATION, RING_DEVIATION, KNOB_DEVIATION = 0.15, 0.08, 0.015
"""Standard deviations, in ln(time), that tiles, rings and knobs add to the analytic model.
Guesses: a tile matters most, a knob least."""
NOISE = 0.01
"""Standard deviation of one screening, in ln(time). A guess."""


# In each list, a difference of 1 lowers the expected likeness by a factor of e.


def _tile_features(c: KernelConfig) -> list[float]:
    v = c.variant
    return [
        log2(v.block_m),
        log2(v.block_n) / 0.7,
        0.5 * v.transposed_store,
        0.7 * (v.schedule == "pingpong"),
        0.5 * (v.split == "n"),
        0.5 * v.consumers,
        log2(c.knobs.split_k) / 2,
        float(c.knobs.split_tail),
    ]


def _ring_features(c: KernelConfig) -> list[float]:
    v = c.variant
    return [
        log2(v.stages) / 0.7,
        log2(v.slabs_per_stage),
        log2(v.cluster_m),
        log2(v.cluster_n),
        v.consumer_registers / 16,
    ]


def _knob_features(c: KernelConfig) -> list[float]:
    k = c.knobs
    return [
        k.num_sms / 6,
        log2(k.group) / 2,
        *(float(k.raster == r) for r in get_args(Raster)),
        *(float(k.promotion == p) for p in PROMOTIONS),
        *(float(side == e) for side in (k.evict_a, k.evict_b) for e in get_args(Eviction)),
    ]


def _shape_features(problem: Problem) -> list[float]:
    s = problem.shape
    return [log2(s.m) / 2, log2(s.n) / 2, log2(s.k) / 2, 4.0 * (problem.d == "col")]


@dataclass(frozen=True, slots=True)
class Points:
    """Configs of problems, as coordinates in which nearness means similarity."""

    tile: Vector
    ring: Vector
    knob: Vector
    shape: Vector

    @classmethod
    def of(cls, pairs: Sequence[tuple[Problem, KernelConfig]]) -> "Points":
        """pairs: a problem and a config of it; the order is kept."""
        columns = (
            [_tile_features(c) for _, c in pairs],
            [_ring_features(c) for _, c in pairs],
            [_knob_features(c) for _, c in pairs],
            [_shape_features(p) for p, _ in pairs],
        )
        return cls(*(np.array(c, dtype=np.float64) for c in columns))

    def __getitem__(self, rows: NDArray[np.intp] | slice) -> "Points":
        return Points(self.tile[rows], self.ring[rows], self.knob[rows], self.shape[rows])

    def variant_distance(self, other: "Points") -> Vector:
        """0 for launches of one variant that split K alike; matrix of self by other."""
        return _distance(self.tile, other.tile) + _distance(self.ring, other.ring)

    def covariance(self, other: "Points") -> Vector:
        """Expected product of deviations; matrix of self by other."""
        tile = np.exp(-_distance(self.tile, other.tile))
        ring = tile * np.exp(-_distance(self.ring, other.ring))
        knob = ring * np.exp(-_distance(self.knob, other.knob))
        levels = TILE_DEVIATION**2 * tile + RING_DEVIATION**2 * ring + KNOB_DEVIATION**2 * knob
        return np.asarray(levels * np.exp(-_distance(self.shape, other.shape)))


PRIOR_VARIANCE = TILE_DEVIATION**2 + RING_DEVIATION**2 + KNOB_DEVIATION**2


class Belief:
    """Mean and variance of the deviation at `asked`, given deviations seen at `seen`."""

    def __init__(self, seen: Points, deviations: Vector, asked: Points) -> None:
        self._asked = asked
        count = len(deviations)
        self.mean: Vector = np.zeros(len(asked.tile))
        self.variance: Vector = np.full(len(asked.tile), PRIOR_VARIANCE)
        self._whitened: Vector = np.zeros((0, len(asked.tile)))
        if not count:
            return
        covariance = seen.covariance(seen) + NOISE**2 * np.eye(count)
        cross = seen.covariance(asked)
        self._whitened = np.linalg.solve(np.linalg.cholesky(covariance), cross)
        self.mean = cross.T @ np.linalg.solve(covariance, deviations)
        explained = np.sum(self._whitened**2, axis=0)
        self.variance = np.maximum(PRIOR_VARIANCE - explained, 1e-9)

    def expect(self, index: int) -> None:
        """Take the prediction at `index` as if it had been measured: it is on its way."""
        column = self._asked.covariance(self._asked[np.array([index])])[:, 0]
        column -= self._whitened.T @ self._whitened[:, index]
        scale = np.sqrt(self.variance[index] + NOISE**2)
        row = column / scale
        self._whitened = np.vstack([self._whitened, row])
        self.variance = np.maximum(self.variance - row**2, 1e-9)


def expected_improvement(mean: Vector, variance: Vector, best: float) -> Vector:
    """How far below `best` each candidate is expected to come, on average."""
    deviation = np.sqrt(variance)
    z = (best - mean) / deviation
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * pi)
    below = 0.5 * (1 + np.array([erf(value) for value in z / np.sqrt(2)]))
    return np.asarray(deviation * (z * below + density))


def _distance(a: Vector, b: Vector) -> Vector:
    squares: Vector = np.sum(a**2, axis=1)[:, None] + np.sum(b**2, axis=1)[None, :] - 2 * a @ b.T
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))
