"""The launches that `benchmarks.library_kernels` has a profiler watch; it starts this itself.

Before each launch of a library stands a kernel of a known name. With `--trace` torch's profiler
watches, and writes a Chrome trace; without, whoever started this process does.
"""

import argparse
import importlib
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.library_kernels import MARKER, label
from tuner.shape import GemmShape, Problem

Launch = tuple[dict[str, Any], Callable[[], None]]


def launches_of(problem: Problem, libraries: Any, stream: Any) -> list[Launch]:
    """What cuBLAS and each offered algorithm of cuBLASLt launch; those that run at all."""
    import cupy
    from nvmath.bindings import cublasLt as lt

    from tuner.device.cuda import operands as data
    from tuner.device.cuda.blas import CublasLaunch, Enqueue, LtLaunch, LtProblem

    operands = data.allocate(problem)
    data.fill_normal(operands, cupy.random.default_rng(1))
    cupy.cuda.get_current_stream().synchronize()
    lt_problem = LtProblem(libraries, problem)
    offered = {a.attributes(): a for a in lt_problem.algorithms()}
    found: list[tuple[dict[str, Any], Enqueue]] = [
        (label(problem.shape, "cublas", None), CublasLaunch(libraries, problem, operands)),
        *(
            (
                label(problem.shape, "cublaslt", attributes),
                LtLaunch(lt_problem, algorithm, problem, operands),
            )
            for attributes, algorithm in offered.items()
        ),
    ]
    running: list[Launch] = []
    for told, launch in found:
        try:
            launch.enqueue(stream.ptr)
            stream.synchronize()
        except lt.cuBLASLtError:
            continue
        running.append((told, partial(launch.enqueue, stream.ptr)))
    return running


def watched(device: int) -> AbstractContextManager[Any]:
    """Torch's profiler, which sees every kernel of this process."""
    importlib.import_module("torch").ones(1, device=f"cuda:{device}")  # makes torch ready
    profiler: Any = importlib.import_module("torch.profiler")
    profile: AbstractContextManager[Any] = profiler.profile(
        activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA]
    )
    return profile


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--device", type=int, default=0)
    arguments.add_argument("--shapes", nargs="+", required=True)
    arguments.add_argument("--labels", type=Path, required=True)
    arguments.add_argument("--trace", type=Path)
    chosen = arguments.parse_args()
    import cupy

    from tuner.device.cuda.blas import Libraries

    cupy.cuda.Device(chosen.device).use()
    cupy.cuda.runtime.free(0)
    libraries = Libraries()
    stream = cupy.cuda.Stream(non_blocking=True)
    mark = cupy.RawKernel(f'extern "C" __global__ void {MARKER}() {{}}', MARKER)
    sms = cupy.cuda.runtime.getDeviceProperties(chosen.device)["multiProcessorCount"]
    mark.compile()  # without a launch, which would stand before those that are not labelled
    prepared: list[Launch] = []
    for text in chosen.shapes:
        shape = GemmShape(*map(int, text.split("x")))
        prepared += launches_of(Problem(shape, sms), libraries, stream)
    with watched(chosen.device) if chosen.trace else nullcontext() as profile:
        for _, launch in prepared:
            mark((1,), (32,), (), stream=stream)
            launch()
            stream.synchronize()
        cupy.cuda.runtime.deviceSynchronize()
    if profile is not None:
        profile.export_chrome_trace(str(chosen.trace))
    labels = [told for told, _ in prepared]
    chosen.labels.write_text(json.dumps({"labels": labels, "cublas": libraries.version()}))


if __name__ == "__main__":
    main()
