"""compute-sanitizer on the kernel: `python -m benchmarks.sanitize --out results.json`.

Runs memcheck and racecheck over configs of different kinds on a small shape, each in a process of
its own, and first over builds with a planted race, and with a fence or a barrier taken out, to see
what the tool would notice. (`product` says whether the output of such a build was still right, or
that the launch ended before that was looked at.)
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tuner.cli import evidence
from tuner.cli.devices import Cuda
from tuner.cli.opening import opened
from tuner.cli.provenance import commit_measured
from tuner.compiler.pool import CompilePool
from tuner.compiler.source import TranslationUnit, render
from tuner.config import KernelConfig, KernelVariant, LaunchKnobs
from tuner.shape import GemmShape, Problem
from tuner.trial import Cubin

SHAPE = GemmShape(392, 520, 328)
KINDS = {
    "cooperative": KernelVariant(128, 128, 4),
    "cooperative 128x256, cluster 2x1": KernelVariant(128, 256, 4, cluster_m=2),
    "ping-pong": KernelVariant(128, 128, 6, schedule="pingpong"),
    "ping-pong, exchanged, cluster 1x2": KernelVariant(
        128, 192, 4, schedule="pingpong", transposed_store=True, cluster_n=2
    ),
    "one consumer, four slabs": KernelVariant(64, 32, 4, 4, 1, "m", "cooperative", 0, 0),
    "three consumers": KernelVariant(192, 176, 4, 1, 3, "m", "cooperative", 32, 160),
    "split along n": KernelVariant(192, 192, 4, split="n"),
    "direct store": KernelVariant(128, 160, 4, store="direct"),
    "cluster 2x2": KernelVariant(128, 128, 5, cluster_m=2, cluster_n=2),
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
    """What the sanitizer watches: one launch, and nothing else of ours. Exits 1 if it is wrong."""
    import cupy
    from cuda.bindings import driver

    from tuner.device.cuda.driver import Functions, check
    from tuner.device.cuda.launch import Launch
    from tuner.device.cuda.operands import allocate, output, poison
    from tuner.device.cuda.workspace import Workspace

    variant = KINDS[kind]
    cupy.cuda.Device(0).use()
    cupy.cuda.runtime.free(0)
    problem = Problem(SHAPE, 8)
    operands = allocate(problem)
    poison(operands)
    for array in operands.buffers[:2]:
        array.fill(0x3F80)  # bf16 1.0
    cupy.cuda.get_current_stream().synchronize()
    cubin = Cubin(variant, path, 0, 0, 0.0, True)
    config = KernelConfig(
        variant, LaunchKnobs(num_sms=8 // variant.cluster_size * variant.cluster_size)
    )
    Launch(Functions().load(cubin), config, problem, operands, Workspace()).enqueue(0)
    check(driver.cuCtxSynchronize())
    # K ones times ones: 328 is exact in bf16.
    right = bool((output(operands) == 0x43A4).all())
    print(f"product: {'right' if right else 'wrong'}", flush=True)
    sys.exit(0 if right else 1)


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
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
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
    arguments.add_argument("--commit", help="the commit that is measured, where git cannot say")
    arguments.add_argument("--out", type=Path)
    chosen = arguments.parse_args()
    if chosen.launch:
        launch_once(chosen.launch, chosen.kind)
        return
    rows: list[dict[str, object]] = []
    with TemporaryDirectory() as folder:
        command = " ".join(["python -m benchmarks.sanitize", *sys.argv[1:]])
        with opened(Cuda(0), Path(folder)) as found:
            origin = evidence.origin(
                command,
                commit_measured(chosen.commit),
                found.device.identify(),
                found.compiler.toolchain(),
            )
        for what in TAKEN_OUT:
            kind = "direct store" if "copying" in what else "ping-pong"
            rows += run_all(Path(folder) / what.replace(" ", "-"), [kind], what)
        rows += run_all(Path(folder) / "sound", list(KINDS), None)
    for row in rows:
        print(
            *(
                row["taken_out"] or "sound",
                row["kind"],
                row["tool"],
                row["summary"],
                row["product"],
            ),
            sep=" | ",
        )
    if chosen.out:
        chosen.out.write_text(json.dumps({**origin, "rows": rows}, indent=1) + "\n")
    sound = [row for row in rows if row["taken_out"] is None]
    sys.exit(0 if all(map(clean, sound)) else 1)


def clean(row: dict[str, object]) -> bool:
    """Nothing was found, and the product was right."""
    return row["findings"] == 0 and row["product"] == "right" and row["exit"] == 0


def run_all(cache: Path, kinds: list[str], taken_out: str | None) -> list[dict[str, object]]:
    """Both tools over `kinds`, built soundly or without something."""

    def source(variant: KernelVariant) -> TranslationUnit:
        return render(variant) if taken_out is None else damaged(taken_out, variant)

    with CompilePool(cache, render_source=source) as pool:
        built = pool.compile([KINDS[kind] for kind in kinds])
    rows = []
    for kind in kinds:
        cubin = built[KINDS[kind]]
        assert isinstance(cubin, Cubin), cubin.detail
        for tool in ("memcheck", "racecheck"):
            rows.append({"taken_out": taken_out, **sanitize(tool, Path(cubin.path), kind)})
    return rows


if __name__ == "__main__":
    main()
