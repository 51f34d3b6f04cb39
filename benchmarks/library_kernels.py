"""Which kernels the libraries run: `python -m benchmarks.library_kernels --out kernels.json`.

For each shape of a list: the kernel that cuBLAS launches, and the kernels of every algorithm that
cuBLASLt's heuristic offers, with what their names say of tile, stages, cluster, split K and
schedule. The launches are made in a process of its own under a profiler: torch's if torch is there,
else `ncu --clock-control none`. A profiler's times are of single launches and no evidence of speed.
"""

import argparse
import csv
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import SHAPES, Results, command_of, extents, gpu_parser
from benchmarks.kernel_names import parse
from tuner.cli import evidence
from tuner.cli.provenance import commit_measured
from tuner.compiler.nvrtc import nvrtc_version
from tuner.compiler.source import kernel_hash
from tuner.device.cuda.enumerate import cuda_device
from tuner.shape import GemmShape
from tuner.shape_files import read_shape_files
from tuner.trial import Toolchain

MODULE = "benchmarks.library_kernels"
MARKER = "next_library_launch"
"""The kernel that stands before every launch of a library, so that launches can be told apart."""
SHAPES_AT_ONCE = 12
DEADLINE_S = 240.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One kernel as a profiler saw it; µs only where it told."""

    name: str
    us: float | None = None


def from_trace(trace: Mapping[str, Any]) -> list[Seen]:
    """The kernels of a Chrome trace that torch's profiler wrote, in the order they ran."""
    kinds = ("kernel", "cuda_kernel")  # by its version
    kernels = [event for event in trace["traceEvents"] if event.get("cat") in kinds]
    return [
        Seen(event["name"], float(event["dur"]))
        for event in sorted(kernels, key=lambda event: float(event["ts"]))
    ]


def from_ncu(lines: Iterable[str]) -> list[Seen]:
    """The kernels of `ncu --csv --page raw`, in the order they were launched."""
    table = [line for line in lines if line.startswith('"')]
    rows = list(csv.DictReader(table))
    told = "gpu__time_duration.sum"
    # The first row below the header holds units.
    unit = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0}.get(rows[0][told], 0.0)
    return [
        Seen(row["Kernel Name"], float(row[told].replace(",", "")) * unit or None)
        for row in rows
        if row["Kernel Name"]
    ]


def launches(kernels: Iterable[Seen]) -> list[list[Seen]]:
    """The kernels between one marker and the next; what runs before the first is left out."""
    found: list[list[Seen]] = []
    for kernel in kernels:
        if MARKER in kernel.name:
            found.append([])
        elif found:
            found[-1].append(kernel)
    return found


def rows_of(labels: Sequence[Mapping[str, Any]], kernels: Sequence[Seen]) -> list[dict[str, Any]]:
    """One row for each launch that was labelled. Raises: ValueError if their numbers differ."""
    return [
        {
            **label,
            "kernels": [
                {"name": kernel.name, "us": kernel.us, **asdict(parse(kernel.name))}
                for kernel in of_launch
            ],
        }
        for label, of_launch in zip(labels, launches(kernels), strict=True)
    ]


def table_line(row: Mapping[str, Any]) -> str:
    shape = f"{row['m']}x{row['n']}x{row['k']}"
    told = " + ".join(str(parse(kernel["name"])) for kernel in row["kernels"])
    return f"{shape:>20} {row['library']:>8} {told or 'no kernel seen'}"


def profiled(shapes: Sequence[GemmShape], device: int, profiler: str) -> dict[str, Any]:
    """Labels, kernels and cuBLAS's version of all launches on `shapes`, by a process of its own.

    Raises: CalledProcessError or TimeoutExpired if it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        told, trace = Path(folder) / "labels.json", Path(folder) / "trace.json"
        asked = [f"{s.m}x{s.n}x{s.k}" for s in shapes]
        command = [sys.executable, "-m", "benchmarks.library_launches", "--device", str(device)]
        command += ["--labels", str(told), "--shapes", *asked]
        if profiler == "torch":
            command += ["--trace", str(trace)]
        else:
            metric = ["--metrics", "gpu__time_duration.sum"]
            options = ["--clock-control", "none", "--csv", "--page", "raw", *metric]
            command = ["ncu", *options, *command]
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        if ran.returncode:
            print(ran.stdout[-2000:], ran.stderr[-4000:], file=sys.stderr, flush=True)
            ran.check_returncode()
        seen = (
            from_trace(json.loads(trace.read_text()))
            if profiler == "torch"
            else from_ncu(ran.stdout.splitlines())
        )
        return {**json.loads(told.read_text()), "kernels": seen}


def main() -> None:
    arguments = gpu_parser(__doc__, MODULE)
    arguments.add_argument("--shapes", type=Path, nargs="+", default=[SHAPES / "mixed34.txt"])
    arguments.add_argument("--profiler", choices=("torch", "ncu"))
    chosen = arguments.parse_args()
    has_torch = importlib.util.find_spec("torch") is not None
    profiler = chosen.profiler or ("torch" if has_torch else "ncu")
    results = Results(chosen.out, {})
    failed: list[str] = []
    listed = read_shape_files(chosen.shapes).shapes
    for first in range(0, len(listed), SHAPES_AT_ONCE):
        shapes = listed[first : first + SHAPES_AT_ONCE]
        try:
            found = profiled(shapes, chosen.device, profiler)
        except (subprocess.SubprocessError, OSError, ValueError, LookupError) as error:
            failed += [str(shape) for shape in shapes]
            print(f"{', '.join(map(str, shapes))}: {error}", file=sys.stderr, flush=True)
            continue
        results.head = origin(chosen, found["cublas"]) | {"profiler": profiler}
        for row in rows_of(found["labels"], found["kernels"]):
            results.add(row, table_line(row))
    results.finish({"shapes_without_kernels": failed})
    sys.exit(1 if failed else 0)


def origin(chosen: argparse.Namespace, cublas: str) -> dict[str, Any]:
    """The head of the evidence; the version is that of the process that made the launches."""
    toolchain = Toolchain(kernel_hash(), nvrtc_version())
    head = evidence.origin(
        command_of(MODULE), commit_measured(chosen.commit), cuda_device(chosen.device), toolchain
    )
    return {**head, "toolchain": {**head["toolchain"], "cublas": cublas}}


def label(shape: GemmShape, library: str, algorithm: str | None) -> dict[str, Any]:
    """Whose launch it is."""
    return {**extents(shape), "library": library, "algorithm": algorithm}


if __name__ == "__main__":
    main()
