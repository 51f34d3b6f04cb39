"""How near the card's limits each shape runs, in two steps:

    python -m benchmarks.roofline --measure --out roofline-peaks.json
    python -m benchmarks.roofline --evidence mixed34-hot.json --peaks roofline-peaks.json \\
        --out roofline.json

`--measure` finds, on a GPU, what this card sustains: the best of some large products by cuBLAS,
hot, and the best of a large copy and a large read. The second step needs no GPU: a shape's roof is
the longer of its multiplications at that rate and its operands and output moved once at that rate.
A share above 1 says that the shape, or the card in that minute, was faster than those peaks.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, Results, command_of, extents, gpu, gpu_parser
from benchmarks.roofline_on_device import MeasureCopies, MeasureProduct
from tuner.shape import GemmShape, Problem

MODULE = "benchmarks.roofline"
PRODUCTS = (
    GemmShape(4096, 4096, 4096),
    GemmShape(8192, 8192, 8192),
    GemmShape(16384, 16384, 8192),
    GemmShape(2048, 4096, 14336),
    GemmShape(4096, 2112, 7168),
)
"""Large ones, and those at which cuBLAS was seen to reach most: power limits the largest."""
DEADLINE_S = 120.0
WORST = 10


@dataclass(frozen=True, slots=True)
class Peaks:
    """What one card sustains: TFLOP/s of a product, TB/s of a stream."""

    tflops: float
    tbps: float


@dataclass(frozen=True, slots=True)
class Share:
    """One shape beside the roof. roof_us: the least time that the peaks allow."""

    shape: GemmShape
    us: float
    tflops: float
    tbps: float
    tflops_share: float
    tbps_share: float
    roof_us: float
    limit: str

    @property
    def roof_share(self) -> float:
        return self.roof_us / self.us

    def to_json(self) -> dict[str, Any]:
        return {
            **extents(self.shape),
            "us": self.us,
            "tflops": round(self.tflops, 2),
            "tbps": round(self.tbps, 4),
            "tflops_share": round(self.tflops_share, 4),
            "tbps_share": round(self.tbps_share, 4),
            "limit": self.limit,
            "roof_us": round(self.roof_us, 4),
            "roof_share": round(self.roof_share, 4),
        }


def share_of(shape: GemmShape, us: float, peaks: Peaks) -> Share:
    """Operands and output are moved once: what caches could not spare."""
    tflops, tbps = shape.flops / us / 1e6, shape.operand_bytes / us / 1e6
    tflops_share, tbps_share = tflops / peaks.tflops, tbps / peaks.tbps
    limit = "compute" if tflops_share >= tbps_share else "memory"
    roof_us = us * max(tflops_share, tbps_share)
    return Share(shape, us, tflops, tbps, tflops_share, tbps_share, roof_us, limit)


def read_peaks(body: Mapping[str, Any]) -> Peaks:
    """The best of what `--measure` kept."""
    best = {kind: max(r["rate"] for r in body["rows"] if r["kind"] == kind) for kind in KINDS}
    return Peaks(best["product"], max(best["copy"], best["read"]))


KINDS = ("product", "copy", "read")


def shares(evidence: Mapping[str, Any], peaks: Peaks) -> list[Share]:
    """Every raced shape of a file of evidence, the furthest from its roof first."""
    found = [
        share_of(GemmShape(row["m"], row["n"], row["k"]), row["tuned_us"], peaks)
        for row in evidence["rows"]
    ]
    return sorted(found, key=lambda share: (share.roof_share, share.shape))


def table_line(share: Share) -> str:
    return (
        f"{share.shape!s:>20} {share.us:9.2f} us {share.tflops:7.1f} TFLOP/s "
        f"{share.tbps:6.3f} TB/s {share.roof_share:6.1%} of {share.limit}"
    )


def measure(chosen: argparse.Namespace) -> None:
    with gpu(chosen, MODULE) as bench:
        rows: list[dict[str, Any]] = []
        for shape in PRODUCTS:
            rate = bench.device.ask(MeasureProduct(Problem(shape, bench.sms)), DEADLINE_S)
            rows.append({"kind": "product", **extents(shape), "unit": "TFLOP/s", **rate})
            bench.results.add(rows[-1], f"cuBLAS {shape}: {rate['rate']:.1f} TFLOP/s")
        for kind, rate in bench.device.ask(MeasureCopies(bench.sms), DEADLINE_S).items():
            rows.append({"kind": kind, "unit": "TB/s", **rate})
            bench.results.add(rows[-1], f"{kind}: {rate['rate']:.3f} TB/s")
        peaks = read_peaks({"rows": rows})
        bench.results.finish({"tflops": peaks.tflops, "tbps": peaks.tbps})


def report(chosen: argparse.Namespace) -> None:
    evidence, measured = (
        json.loads(path.read_text(encoding="utf-8")) for path in (chosen.evidence, chosen.peaks)
    )
    peaks = read_peaks(measured)
    found = shares(evidence, peaks)
    kept = ("commit", "commit_from", "device", "driver", "toolchain", "protocol")
    head = {
        "command": command_of(MODULE),
        **{name: evidence[name] for name in kept if name in evidence},
        "peaks": {"tflops": peaks.tflops, "tbps": peaks.tbps, "device": measured["device"]},
    }
    results = Results(chosen.out, head)
    for share in found:
        results.add(share.to_json(), table_line(share))
    results.finish({"worst": worst(found)})


def worst(found: Sequence[Share]) -> list[str]:
    """The shapes furthest from their roof, the furthest first."""
    return [str(share.shape) for share in found[:WORST]]


def main() -> None:
    arguments = gpu_parser(__doc__, MODULE)
    arguments.add_argument("--measure", action="store_true", help="find the peaks, on a GPU")
    arguments.add_argument("--evidence", type=Path, default=RESULTS / "mixed34-hot.json")
    arguments.add_argument("--peaks", type=Path, default=RESULTS / "roofline-peaks.json")
    chosen = arguments.parse_args()
    if chosen.measure:
        measure(chosen)
    else:
        report(chosen)


if __name__ == "__main__":
    main()
