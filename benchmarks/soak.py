"""Ten thousand launches on every path: `python -m benchmarks.soak --out soak.json`.

A path is one way through the kernel: a schedule, a cluster, a split of K, dependent launch. On
each, launches of some forty small and middling shapes with tails follow one another in an order
shuffled anew, each shape launched in several ways; every output, and what lies around it, is
compared on the device, bit for bit, with what the trusted config gives or, where K is split, with
what the same config gave alone, which is held against fp64. Launched dependently, every second
product reads what the one before wrote. A path that gives no answer by its deadline hangs.
`--launches` makes it shorter, `--paths` picks some.
"""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, log
from random import Random
from typing import Any, Literal

from benchmarks.harness import Bench, extents, gpu, gpu_parser
from benchmarks.kinds import KINDS
from benchmarks.launches import drawn_launch
from benchmarks.soak_on_device import TURNS, Link, Soak, Soaked
from tuner.config import KernelConfig, KernelVariant
from tuner.errors import DeviceError, DeviceTimeout, DeviceUnavailable, InvalidConfig, TunerError
from tuner.legality import faults
from tuner.lookup.launches import resident_sms
from tuner.search.space import trusted_config
from tuner.shape import GemmShape, Problem
from tuner.tiling import k_steps, tile_grid

MODULE = "benchmarks.soak"
SEED = 5
LAUNCHES = 10_000
SHAPES = 40
CORNERS = ((1, 8, 64), (1, 1600, 1024), (1600, 8, 1024), (64, 64, 2048), (1536, 1536, 1536))
MIDDLING = 256
SLOWEST_US = 150.0
FLOP_PER_SM_US = 3e6
"""What a poor launch was seen to reach: so few multiprocessors that one takes longer are not
asked for."""
MOST_SHARES = 16
TRIES = 20
START_S, LAUNCH_S = 40.0, 0.001


Splits = Literal["none", "all", "tail"]


@dataclass(frozen=True, slots=True)
class Path:
    """kinds: variants that the shapes take in turn. split: how all of them split K."""

    name: str
    kinds: tuple[str, ...]
    split: Splits = "none"
    dependent: bool = False

    @property
    def stores_directly(self) -> bool:
        return all(KINDS[kind].store == "direct" for kind in self.kinds)


SPLITTING = (
    *("split K", "split K, exchanged"),
    *("split K, one consumer, cluster 2x1", "split K, cluster 1x4"),
)
SPLITTING_IN_TURN = ("split K, ping-pong, cluster 1x2", "split K, ping-pong, exchanged")
PATHS = (
    Path("cooperative", ("cooperative", "cooperative 128x256", "split along n")),
    Path("ping-pong", ("ping-pong", "ping-pong 64x192")),
    Path("one consumer", ("one consumer", "one consumer, four slabs")),
    Path("three consumers", ("three consumers",)),
    Path("cluster 2x1", ("cooperative 128x256, cluster 2x1", "ping-pong, cluster 2x1")),
    Path("cluster 2x2", ("cluster 2x2",)),
    Path("cluster 4x2", ("cluster 4x2",)),
    Path(
        "uneven slices",
        ("uneven, cluster 8x1", "uneven, cluster 3x1", "uneven, cluster 1x7, exchanged"),
    ),
    Path("split K, all", SPLITTING, split="all"),
    Path("split K, tail", SPLITTING, split="tail"),
    Path("split K, ping-pong", SPLITTING_IN_TURN, split="all"),
    Path("split K, ping-pong, tail", SPLITTING_IN_TURN, split="tail"),
    Path("direct store", ("direct store", "direct store, ping-pong, cluster 2x1")),
    Path("split K, direct store", ("split K, direct store",), split="all"),
    Path("exchanged", ("three consumers, exchanged", "ping-pong, exchanged")),
    Path(
        "dependent launch",
        ("cooperative", "ping-pong", "one consumer, four slabs", "cluster 2x2"),
        dependent=True,
    ),
    Path(
        "dependent launch, split K",
        ("split K", "split K, ping-pong, exchanged", "split K, one consumer, cluster 2x1"),
        split="all",
        dependent=True,
    ),
)
AFTERWARDS = ("cooperative", "ping-pong", "one consumer")
"""What reads, in a dependent path, what the launch before wrote; its own bits are the trusted."""


def drawn_shape(random: Random, step_n: int, least_k: int) -> GemmShape:
    """Extents spread evenly over their logarithms, N a multiple of `step_n`, K one of 8.

    Half of the shapes are middling: no side of the output is short.
    """

    def extent(least: int, most: int, step: int) -> int:
        return max(round(exp(random.uniform(log(least), log(most))) / step), 1) * step

    least = random.choice((1, MIDDLING))
    return GemmShape(extent(least, 1600, 1), extent(least, 1600, step_n), extent(least_k, 2048, 8))


def pool(path: Path, seed: int = SEED) -> list[GemmShape]:
    """The shapes of a path, all different; outputs that TMA cannot store only where it need not."""
    random = Random(seed)
    least_k = 8 if path.split == "none" else 256
    found = dict.fromkeys(GemmShape(*corner) for corner in CORNERS)
    while len(found) < SHAPES:
        found[drawn_shape(random, 1 if path.stores_directly else 8, least_k)] = None
    return list(found)


def drawn_config(
    problem: Problem,
    variant: KernelVariant,
    split: Splits,
    random: Random,
    *,
    dependent: bool = False,
) -> KernelConfig | None:
    """A legal launch drawn at random that is not slow; None if none was drawn."""
    size = variant.cluster_size
    most = resident_sms(problem.sms, size) // size
    needed = problem.shape.flops / (FLOP_PER_SM_US * SLOWEST_US)
    tiles_m, tiles_n = tile_grid(problem, variant)
    positions = tiles_m * tiles_n // size
    fitting = [
        clusters
        for clusters in range(1 if split == "none" else 2, most + 1)
        if (split != "tail" or (clusters < positions and positions % clusters))
        and (clusters == most or clusters * size >= needed)
    ]
    for _ in range(TRIES if fitting else 0):
        clusters = random.choice((fitting[-1], *random.choices(fitting, k=2)))
        shares = min(clusters, k_steps(problem.shape.k, variant), MOST_SHARES)
        knobs = drawn_launch(
            random,
            clusters * size,
            (1 if split == "none" else random.randint(2, max(shares, 2)), split == "tail"),
            dependent=dependent,
        )
        config = KernelConfig(variant, knobs)
        if not faults(config, problem):
            return config
    return None


def links(
    problem: Problem, path: Path, kinds: Sequence[str], random: Random, split: Splits
) -> Iterator[Link]:
    """One product in `TURNS` launches, by the first of `kinds` that can do it; else none."""
    for kind in kinds:
        drawn = [
            drawn_config(problem, KINDS[kind], split, random, dependent=path.dependent)
            for _ in range(TURNS)
        ]
        configs = tuple(config for config in drawn if config)
        if len(configs) == TURNS:
            yield Link(problem, configs, reads_previous=False)
            return


def groups(path: Path, sms: int, seed: int = SEED) -> list[tuple[Link, ...]]:
    """What is launched: products alone or, dependently, one and another that reads its output."""
    random = Random(f"{seed} {path.name}")
    found: list[tuple[Link, ...]] = []
    for place, shape in enumerate(pool(path, seed)):
        turned = [path.kinds[(place + i) % len(path.kinds)] for i in range(len(path.kinds))]
        first = next(links(Problem(shape, sms), path, turned, random, path.split), None)
        if first is None:
            continue
        group: tuple[Link, ...] = (first,)
        if path.dependent and shape.n % 8 == 0:
            after = GemmShape(shape.m, drawn_shape(random, 8, 8).n, shape.n)
            reader = next(links(Problem(after, sms), path, AFTERWARDS, random, "none"), None)
            group += (Link(reader.problem, reader.configs, reads_previous=True),) if reader else ()
        found.append(group)
    return found


def described(path: Path, work: Sequence[tuple[Link, ...]], soaked: Soaked) -> dict[str, Any]:
    """One row of the evidence."""
    flat = [link for group in work for link in group]
    return {
        "path": path.name,
        "state": "wrong" if soaked.wrong_launches else "right",
        "detail": "",
        "kinds": list(path.kinds),
        "shapes": len(flat),
        "configs": len({config for link in flat for config in link.configs}),
        "launches": soaked.launches,
        "wrong_launches": soaked.wrong_launches,
        "wrong_elements": soaked.wrong_elements,
        "device_seconds": round(soaked.seconds, 2),
        "examples": [
            {
                **extents(flat[slot].problem.shape),
                "config": flat[slot].configs[turn].to_dict(),
                "batch": batch,
                "elements": elements,
            }
            for slot, turn, batch, elements in soaked.examples
        ],
    }


def failed(path: Path, launches: int, error: TunerError) -> dict[str, Any]:
    """The row of a path that did not come to its end."""
    return {
        "path": path.name,
        "state": "hangs" if isinstance(error, DeviceTimeout) else "failed",
        "detail": str(error),
        "kinds": list(path.kinds),
        "launches": launches,
        "wrong_launches": None,
    }


def soak(bench: Bench, path: Path, launches: int) -> dict[str, Any]:
    """Run one path; whatever its kernels do becomes its row."""
    work = groups(path, bench.sms)
    flat = [link for group in work for link in group]
    configs = [config for link in flat for config in (*link.configs, trusted_config(link.problem))]
    one_of_each = {config.variant: config for config in configs}
    try:
        cubins = {v: bench.entrant(config).cubin for v, config in one_of_each.items()}
        built = {v: cubin for v, cubin in cubins.items() if cubin}
        asked = Soak(tuple(work), built, launches, SEED)
        soaked = bench.device.ask(asked, START_S + launches * LAUNCH_S)
    except DeviceUnavailable:
        raise
    except (DeviceError, InvalidConfig) as error:
        return failed(path, launches, error)
    return described(path, work, soaked)


def main() -> None:
    arguments = gpu_parser(__doc__, MODULE)
    arguments.add_argument("--launches", type=int, default=LAUNCHES, help="on each path")
    arguments.add_argument("--paths", nargs="+", choices=[p.name for p in PATHS], metavar="NAME")
    chosen = arguments.parse_args()
    paths = [path for path in PATHS if not chosen.paths or path.name in chosen.paths]
    with gpu(chosen, MODULE) as bench:
        bench.pool.compile(KINDS.values())  # all at once, on every core
        for path in paths:
            started = time.monotonic()
            row = soak(bench, path, chosen.launches)
            row["seconds"] = round(time.monotonic() - started, 1)
            told = f"{path.name}: {row['launches']} launches, {row['wrong_launches']} wrong"
            bench.results.add(row, f"{told}, {row['state']} {row['detail']}")
        rows = bench.results.rows
        bench.results.finish(
            {
                "paths": len(rows),
                "launches": sum(row["launches"] for row in rows if row["state"] == "right"),
                "not_right": [row["path"] for row in rows if row["state"] != "right"],
            }
        )
    if any(row["state"] != "right" for row in rows):
        raise SystemExit(os.EX_SOFTWARE)


if __name__ == "__main__":
    main()
