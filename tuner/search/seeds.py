"""A first guess of how long a config takes, and where a search should begin.

The model counts, per tile, the cycles of whatever limits it (tensor cores, their reads of shared
memory, L2, or the latency that the ring must hide), adds barriers and the epilogue, and multiplies
by the tiles that the busiest multiprocessor runs. Its constants are round figures of an H200 under
load; it only ranks, and the search corrects it as measurements arrive.
"""

from collections.abc import Iterable, Sequence
from itertools import islice, zip_longest
from math import log

from tuner.config import SLAB_K, KernelConfig, Schedule
from tuner.legality import k_steps
from tuner.search.space import article_config, tile_grid
from tuner.shape import ELEMENT_BYTES, Problem
from tuner.trial import PROTOCOL_HOT, Measurement, TrialState

CLOCK_MHZ = 1600.0
"""SM clock at the power limit."""
SMEM_BYTES_PER_CYCLE = 128
"""Shared memory of one SM."""
L2_BYTES_PER_CYCLE = 60.0
"""What L2 gives one SM when all ask; multicast data counts once per cluster."""
DRAM_BYTES_PER_US = 4.3e6
DRAM_BYTES_PER_CYCLE_PER_SM = 40.0
"""The most one SM draws from memory: few thread blocks cannot use all of it."""
LOAD_LATENCY_CYCLES = 1100.0
BARRIER_CYCLES = 45.0
STORE_BYTES_PER_CYCLE = 40.0
EPILOGUE_CYCLES = 700.0
LAUNCH_US = 2.0
CLUSTER_CYCLES = 60.0
"""Cost per stage of waiting for the slowest thread block of a cluster."""

Tile = tuple[int, int, Schedule]
PROVEN_TILES: tuple[Tile, ...] = (
    (128, 128, "pingpong"),
    (128, 192, "pingpong"),
    (192, 176, "cooperative"),
    (128, 256, "cooperative"),
    (64, 128, "pingpong"),
    (128, 144, "pingpong"),
)
"""Tiles that won under load although a model of cycles alone ranks them lower: power decides."""
WINNERS_PER_SHAPE = 2


def estimate_us(problem: Problem, config: KernelConfig) -> float:
    """Modelled time of one launch in µs; meant for ranking configs of one problem."""
    v = config.variant
    tiles_m, tiles_n = tile_grid(problem, v)
    tiles = tiles_m * tiles_n
    blocks = max(min(config.knobs.num_sms, tiles), 1)
    rounds = -(-tiles // blocks)
    steps = k_steps(problem.shape.k, v)

    step = _step_cycles(config)
    mainloop = steps * step
    stored = v.block_m * v.block_n * ELEMENT_BYTES
    epilogue = EPILOGUE_CYCLES + stored / STORE_BYTES_PER_CYCLE
    if v.schedule == "pingpong":  # one group multiplies while the other stores
        per_tile = max(mainloop, (mainloop + epilogue) / 2)
        compute = rounds * per_tile + epilogue
    else:
        compute = rounds * (mainloop + epilogue)
    compute += LOAD_LATENCY_CYCLES

    memory_us = problem.shape.operand_bytes / DRAM_BYTES_PER_US
    drawn = blocks * DRAM_BYTES_PER_CYCLE_PER_SM * CLOCK_MHZ
    memory_us = max(memory_us, problem.shape.operand_bytes / drawn)
    return LAUNCH_US + max(compute / CLOCK_MHZ, memory_us) + 0.1 * memory_us


def _step_cycles(config: KernelConfig) -> float:
    """Cycles of one stage on one multiprocessor."""
    v = config.variant
    slab_rows = SLAB_K * ELEMENT_BYTES
    # One m64nNk16 reads A (64 rows) and B (N rows) of 32 bytes and takes N/2 tensor cycles.
    wgmma = max(v.consumer_n / 2, (64 + v.consumer_n) * 32 / SMEM_BYTES_PER_CYCLE)
    per_tile = v.block_m * v.block_n // (64 * v.consumer_n)
    tensor = per_tile * wgmma * (SLAB_K // 16) * v.slabs_per_stage
    shared_rows = v.block_m / v.cluster_n + v.block_n / v.cluster_m
    l2 = shared_rows * slab_rows * v.slabs_per_stage / L2_BYTES_PER_CYCLE
    latency = LOAD_LATENCY_CYCLES / v.stages
    waiting = BARRIER_CYCLES + (CLUSTER_CYCLES if v.cluster_size > 1 else 0.0)
    # Limits overlap imperfectly: two that are close cost more than the larger alone.
    busiest = (tensor**4 + l2**4 + latency**4) ** 0.25
    return float(busiest + waiting)


def ranked(problem: Problem, configs: Iterable[KernelConfig]) -> list[KernelConfig]:
    """`configs` by modelled time, fastest first; equals keep a fixed order."""
    return sorted(configs, key=lambda c: (estimate_us(problem, c), c))


def seeds(
    problem: Problem,
    candidates: Sequence[KernelConfig],
    neighbours: Sequence[KernelConfig] = (),
    count: int = 16,
) -> list[KernelConfig]:
    """Up to `count` configs to measure first, all of them different.

    The published configuration, what won on neighbouring shapes (as far as it is a candidate
    here), then in turn the best modelled candidate of each tile and of each `PROVEN_TILES`.
    neighbours: best first; only their variants count, launched with this problem's defaults.
    """
    ordered = ranked(problem, candidates)
    by_variant = {c.variant: c for c in reversed(ordered)}
    best_of_tile: dict[Tile, KernelConfig] = {}
    for config in ordered:
        best_of_tile.setdefault(_tile(config), config)
    proven = [best_of_tile[t] for t in PROVEN_TILES if t in best_of_tile]
    modelled = list(best_of_tile.values())
    in_turn = (c for pair in zip_longest(modelled, proven) for c in pair if c is not None)

    article = article_config(problem)
    first = [article] if article.variant in by_variant else []
    known = (by_variant[c.variant] for c in neighbours if c.variant in by_variant)
    return list(dict.fromkeys([*first, *islice(known, count // 2), *in_turn]))[:count]


def _tile(config: KernelConfig) -> Tile:
    v = config.variant
    return v.block_m, v.block_n, v.schedule


def shape_distance(a: Problem, b: Problem) -> float:
    """How unlike two shapes are: doublings between their extents, summed."""
    extents = zip((a.shape.m, a.shape.n, a.shape.k), (b.shape.m, b.shape.n, b.shape.k), strict=True)
    return sum(abs(log(x / y)) for x, y in extents) / log(2)


def nearest(problem: Problem, others: Iterable[Problem]) -> list[Problem]:
    """`others` without `problem`, the most similar first; equals keep a fixed order."""
    return sorted(set(others) - {problem}, key=lambda p: (shape_distance(p, problem), p))


def winners(problem: Problem, rows: Iterable[Measurement]) -> list[KernelConfig]:
    """The fastest raced configs of each shape in `rows`, `problem` first and then by nearness."""
    raced: dict[Problem, list[tuple[float, KernelConfig]]] = {}
    for row in rows:
        us, config = row.median_us, row.contender.config
        if row.protocol == PROTOCOL_HOT and row.state is TrialState.OK and config and us:
            raced.setdefault(row.problem, []).append((us, config))
    order = [problem, *nearest(problem, raced)]
    return [c for p in order for _, c in sorted(raced.get(p, []))[:WINNERS_PER_SHAPE]]
