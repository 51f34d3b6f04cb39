"""compute-sanitizer on the kernel: `python -m benchmarks.sanitize --out results.json`.

Runs memcheck and racecheck over configs of different kinds on a small shape, each in a process of
its own, and first over builds with a planted race, and with a fence or a barrier taken out, to see
what the tool would notice. (`product` says whether the output of such a build was still right, or
that the launch ended before that was looked at.) Kinds that split K run on a deeper shape, so that
a share has several steps; in the chain a second launch, which depends on the first, reads what that
wrote. `--jobs` processes share the GPU: nothing is timed.
"""

import argparse
import re
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import Results, command_of
from benchmarks.kinds import KINDS as VARIANTS
from tuner.cli import evidence
from tuner.cli.devices import Cuda
from tuner.cli.opening import opened
from tuner.cli.provenance import commit_measured
from tuner.compiler.pool import CompilePool
from tuner.compiler.source import TranslationUnit, render
from tuner.config import KernelConfig, KernelVariant, LaunchKnobs
from tuner.shape import GemmShape, Problem
from tuner.trial import Cubin

SMS = 8
SHAPE = GemmShape(392, 520, 328)
DEEP = GemmShape(392, 520, 1032)
NEXT_N = 264
"""Columns of the second product of the chain, whose K is the N of the first."""
TOOLS = ("memcheck", "racecheck")
DEADLINE_S = 120


@dataclass(frozen=True, slots=True)
class Kind:
    """A variant and how it is launched.

    chained: a launch follows that depends on the first and reads its output.
    """

    variant: KernelVariant
    split_k: int = 1
    split_tail: bool = False
    chained: bool = False

    @property
    def problem(self) -> Problem:
        return Problem(DEEP if self.split_k > 1 else SHAPE, SMS)

    @property
    def config(self) -> KernelConfig:
        size = self.variant.cluster_size
        knobs = LaunchKnobs(
            num_sms=SMS // size * size,
            split_k=self.split_k,
            split_tail=self.split_tail,
            dependent_launch=self.chained,
        )
        return KernelConfig(self.variant, knobs)

    @property
    def next_problem(self) -> Problem:
        """The product that reads the first's output."""
        first = self.problem.shape
        return Problem(GemmShape(first.m, NEXT_N, first.n), SMS)


WHOLE = (
    *("cooperative", "cooperative 128x256, cluster 2x1", "split along n", "cluster 2x2"),
    *("ping-pong", "ping-pong, exchanged, cluster 1x2"),
    *("one consumer, four slabs", "three consumers", "direct store"),
    *("uneven, cluster 8x1", "uneven, cluster 3x1"),
)
KINDS: Mapping[str, Kind] = {
    **{name: Kind(VARIANTS[name]) for name in WHOLE},
    "split K": Kind(VARIANTS["split K"], split_k=3),
    "split K, ping-pong, at the tail": Kind(
        VARIANTS["split K, ping-pong, cluster 1x2"], split_k=4, split_tail=True
    ),
    "split K, direct store": Kind(VARIANTS["split K, direct store"], split_k=4),
    "chain of two": Kind(VARIANTS["cooperative"], chained=True),
    "chain of two, split K": Kind(VARIANTS["split K"], split_k=3, chained=True),
}
TAKEN_OUT = {  # (file, what is there, what stands there instead)
    "nothing; a plain race is planted instead": (
        "epilogue.cuh",
        "    DEVICE void drain() {\n",
        "    DEVICE void drain() {\n"
        "        __shared__ volatile int planted[2];\n"
        "        planted[threadIdx.x % 2] = threadIdx.x;\n",
    ),
    "proxy fence before the TMA store": (
        "epilogue.cuh",
        "            ptx::fence_proxy_async();\n            sync();\n",
        "            sync();\n",
    ),
    "barrier between writing a piece and its TMA store": (
        "epilogue.cuh",
        "            ptx::fence_proxy_async();\n            sync();\n",
        "            ptx::fence_proxy_async();\n",
    ),
    "barrier between writing a piece and copying it": (
        "epilogue.cuh",
        "        } else {\n            sync();\n",
        "        } else {\n",
    ),
}


def damaged(what: str, variant: KernelVariant) -> TranslationUnit:
    """The source of `variant` without one fence or barrier."""
    file, sound, without = TAKEN_OUT[what]
    unit = render(variant)
    assert unit.headers[file].count(sound) == 1
    return TranslationUnit(
        unit.main, {**unit.headers, file: unit.headers[file].replace(sound, without)}
    )


def launch_once(path: str, kind: str) -> None:
    """What the sanitizer watches: one launch, or a chain of two. Exits 1 if the last is wrong."""
    import cupy
    from cuda.bindings import driver

    from tuner.device.cuda.driver import Functions, check
    from tuner.device.cuda.launch import Launch
    from tuner.device.cuda.operands import OperandSet, allocate, output, poison
    from tuner.device.cuda.tensor_map import Matrix
    from tuner.device.cuda.workspace import Workspace

    of_kind = KINDS[kind]
    cupy.cuda.Device(0).use()
    cupy.cuda.runtime.free(0)
    function = Functions().load(Cubin(of_kind.variant, path, 0, 0, 0.0, True))
    workspace = Workspace()

    def ones(problem: Problem) -> OperandSet:
        operands = allocate(problem)
        poison(operands)
        for array in operands.buffers[:2]:
            array.fill(bf16_bits(1.0))
        return operands

    sets = [ones(of_kind.problem)]
    problems = [of_kind.problem]
    expected = bf16_bits(of_kind.problem.shape.k)
    if of_kind.chained:
        following, shape = ones(of_kind.next_problem), of_kind.next_problem.shape
        a = Matrix(sets[0].d.address, shape.m, shape.k, shape.k)
        sets.append(OperandSet(a, following.b, following.d, following.buffers))
        problems.append(of_kind.next_problem)
        expected = bf16_bits(bf16_value(expected) * shape.k)
    cupy.cuda.get_current_stream().synchronize()
    for problem, operands in zip(problems, sets, strict=True):
        Launch(function, of_kind.config, problem, operands, workspace).enqueue(0)
    check(driver.cuCtxSynchronize())
    right = bool((output(sets[-1]) == expected).all())
    print(f"product: {'right' if right else 'wrong'}", flush=True)
    sys.exit(0 if right else 1)


def bf16_bits(value: float) -> int:
    """Rounded to nearest, ties to even, as the kernel stores it."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return int(bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def bf16_value(bits: int) -> float:
    (value,) = struct.unpack("<f", struct.pack("<I", bits << 16))
    return float(value)


def sanitize(tool: str, cubin: Path, kind: str) -> dict[str, object]:
    """Run one tool over one launch."""
    command = [
        "compute-sanitizer",
        f"--tool={tool}",
        "--kernel-name=kns=gemm_sm90",
        "--report-api-errors=no",
        *(["--racecheck-report=all"] if tool == "racecheck" else []),
        *(sys.executable, "-m", "benchmarks.sanitize", "--launch", str(cubin), "--kind", kind),
    ]
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {"tool": tool, "kind": kind, **told(f"no end within {DEADLINE_S} s"), "exit": None}
    return {"tool": tool, "kind": kind, **told(ran.stdout + ran.stderr), "exit": ran.returncode}


def told(text: str) -> dict[str, object]:
    """What one run printed.

    findings: errors and warnings, shown or not; None if the tool did not come to its summary.
    product: `right`, `wrong`, or `not checked` if the launch died before.
    """
    lines = text.splitlines()
    summary = [line for line in lines if "SUMMARY" in line]
    found = [int(n) for line in summary for n in re.findall(r"(\d+) (?:error|warning)", line)]
    product = re.search(r"^product: (right|wrong)$", text, flags=re.MULTILINE)
    return {
        "findings": sum(found) if found else None,
        "summary": summary,
        "reports": [line for line in lines if re.search(r"Error|Warning|Race", line)][:4],
        "product": product[1] if product else "not checked",
        "tail": lines[-6:] if not summary else [],
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--launch", help=argparse.SUPPRESS)
    arguments.add_argument("--kind", help=argparse.SUPPRESS)
    arguments.add_argument("--jobs", type=int, default=4, help="processes at a time")
    arguments.add_argument("--commit", help="the commit that is measured, where git cannot say")
    arguments.add_argument("--out", type=Path)
    chosen = arguments.parse_args()
    if chosen.launch:
        launch_once(chosen.launch, chosen.kind)
        return
    with TemporaryDirectory() as folder:
        with opened(Cuda(0), Path(folder)) as found:
            origin = evidence.origin(
                command_of("benchmarks.sanitize"),
                commit_measured(chosen.commit),
                found.device.identify(),
                found.compiler.toolchain(),
            )
        results = Results(chosen.out, origin)
        for what in TAKEN_OUT:
            kind = "direct store" if "copying" in what else "ping-pong"
            run_all(Path(folder) / what.replace(" ", "-"), [kind], what, chosen.jobs, results)
        run_all(Path(folder) / "sound", list(KINDS), None, chosen.jobs, results)
    sound = [row for row in results.rows if row["taken_out"] is None]
    unclean = [f"{row['kind']}, {row['tool']}" for row in sound if not clean(row)]
    results.finish({"sound": len(sound), "unclean": unclean})
    sys.exit(1 if unclean else 0)


def clean(row: dict[str, object]) -> bool:
    """Nothing was found, and the product was right."""
    return row["findings"] == 0 and row["product"] == "right" and row["exit"] == 0


def run_all(
    cache: Path, kinds: Sequence[str], taken_out: str | None, jobs: int, results: Results
) -> None:
    """Both tools over `kinds`, built soundly or without something; `jobs` at a time."""

    def source(variant: KernelVariant) -> TranslationUnit:
        return render(variant) if taken_out is None else damaged(taken_out, variant)

    with CompilePool(cache, render_source=source) as pool:
        built = pool.compile([KINDS[kind].variant for kind in kinds])

    def one(kind: str, tool: str) -> dict[str, object]:
        cubin = built[KINDS[kind].variant]
        assert isinstance(cubin, Cubin), cubin.detail
        return {"taken_out": taken_out, **sanitize(tool, Path(cubin.path), kind)}

    with ThreadPoolExecutor(jobs) as workers:
        for row in workers.map(one, *zip(*product(kinds, TOOLS), strict=True)):
            told = (row["kind"], row["tool"], row["summary"], row["product"])
            results.add(row, " | ".join(map(str, (taken_out or "sound", *told))))


if __name__ == "__main__":
    main()
