"""Prove many configs on many shapes: `python -m benchmarks.verify_shapes --out results.json`.

Every shape of the list with K % 8 == 0 that fits the limit is checked with at least `--configs`
configs of different kinds: bit for bit against the trusted config or, where K is split, against
their own run before, which is held against fp64 as the trusted one is; and against an exact product
of small integers. Some are launched dependently, and must give the same bits in a chain. Variants
that split K are drawn from menus of deep shapes, and tried where a shape leaves room for a split.
Prints and stores counts; exits 1 on any failure.
"""

import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.harness import SHAPES, Bench, gpu, gpu_parser
from benchmarks.launches import drawn_launch
from tuner.config import KernelConfig, KernelVariant
from tuner.device.attempts import Attempts
from tuner.device.protocol import Entrant
from tuner.errors import DeviceCrashed, DeviceTimeout
from tuner.legality import faults
from tuner.lookup.launches import sms_choices, split_choices
from tuner.search.space import menu, trusted_config
from tuner.shape import GemmShape, Problem
from tuner.shape_files import read_shape_files
from tuner.trial import Contender, Cubin

MODULE = "benchmarks.verify_shapes"
SOURCES = ((4096, 4096, 4096), (512, 512, 512), (64, 8192, 8192), (3000, 3000, 3000))
"""Shapes from whose menus the variants are drawn: large, small, skinny, unaligned tiles."""
DIRECT_SOURCES = ((1000, 777, 1032), (64, 1001, 4096))
SPLIT_SOURCES = (
    *((256, 256, 16384), (512, 512, 32768), (16, 4096, 14336), (64, 2112, 7168)),
    *((5120, 5120, 5120), (65, 1001, 7168)),
)
"""Shapes from whose menus variants that split K are drawn: deep ones, one for a split of the last
wave alone, one for direct stores."""
DEPENDENT_SHARE = 1 / 8
"""Of the configs, how many are launched dependently; their chains take longer to prove."""
SPLIT_SHARE = 1 / 4
"""Of the configs of a shape, how many split K, if so many are legal."""


def varied(
    sources: Sequence[tuple[int, int, int]], each: int, seed: int, *, splitting: bool = False
) -> list[KernelVariant]:
    """Up to `each` variants drawn evenly from the menu of each source, which split K or do not."""
    random = Random(seed)
    found: dict[KernelVariant, None] = {}
    for extents in sources:
        listed = (c.variant for c in menu(Problem(GemmShape(*extents), 132)))
        variants = [v for v in listed if (v.reduction != "none") == splitting]
        found.update(dict.fromkeys(random.sample(variants, min(each, len(variants)))))
    return list(found)


def configs_for(
    problem: Problem, variants: Sequence[KernelVariant], count: int, random: Random
) -> list[KernelConfig]:
    """`count` configs of different variants that are legal for `problem`, knobs drawn at random.

    SPLIT_SHARE of them split K where that many can, about DEPENDENT_SHARE launch dependently.
    """
    shuffled = random.sample(variants, len(variants))

    def drawn(splitting: bool, count: int) -> list[KernelConfig]:
        fitting = (v for v in shuffled if (v.reduction != "none") == splitting)
        configs = (drawn_config(problem, v, random) for v in fitting)
        return list(islice(filter(None, configs), count))

    split = drawn(True, round(count * SPLIT_SHARE))
    return [*split, *drawn(False, count - len(split))]


def drawn_config(problem: Problem, variant: KernelVariant, random: Random) -> KernelConfig | None:
    """A launch of `variant` that the search may try, or None if that cannot run `problem`."""
    splits = split_choices(problem, variant)
    if not splits:
        return None
    knobs = drawn_launch(
        random,
        random.choice(sms_choices(problem, variant)),
        random.choice(splits),
        dependent=random.random() < DEPENDENT_SHARE,
    )
    config = KernelConfig(variant, knobs)
    return None if faults(config, problem) else config


def verified(
    bench: Bench, problem: Problem, entrants: Sequence[Entrant], trusted: Entrant
) -> tuple[list[dict[str, Any]], float]:
    """What each failing entrant did, and the error of the trusted config beside what is allowed.

    One that breaks the device, or hangs it, is a failure like any other.
    """
    failures: list[dict[str, Any]] = []
    attempts = Attempts(bench.device, problem, trusted)
    error = attempts.prepare().reference_error
    for entrant in entrants:
        config = entrant.contender.config
        assert config is not None
        try:
            detail = bench.device.verify(entrant).detail
        except (DeviceTimeout, DeviceCrashed) as broken:
            detail = str(broken)
            attempts = Attempts(bench.device, problem, trusted)
            attempts.prepare()
        if detail:
            failures.append({"config": config.to_dict(), "detail": detail})
            print(f"{problem.shape}: {config}: {detail}", file=sys.stderr, flush=True)
    return failures, error


def main() -> None:
    arguments = gpu_parser(__doc__, MODULE)
    arguments.add_argument("--shapes", type=Path, default=SHAPES / "squares-and-odd.txt")
    arguments.add_argument("--configs", type=int, default=24)
    arguments.add_argument("--limit-gib", type=float, default=8.0)
    arguments.add_argument("--seed", type=int, default=7)
    chosen = arguments.parse_args()
    variants = [
        *varied(SOURCES, 14, chosen.seed),
        *varied(DIRECT_SOURCES, 20, chosen.seed),
        *varied(SPLIT_SOURCES, 8, chosen.seed, splitting=True),
    ]
    skipped: list[str] = []
    with gpu(chosen, MODULE) as bench:
        sms = bench.sms
        trusted = [trusted_config(Problem(GemmShape(8, n, 8), sms)).variant for n in (8, 1)]
        built = bench.pool.compile([*variants, *trusted])
        cubins = {v: c for v, c in built.items() if isinstance(c, Cubin)}
        usable = [v for v in variants if v in cubins]
        for shape in read_shape_files([chosen.shapes]).shapes:
            problem = Problem(shape, sms)
            if shape.unsupported_reason() or shape.operand_bytes > chosen.limit_gib * 2**30:
                skipped.append(str(shape))
                continue
            standard, *entrants = (
                Entrant(Contender("kernel", config), cubins[config.variant])
                for config in (
                    trusted_config(problem),
                    *configs_for(problem, usable, chosen.configs, Random(f"{chosen.seed}{shape}")),
                )
            )
            failures, error = verified(bench, problem, entrants, standard)
            row = described(shape, [e.contender.config for e in entrants], failures, error)
            kinds = f"{row['splitting']} splitting K, {row['dependent']} dependent"
            told = f"{shape}: {row['configs']} configs, {kinds}, {len(failures)} failures"
            bench.results.add(row, told)
        rows = bench.results.rows
        failed = sum(bool(row["failures"]) for row in rows)
        fewest = min(row["configs"] for row in rows)
        bench.results.finish(
            {
                "shapes": len(rows),
                "configs_verified": sum(row["configs"] for row in rows),
                "splitting": sum(row["splitting"] for row in rows),
                "dependent": sum(row["dependent"] for row in rows),
                "fewest_configs_of_a_shape": fewest,
                "variants": len(usable),
                "shapes_with_failures": failed,
                "skipped": skipped,
            }
        )
    sys.exit(1 if failed or fewest < chosen.configs else 0)


def described(
    shape: GemmShape,
    configs: Sequence[KernelConfig | None],
    failures: list[dict[str, Any]],
    error: float,
) -> dict[str, Any]:
    """One row of the evidence."""
    tried = [config for config in configs if config]
    return {
        "shape": [shape.m, shape.n, shape.k],
        "configs": len(tried),
        "variants": len({config.variant for config in tried}),
        "splitting": sum(config.knobs.split_k > 1 for config in tried),
        "dependent": sum(config.knobs.dependent_launch for config in tried),
        "failures": failures,
        "reference_error": error,
    }


if __name__ == "__main__":
    main()
