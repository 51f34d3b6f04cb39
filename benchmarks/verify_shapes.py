"""Prove many configs on many shapes: `python -m benchmarks.verify_shapes --out results.json`.

Every shape of the list with K % 8 == 0 that fits the limit is checked with at least `--configs`
configs of different kinds: bit for bit against the trusted config, which is held against fp64, and
against an exact product of small integers. Prints and stores counts; exits 1 on any failure.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random

from tuner.compiler.pool import CompilePool
from tuner.config import KernelConfig, KernelVariant
from tuner.device.attempts import Attempts
from tuner.device.cuda.exclusive import exclusive
from tuner.device.protocol import Entrant
from tuner.legality import faults
from tuner.search.launches import knob_menu
from tuner.search.space import menu, trusted_config
from tuner.settings import Settings
from tuner.shape import GemmShape, Problem
from tuner.shape_files import read_shape_files
from tuner.trial import Contender, Cubin, TrialState

SHAPES = Path(__file__).parent / "shapes" / "squares-and-odd.txt"
SOURCES = ((4096, 4096, 4096), (512, 512, 512), (64, 8192, 8192), (3000, 3000, 3000))
"""Shapes from whose menus the variants are drawn: large, small, skinny, unaligned tiles."""
DIRECT_SOURCES = ((1000, 777, 1032), (64, 1001, 4096))


def varied(sources: Sequence[tuple[int, int, int]], each: int, seed: int) -> list[KernelVariant]:
    """Variants drawn evenly from several menus, at most half of them of one schedule."""
    random = Random(seed)
    found: dict[KernelVariant, None] = {}
    for extents in sources:
        variants = [c.variant for c in menu(Problem(GemmShape(*extents), 132))]
        found.update(dict.fromkeys(random.sample(variants, each)))
    return list(found)


def configs_for(
    problem: Problem, variants: Sequence[KernelVariant], count: int, random: Random
) -> list[KernelConfig]:
    """`count` configs of different variants that are legal for `problem`, knobs drawn at random."""
    shuffled = random.sample(variants, len(variants))
    drawn = (KernelConfig(v, random.choice(knob_menu(problem, v))) for v in shuffled)
    return [config for config in drawn if not faults(config, problem)][:count]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--shapes", type=Path, default=SHAPES)
    arguments.add_argument("--configs", type=int, default=24)
    arguments.add_argument("--limit-gib", type=float, default=8.0)
    arguments.add_argument("--seed", type=int, default=7)
    arguments.add_argument("--device", type=int, default=0)
    arguments.add_argument("--out", type=Path)
    chosen = arguments.parse_args()
    settings = Settings.from_environment(os.environ)
    variants = varied(SOURCES, 14, chosen.seed) + varied(DIRECT_SOURCES, 20, chosen.seed)
    rows, skipped, started = [], [], time.monotonic()
    with (
        exclusive(chosen.device, partial(print, file=sys.stderr)) as device,
        CompilePool(settings.cache_dir) as pool,
    ):
        identity, toolchain = device.identify(), pool.toolchain()
        sms = identity.sms
        trusted = [trusted_config(Problem(GemmShape(8, n, 8), sms)).variant for n in (8, 1)]
        cubins = {
            v: c for v, c in pool.compile([*variants, *trusted]).items() if isinstance(c, Cubin)
        }
        usable = [v for v in variants if v in cubins]
        for shape in read_shape_files([chosen.shapes]).shapes:
            problem = Problem(shape, sms)
            if shape.unsupported_reason() or shape.operand_bytes > chosen.limit_gib * 2**30:
                skipped.append(str(shape))
                continue
            config = trusted_config(problem)
            entrant = Entrant(Contender("kernel", config), cubins[config.variant])
            attempts = Attempts(device, problem, entrant)
            failures = []
            tried = configs_for(problem, usable, chosen.configs, Random(f"{chosen.seed}{shape}"))
            prepared = attempts.prepare()
            for config in tried:
                result = device.verify(Entrant(Contender("kernel", config), cubins[config.variant]))
                if result.state is not TrialState.OK:
                    failures.append({"config": config.to_dict(), "detail": result.detail})
                    print(f"{shape}: {config}: {result.detail}", file=sys.stderr, flush=True)
            rows.append(
                {
                    "shape": [shape.m, shape.n, shape.k],
                    "configs": len(tried),
                    "variants": len({c.variant for c in tried}),
                    "failures": failures,
                    "reference_error": prepared.reference_error,
                }
            )
    failed = sum(bool(r["failures"]) for r in rows)
    fewest = min(int(str(r["configs"])) for r in rows)
    summary = {
        "command": " ".join(["python -m benchmarks.verify_shapes", *sys.argv[1:]]),
        "device": identity.name,
        "driver": identity.driver,
        "toolchain": asdict(toolchain),
        "shapes": len(rows),
        "skipped": skipped,
        "configs_verified": sum(int(str(r["configs"])) for r in rows),
        "fewest_configs_of_a_shape": fewest,
        "variants": len(usable),
        "shapes_with_failures": failed,
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(summary | {"skipped": len(skipped)}, indent=2))
    if chosen.out:
        chosen.out.write_text(json.dumps({**summary, "rows": rows}, indent=1) + "\n")
    sys.exit(1 if failed or fewest < chosen.configs else 0)


if __name__ == "__main__":
    main()
