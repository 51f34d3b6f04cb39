"""What measurements say about configs that were not measured: a small Gaussian process.

It learns how far the analytic model is off, in logarithms, so a shape starts from the model and
from what neighbouring shapes taught. Similarity falls with the distance between tiles, then
rings, then launch knobs, and between shapes; each level explains a share of the deviation.

Every number here, the divisors and weights of the features included, is a guess, chosen by hand and
fitted on nothing; the recordings in `tuner/recordings` hold what a fit needs.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from math import erf, log2, pi
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from tuner.config import PROMOTIONS, Eviction, KernelConfig, Raster
from tuner.shape import Problem

Vector = NDArray[np.float64]

TILE_DEVIATION, RING_DEVIATION, KNOB_DEVIATION = 0.031, 0.062, 0.015
"""Standard deviations, in ln(time), that tiles, rings and knobs add to the analytic model, alike on
shapes that are alike."""
OWN_DEVIATION = 0.035
"""The same for what a tile adds on one shape alone."""
OFFSET_DEVIATION = 0.3
"""The same for what all configs of a shape share."""
NOISE = 0.018
"""Standard deviation, in ln(time), of a screening from what a race would say."""


# In each list, a difference of 1 lowers the expected likeness by a factor of e.


def _tile_features(c: KernelConfig) -> list[float]:
    v = c.variant
    return [
        0.3 * log2(v.block_m),
        0.4 * log2(v.block_n),
        0.05 * v.transposed_store,
        0.1 * (v.schedule == "pingpong"),
        0.05 * (v.split == "n"),
        0.1 * v.consumers,
        0.45 * log2(c.knobs.split_k),
        0.3 * c.knobs.split_tail,
    ]


def _ring_features(c: KernelConfig) -> list[float]:
    v = c.variant
    return [
        0.45 * log2(v.stages),
        0.1 * log2(v.slabs_per_stage),
        0.6 * log2(v.cluster_m),
        0.6 * log2(v.cluster_n),
        v.consumer_registers / 400,
    ]


def _knob_features(c: KernelConfig) -> list[float]:
    k = c.knobs
    return [
        k.num_sms / 200,
        0.2 * log2(k.group),
        *(0.45 * (k.raster == r) for r in get_args(Raster)),
        *(0.25 * (k.promotion == p) for p in PROMOTIONS),
        *(float(side == e) for side in (k.evict_a, k.evict_b) for e in get_args(Eviction)),
    ]


def _shape_features(problem: Problem) -> list[float]:
    s = problem.shape
    return [0.15 * log2(s.m), 0.15 * log2(s.n), 0.4 * log2(s.k), 4.0 * (problem.d == "col")]


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
        away = _distance(self.shape, other.shape)
        return np.asarray(levels * np.exp(-away) + OWN_DEVIATION**2 * tile * (away < SAME))


SAME = 1e-6
"""Shapes that are no farther apart are one."""
PRIOR_VARIANCE = TILE_DEVIATION**2 + RING_DEVIATION**2 + KNOB_DEVIATION**2 + OWN_DEVIATION**2


class Belief:
    """Mean and variance of the deviation at the points `asked`, which are all of one problem.

    seen: points of other problems, and `deviations` from the model there, of which each problem's
    own offset has been taken. The offset of the asked problem is learnt with the deviations.
    """

    def __init__(self, asked: Points, seen: Points, deviations: Vector) -> None:
        self._asked = asked
        count = len(asked.tile)
        self.mean: Vector = np.zeros(count)
        self.variance: Vector = np.full(count, PRIOR_VARIANCE + OFFSET_DEVIATION**2)
        self._explained: list[Vector] = []
        if len(deviations):
            covariance = seen.covariance(seen) + NOISE**2 * np.eye(len(deviations))
            factor = np.linalg.cholesky(covariance)
            whitened = np.linalg.solve(factor, seen.covariance(asked))
            self.mean = whitened.T @ np.linalg.solve(factor, deviations)
            self.variance = np.maximum(self.variance - np.sum(whitened**2, axis=0), 1e-9)
            self._explained = list(whitened)

    def copy(self) -> "Belief":
        """One that may go on learning without the other."""
        other = copy(self)
        other._explained = list(self._explained)
        return other

    def learn(self, index: int, deviation: float | None = None) -> None:
        """What was measured at `index`; None: take the expected as measured, it is on its way."""
        column = self._asked.covariance(self._asked[np.array([index])])[:, 0] + OFFSET_DEVIATION**2
        if self._explained:
            explained = np.array(self._explained)
            column -= explained.T @ explained[:, index]
        row = column / np.sqrt(self.variance[index] + NOISE**2)
        if deviation is not None:
            surprise = deviation - self.mean[index]
            self.mean = self.mean + row * (surprise / np.sqrt(self.variance[index] + NOISE**2))
        self._explained.append(row)
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
