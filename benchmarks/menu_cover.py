"""How few variants suffice: `python -m benchmarks.menu_cover --out menu-cover.json`.

From recorded races (every shipped recording, or each `--recording FILE`): the smallest set of
compiled variants such that every shape has one within 1 % (2 %, 5 %) of the best recorded of our
configs, launched with the best knobs recorded for it; judged by the hot race, and by the geometric
mean of the hot and the cool race. A variant counts for a shape only if it was recorded there, so a
recording of samples of the menu needs more than one of the whole menu would. `--compile` also
measures how long the set within 1 % takes to compile with an empty cache.
"""

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

from benchmarks.harness import Results, command_of, extents, parser
from benchmarks.set_cover import Cover, smallest_cover
from tuner.cli import evidence
from tuner.cli.provenance import commit_measured
from tuner.compiler.pool import CompilePool
from tuner.config import KernelConfig, KernelVariant
from tuner.device.replay import Recording, packaged_recordings
from tuner.shape import Problem
from tuner.trial import PROTOCOL_COOL, PROTOCOL_HOT, Cubin, TrialState

MODULE = "benchmarks.menu_cover"
MARGINS = (0.01, 0.02, 0.05)
JUDGED_BY = {"hot": (PROTOCOL_HOT,), "hot and cool": (PROTOCOL_HOT, PROTOCOL_COOL)}

Times = dict[Problem, dict[KernelVariant, float]]
"""The best µs of each variant on each shape, or its geometric mean over protocols."""


@dataclass(frozen=True, slots=True)
class Suffices:
    """Variants that suffice within a margin, and how far each shape's best of them is off."""

    variants: tuple[KernelVariant, ...]
    cover: Cover
    off: dict[Problem, tuple[float, KernelVariant]]


def times(recordings: Sequence[Recording], protocols: Sequence[str]) -> Times:
    """What was recorded under all of `protocols`; of two recordings of a shape the first counts."""
    found: Times = {}
    for recording in recordings:
        for problem in recording.problems():
            if best := _best_of_variants(recording, problem, protocols):
                found.setdefault(problem, best)
    return found


def _best_of_variants(
    recording: Recording, problem: Problem, protocols: Sequence[str]
) -> dict[KernelVariant, float]:
    medians: list[dict[KernelConfig, float]] = [
        {
            row.contender.config: row.median_us
            for row in recording.race(problem, protocol)
            if row.state is TrialState.OK and row.contender.config and row.median_us
        }
        for protocol in protocols
    ]
    best: dict[KernelVariant, float] = {}
    for config in sorted(set.intersection(*(set(of_one) for of_one in medians))):
        us = prod(of_one[config] for of_one in medians) ** (1 / len(medians))
        best[config.variant] = min(us, best.get(config.variant, us))
    return best


def suffices(measured: Times, margin: float, seconds: float) -> Suffices:
    """The smallest set of variants that has one within `margin` of the best on every shape."""
    problems = sorted(measured)
    variants = sorted({v for of_shape in measured.values() for v in of_shape})
    least = {problem: min(measured[problem].values()) for problem in problems}
    sets = [
        sum(
            1 << bit
            for bit, problem in enumerate(problems)
            if measured[problem].get(variant, float("inf")) <= least[problem] * (1 + margin)
        )
        for variant in variants
    ]
    cover = smallest_cover(sets, seconds)
    chosen = tuple(variants[i] for i in cover.chosen)
    off = {
        problem: min(
            (measured[problem][v] / least[problem] - 1, v) for v in chosen if v in measured[problem]
        )
        for problem in problems
    }
    return Suffices(chosen, cover, off)


def described(judged_by: str, margin: float, measured: Times, found: Suffices) -> dict[str, Any]:
    """One row of the evidence."""
    served: dict[KernelVariant, list[str]] = {v: [] for v in found.variants}
    for problem, (_, variant) in found.off.items():
        served[variant].append(str(problem.shape))
    return {
        "judged_by": judged_by,
        "margin": margin,
        "shapes": len(measured),
        "recorded_variants": len({v for of_shape in measured.values() for v in of_shape}),
        "variants": len(found.variants),
        "at_least": found.cover.at_least,
        "proved": found.cover.proved,
        "greedy": found.cover.greedy,
        "chosen": [{**asdict(v), "best_for": served[v]} for v in found.variants],
        "off": [
            {**extents(problem.shape), "off": round(off, 5)}
            for problem, (off, _) in found.off.items()
        ],
    }


def table_line(row: dict[str, Any]) -> str:
    """How many suffice, and whether fewer might."""
    least = "proved" if row["proved"] else f"at least {row['at_least']}"
    worst = max(shape["off"] for shape in row["off"])
    return (
        f"{row['judged_by']}, within {row['margin']:.0%}: {row['variants']} of "
        f"{row['recorded_variants']} variants for {row['shapes']} shapes ({least}; greedy "
        f"{row['greedy']}; worst shape {worst:.2%} off)"
    )


def cold_compile(variants: Sequence[KernelVariant]) -> dict[str, Any]:
    """Seconds to compile `variants` with an empty cache, on every core of this machine."""
    with tempfile.TemporaryDirectory() as folder, CompilePool(Path(folder)) as pool:
        started = time.monotonic()
        built = pool.compile(variants)
        seconds = time.monotonic() - started
    return {
        "compiled": sum(isinstance(outcome, Cubin) for outcome in built.values()),
        "cold_compile_seconds": round(seconds, 1),
        "cores": os.cpu_count(),
    }


def main() -> None:
    arguments = parser(__doc__, MODULE)
    arguments.add_argument("--recording", type=Path, nargs="+", default=[])
    arguments.add_argument("--seconds", type=float, default=30.0, help="for each exact search")
    arguments.add_argument("--compile", action="store_true", help="time a cold compile of the set")
    chosen = arguments.parse_args()
    named: Sequence[Path | str] = chosen.recording or packaged_recordings()
    recordings = [Recording.load(source) for source in named]
    first = recordings[0]
    head = evidence.origin(
        command_of(MODULE), commit_measured(chosen.commit), first.device, first.toolchain
    )
    head["recordings"] = [
        {
            "name": Path(recording.name).name,
            "device": recording.device.key,
            "kernel_hash": recording.toolchain.kernel_hash,
            "shapes": len(recording.problems()),
        }
        for recording in recordings
    ]
    results = Results(chosen.out, head)
    menus: dict[tuple[str, float], Suffices] = {}
    for judged_by, protocols in JUDGED_BY.items():
        measured = times(recordings, protocols)
        for margin in MARGINS if measured else ():
            found = menus[judged_by, margin] = suffices(measured, margin, chosen.seconds)
            row = described(judged_by, margin, measured, found)
            results.add(row, table_line(row))
    if not menus:
        raise SystemExit("the recordings hold no races; record some with benchmarks/record.py.")
    menu = next(reversed([found for (_, margin), found in menus.items() if margin == MARGINS[0]]))
    results.finish(cold_compile(menu.variants) if chosen.compile else {})


if __name__ == "__main__":
    main()
