"""Operands in device memory: random or small-integer bf16, and enough of them to outrun L2."""

from dataclasses import dataclass
from typing import Any

import cupy

from tuner.device.cuda.tensor_map import Matrix
from tuner.shape import ELEMENT_BYTES, Problem

ROTATION_BYTES = 130 * 2**20
"""More than twice the L2 of an H100 or H200: a set is evicted before its turn comes again."""
MAX_SETS = 400
"""No more than one graph launches. Where these do not outrun L2, it is flushed between graphs."""
GUARD_BYTES = 4096
"""Kept before and after every output, to show a store outside it."""
GUARD_PATTERN = 0xA5
NAN_BF16 = 0x7FC0
_CHUNK = 1 << 26

_to_bf16 = cupy.ElementwiseKernel(
    "float32 x",
    "uint16 y",
    """
    unsigned int bits = __float_as_uint(x);
    y = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    """,
    "to_bf16",
)
"""Round to nearest, ties to even; the values given are finite."""


@dataclass(frozen=True, slots=True)
class OperandSet:
    """One set: A [M,K], B [N,K], and D in the problem's order, as matrices of their memory."""

    a: Matrix
    b: Matrix
    d: Matrix
    buffers: tuple[Any, ...]
    """The arrays behind the matrices (A, B, and D with its guards), which keep them alive."""


def output_extents(problem: Problem) -> tuple[int, int]:
    """(outer, inner) of D in memory."""
    s = problem.shape
    return (s.m, s.n) if problem.d == "row" else (s.n, s.m)


def allocate(problem: Problem) -> OperandSet:
    """Operands whose contents are not set, and an output between guards."""
    s = problem.shape
    a = cupy.empty((s.m, s.k), cupy.uint16)
    b = cupy.empty((s.n, s.k), cupy.uint16)
    outer, inner = output_extents(problem)
    d = cupy.empty(outer * inner * ELEMENT_BYTES + 2 * GUARD_BYTES, cupy.uint8)
    return OperandSet(
        Matrix(a.data.ptr, s.m, s.k, s.k),
        Matrix(b.data.ptr, s.n, s.k, s.k),
        Matrix(d.data.ptr + GUARD_BYTES, outer, inner, inner),
        (a, b, d),
    )


def output(operands: OperandSet) -> Any:
    """D as a flat array of bf16 bits."""
    guarded = operands.buffers[2]
    return guarded[GUARD_BYTES:-GUARD_BYTES].view(cupy.uint16)


def poison(operands: OperandSet) -> None:
    """Fill D with NaN and its guards with a pattern, so that what is not written shows."""
    operands.buffers[2].fill(GUARD_PATTERN)
    output(operands).fill(NAN_BF16)


def guards_intact(operands: OperandSet) -> bool:
    """Whether nothing was stored outside D."""
    guarded = operands.buffers[2]
    return bool(
        (guarded[:GUARD_BYTES] == GUARD_PATTERN).all()
        & (guarded[-GUARD_BYTES:] == GUARD_PATTERN).all()
    )


def fill_normal(operands: OperandSet, generator: Any) -> None:
    """normal(0,1), rounded to bf16."""
    for array in operands.buffers[:2]:
        flat = array.reshape(-1)
        for start in range(0, flat.size, _CHUNK):
            part = flat[start : start + _CHUNK]
            _to_bf16(generator.standard_normal(part.size, dtype=cupy.float32), part)


def fill_integers(operands: OperandSet, generator: Any, magnitude: int) -> None:
    """Integers of at most `magnitude`: with K x magnitude^2 < 2^24 every fp32 sum is exact."""
    for array in operands.buffers[:2]:
        flat = array.reshape(-1)
        for start in range(0, flat.size, _CHUNK):
            part = flat[start : start + _CHUNK]
            values = generator.integers(-magnitude, magnitude, part.size, endpoint=True)
            _to_bf16(values.astype(cupy.float32), part)


def rotation(problem: Problem, most_bytes: int) -> list[OperandSet]:
    """Sets to take turns, so that each finds its operands in memory rather than in L2."""
    wanted = -(-ROTATION_BYTES // problem.shape.operand_bytes)
    affordable = max(1, most_bytes // problem.shape.operand_bytes)
    return [allocate(problem) for _ in range(min(wanted, affordable, MAX_SETS))]


def outruns_l2(sets: list[OperandSet], problem: Problem) -> bool:
    """Whether a set is out of L2 by the time its turn comes again."""
    return len(sets) * problem.shape.operand_bytes >= ROTATION_BYTES
