"""What the right answer is: a product in double precision, and how far bf16 may be from it."""

from collections.abc import Iterator
from math import sqrt
from typing import Any

import cupy

from tuner.device.cuda.operands import OperandSet
from tuner.shape import Problem

_CHUNK_BYTES = 1 << 30

_error_share = cupy.ReductionKernel(
    "uint16 bits, float64 expected, float64 absolute",
    "float64 worst",
    """
    isfinite(__uint_as_float((unsigned int)bits << 16))
        ? fabs((double)__uint_as_float((unsigned int)bits << 16) - expected)
            / (fabs(expected) / 256 + absolute)
        : 1.0 / 0.0
    """,
    "a > b ? a : b",
    "worst = a",
    "0",
    "error_share",
)

_exact_bf16 = cupy.ElementwiseKernel(
    "float64 x",
    "uint16 y",
    """
    unsigned int bits = __float_as_uint((float)x);
    y = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    """,
    "exact_bf16",
)
"""For integers below 2^24, which a float holds exactly."""


def absolute_tolerance(k: int) -> float:
    """Error allowed besides half a unit of bf16, for normal(0,1) operands.

    Sums of K products have a spread of sqrt(K); the tensor core truncates as it adds, so the error
    grows with the number of additions too.
    """
    return sqrt(k) * (2.0**-13 + k * 2.0**-27)


def products(problem: Problem, operands: OperandSet) -> Iterator[tuple[slice, Any]]:
    """The product in fp64, in memory order of D: slices of the flat output, and their values."""
    outer, inner = operands.buffers[0], operands.buffers[1]
    if problem.d == "col":
        outer, inner = inner, outer
    columns = _upcast(inner).T
    rows = max(1, _CHUNK_BYTES // (8 * max(columns.shape[1], problem.shape.k)))
    for start in range(0, outer.shape[0], rows):
        block = _upcast(outer[start : start + rows]) @ columns
        yield slice(start * inner.shape[0], start * inner.shape[0] + block.size), block.reshape(-1)


def error_share(problem: Problem, operands: OperandSet, produced: Any) -> float:
    """The largest error of `produced` as a share of what is allowed; infinite if not finite."""
    absolute = absolute_tolerance(problem.shape.k)
    return max(
        float(_error_share(produced[part], expected, absolute))
        for part, expected in products(problem, operands)
    )


def exact_output(problem: Problem, operands: OperandSet) -> Any:
    """The bf16 bits of an exact integer product."""
    result = cupy.empty(problem.shape.m * problem.shape.n, cupy.uint16)
    for part, expected in products(problem, operands):
        _exact_bf16(expected, result[part])
    return result


def _upcast(bits: Any) -> Any:
    return (bits.astype(cupy.uint32) << 16).view(cupy.float32).astype(cupy.float64)
