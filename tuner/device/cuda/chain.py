"""Chains: launches that read what the launch before wrote, with a foreign kernel among them.

A dependent launch starts while its predecessor still runs. Whether it waits as it must shows only
where it reads the predecessor's output, or overwrites what the predecessor reads. Of an output that
is larger than the operand, the end is read: that is written last.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import cupy

from tuner.config import KernelConfig
from tuner.device.cuda import operands as data
from tuner.device.cuda.launch import Launch
from tuner.device.cuda.tensor_map import Matrix
from tuner.device.cuda.workspace import Workspace
from tuner.shape import Problem

STEPS = ("gemm", "gemm", "normalise", "gemm", "normalise", "gemm", "gemm", "gemm")
REPEATS = 3
TENSOR_MAP_ALIGNMENT = 8
"""Elements of bf16 in the 16 bytes at which a tensor map may begin."""

_normalise = cupy.RawKernel(
    """
    extern "C" __global__ void normalise(unsigned short* rows, int width) {
        __shared__ float partial[256];
        unsigned short* row = rows + (long long)blockIdx.x * width;
        float sum = 0;
        for (int i = threadIdx.x; i < width; i += 256) {
            const float x = __uint_as_float((unsigned int)row[i] << 16);
            sum += x * x;
        }
        partial[threadIdx.x] = sum;
        __syncthreads();
        for (int reach = 128; reach > 0; reach /= 2) {
            if (threadIdx.x < reach) partial[threadIdx.x] += partial[threadIdx.x + reach];
            __syncthreads();
        }
        const float scale = rsqrtf(partial[0] / width + 1e-6f);
        for (int i = threadIdx.x; i < width; i += 256) {
            const float x = __uint_as_float((unsigned int)row[i] << 16) * scale;
            row[i] = __float_as_uint(x) >> 16;
        }
    }
    """,
    "normalise",
)
"""Divides every row of bf16 by its root mean square, in place; one thread block of 256 a row."""


@dataclass(frozen=True, slots=True)
class Chain:
    """The first operand and the output of every product are two buffers that change places."""

    problem: Problem
    buffers: tuple[Any, Any]
    weights: Any

    @classmethod
    def random(cls, problem: Problem, seed: int) -> "Chain":
        """Buffers and weights drawn from normal(0,1), or what is left of it by truncation."""
        s, generator = problem.shape, cupy.random.default_rng(seed)
        elements = s.m * max(s.n, s.k)
        first, second = (_normal(generator, elements) for _ in range(2))
        return cls(problem, (first, second), _normal(generator, s.n * s.k))

    def first_operand(self, turn: int) -> Any:
        """The [M, K] elements that the product of one turn reads: the last that were written."""
        s = self.problem.shape
        spare = s.m * max(s.n - s.k, 0)
        begin = spare // TENSOR_MAP_ALIGNMENT * TENSOR_MAP_ALIGNMENT
        return self.buffers[turn % 2][begin : begin + s.m * s.k]

    def operands(self, turn: int) -> data.OperandSet:
        """What the product of one turn reads and writes."""
        s = self.problem.shape
        source, target = self.first_operand(turn), self.buffers[(turn + 1) % 2]
        outer, inner = data.output_extents(self.problem)
        return data.OperandSet(
            Matrix(source.data.ptr, s.m, s.k, s.k),
            Matrix(self.weights.data.ptr, s.n, s.k, s.k),
            Matrix(target.data.ptr, outer, inner, inner),
            (source, self.weights, target),
        )

    def normalise(self, turn: int, stream: Any) -> None:
        """Divide the rows that the product of `turn` will read by their root mean square."""
        s = self.problem.shape
        _normalise((s.m,), (256,), (self.first_operand(turn), s.k), stream=stream)

    def copy(self) -> "Chain":
        first, second = (buffer.copy() for buffer in self.buffers)
        return Chain(self.problem, (first, second), self.weights)


def enqueue_chain(chain: Chain, launches: Sequence[Launch], stream: Any, *, alone: bool) -> None:
    """Enqueue STEPS; `launches` are those of an even and an odd turn. alone: wait after each."""
    turn = 0
    for step in STEPS:
        if step == "gemm":
            launches[turn % 2].enqueue(stream.ptr)
            turn += 1
        else:
            chain.normalise(turn, stream)
        if alone:
            stream.synchronize()


def chain_faults(
    problem: Problem,
    function: Any,
    config: KernelConfig,
    workspace: Workspace,
    stream: Any,
) -> list[str]:
    """What differs between a chain of dependent launches and the same one step at a time."""
    chain = Chain.random(problem, seed=problem.shape.m + problem.shape.n + problem.shape.k)
    alone, together = chain.copy(), chain.copy()
    cupy.cuda.get_current_stream().synchronize()
    plain = replace(config, knobs=replace(config.knobs, dependent_launch=False))
    launches = [Launch(function, plain, problem, alone.operands(t), workspace) for t in (0, 1)]
    enqueue_chain(alone, launches, stream, alone=True)
    launches = [Launch(function, config, problem, together.operands(t), workspace) for t in (0, 1)]
    with stream:
        stream.begin_capture()
        enqueue_chain(together, launches, stream, alone=False)
        graph = stream.end_capture()
    for _ in range(REPEATS):
        for mine, initial in zip(together.buffers, chain.buffers, strict=True):
            mine[...] = initial
        cupy.cuda.get_current_stream().synchronize()
        graph.launch(stream)
        stream.synchronize()
        differing = sum(
            int(cupy.count_nonzero(a != b))
            for a, b in zip(alone.buffers, together.buffers, strict=True)
        )
        if differing:
            return [f"{differing} elements of a chain of dependent launches are wrong"]
    return []


def _normal(generator: Any, elements: int) -> Any:
    values = cupy.empty(elements, cupy.uint16)
    chunk = 1 << 26
    for start in range(0, elements, chunk):
        part = values[start : start + chunk]
        drawn = generator.standard_normal(part.size, dtype=cupy.float32)
        part[...] = (drawn.view(cupy.uint32) >> 16).astype(cupy.uint16)
    return values
