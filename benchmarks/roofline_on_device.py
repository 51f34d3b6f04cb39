"""The rates that a card sustains, measured in the process that has its context."""

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from tuner.shape import Problem

if TYPE_CHECKING:
    from tuner.device.cuda.workbench import Tools

WARM_SECONDS = 1.0
"""Longer than before a race: a large product takes a while to meet the power limit."""
ROUNDS = 15
STREAM_BYTES = 2 * 2**30
STREAM_LAUNCHES = 8

READ_SOURCE = """
extern "C" __global__ void read_all(const uint4* from, long long count, unsigned int* to) {
    unsigned int seen = 0;
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += stride) {
        const uint4 value = __ldcs(from + i);
        seen ^= value.x ^ value.y ^ value.z ^ value.w;
    }
    if (seen == 0x5EED5EED) *to = seen;  // keeps the loads; as good as never true
}
"""
READ_BLOCKS_PER_SM, READ_THREADS = 8, 256


@dataclass(frozen=True)
class MeasureProduct:
    """TFLOP/s of cuBLAS on one product, back to back on operands that rotate past L2."""

    problem: Problem

    def __call__(self, tools: "Tools") -> dict[str, Any]:
        import cupy

        from tuner.device.cuda import operands as data
        from tuner.device.cuda import timing
        from tuner.device.cuda.blas import CublasLaunch

        generator = cupy.random.default_rng(1)
        sets = data.rotation(self.problem, 8 * 2**30)
        for operands in sets:
            data.fill_normal(operands, generator)
        cupy.cuda.get_current_stream().synchronize()
        launches = [CublasLaunch(tools.libraries, self.problem, operands) for operands in sets]
        estimate = timing.estimate_us(tools.stream, launches)
        graph = timing.capture(tools.stream, launches, timing.launches_for(estimate, len(sets)))
        us = _hot_us(tools, graph)
        return {"us": us, "rate": self.problem.shape.flops / us / 1e6}


@dataclass(frozen=True)
class MeasureCopies:
    """TB/s of a copy on the device, bytes read and bytes written, and of a read alone."""

    sms: int

    def __call__(self, tools: "Tools") -> dict[str, dict[str, Any]]:
        import cupy

        from tuner.device.cuda import timing

        first, second = (cupy.ones(STREAM_BYTES, cupy.uint8) for _ in range(2))
        seen = cupy.zeros(1, cupy.uint32)
        read = cupy.RawKernel(READ_SOURCE, "read_all")
        blocks = (self.sms * READ_BLOCKS_PER_SM,)
        cupy.cuda.get_current_stream().synchronize()

        class Copy:
            def enqueue(self, stream: int) -> None:  # noqa: ARG002
                second.data.copy_from_device_async(first.data, STREAM_BYTES, tools.stream)

        class Read:
            def enqueue(self, stream: int) -> None:  # noqa: ARG002
                arguments = (first, STREAM_BYTES // 16, seen)
                read(blocks, (READ_THREADS,), arguments, stream=tools.stream)

        found = {}
        for kind, work, moved in (
            ("copy", Copy(), 2 * STREAM_BYTES),
            ("read", Read(), STREAM_BYTES),
        ):
            work.enqueue(tools.stream.ptr)  # loads what is loaded lazily, outside a capture
            tools.stream.synchronize()
            us = _hot_us(tools, timing.capture(tools.stream, [work], STREAM_LAUNCHES))
            found[kind] = {"bytes": moved, "us": us, "rate": moved / us / 1e6}
        return found


def _hot_us(tools: "Tools", graph: Any) -> float:
    from tuner.device.cuda import timing

    track = timing.Track(tools.stream, tools.order, lambda: None)
    timing.warm(tools.stream, graph, WARM_SECONDS)
    return median(timing.race_hot(track, [graph], ROUNDS)[0])
