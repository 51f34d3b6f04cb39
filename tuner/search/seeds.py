"""A first guess of how long a config takes, and where a search should begin.

The model counts, per tile, the cycles of whatever limits it (tensor cores, L2, or the latency that
the ring must hide), adds the epilogue, and multiplies by the tiles that the busiest multiprocessor
runs. Its constants come from a run of `benchmarks/fit_model.py` on recorded hot races of an H200 (a
random search: runs differ where the recording does not decide). It only ranks, and the search
corrects it as measurements arrive.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import log

from tuner.config import SLAB_K, KernelConfig, KernelVariant, Reduction, Schedule
from tuner.search.space import article_config
from tuner.shape import ELEMENT_BYTES, Problem
from tuner.tiling import PARTIAL_BYTES, k_steps, tiling_of
from tuner.trial import PROTOCOL_HOT, Measurement, TrialState

SMEM_BYTES_PER_CYCLE = 128
"""Shared memory of one SM."""
DRAM_BYTES_PER_US = 4.3e6
"""A large copy on an H200, bytes read plus bytes written."""
DRAM_BYTES_PER_CYCLE_PER_SM = 40.0
"""A guess: the most one SM draws from memory; few thread blocks cannot use all of it."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """Constants of the model, fitted together; alone none is a measurement of its name.

    overlap: share of a ping-pong tile's mainloop and epilogue that is not hidden behind the other
        warpgroup's. sharpness: how nearly the largest of a stage's limits decides alone.
    """

    clock_mhz: float = 1506.0
    l2_bytes_per_cycle: float = 108.0
    load_latency_cycles: float = 2214.0
    store_bytes_per_cycle: float = 28.5
    epilogue_cycles: float = 265.0
    launch_us: float = 1.06
    cluster_cycles: float = 24.5
    sharpness: float = 6.9
    overlap: float = 0.81
    exchange_cycles: float = 3500.0
    exchange_bytes_per_cycle: float = 30.0
    dependent_us: float = 0.5


H200 = CostModel()

Tile = tuple[int, int, Schedule, Reduction]
WINNERS_PER_SHAPE = 2


def estimate_us(problem: Problem, config: KernelConfig, model: CostModel = H200) -> float:
    """Modelled time of one launch in µs; meant for ranking configs of one problem."""
    v = config.variant
    tiling = tiling_of(config, problem)
    shares = tiling.units - tiling.whole
    clusters = max(min(tiling.resident, tiling.units), 1)
    blocks = clusters * v.cluster_size
    # Rounds of tiles, or of shares of a tile, that the busiest multiprocessor runs.
    rounds, split_rounds = -(-tiling.whole // clusters), -(-shares // clusters)

    mainloop = k_steps(problem.shape.k, v) * _step_cycles(v, model)
    stored = v.block_m * v.block_n * ELEMENT_BYTES
    epilogue = model.epilogue_cycles + stored / model.store_bytes_per_cycle
    if v.schedule == "pingpong":  # one group multiplies while the other stores
        hidden = max(mainloop, (mainloop + epilogue) * model.overlap)
        compute = rounds * hidden + epilogue * (rounds > 0)
    else:
        compute = rounds * (mainloop + epilogue)
    if shares:
        partial = v.block_m * v.block_n * PARTIAL_BYTES
        compute += split_rounds * mainloop / tiling.split_k + model.exchange_cycles
        compute += split_rounds * 2 * partial / model.exchange_bytes_per_cycle
    compute += model.load_latency_cycles

    memory_us = problem.shape.operand_bytes / DRAM_BYTES_PER_US
    drawn = blocks * DRAM_BYTES_PER_CYCLE_PER_SM * model.clock_mhz
    memory_us = max(memory_us, problem.shape.operand_bytes / drawn)
    launch_us = model.launch_us - model.dependent_us * config.knobs.dependent_launch
    return launch_us + max(compute / model.clock_mhz, memory_us) + 0.1 * memory_us


def _step_cycles(v: KernelVariant, model: CostModel) -> float:
    """Cycles of one stage on one multiprocessor."""
    slab_rows = SLAB_K * ELEMENT_BYTES
    # One m64nNk16 reads A (64 rows) and B (N rows) of 32 bytes and takes N/2 tensor cycles.
    wgmma = max(v.consumer_n / 2, (64 + v.consumer_n) * 32 / SMEM_BYTES_PER_CYCLE)
    per_tile = v.block_m * v.block_n // (64 * v.consumer_n)
    tensor = per_tile * wgmma * (SLAB_K // 16) * v.slabs_per_stage
    shared_rows = v.block_m / v.cluster_n + v.block_n / v.cluster_m
    l2 = shared_rows * slab_rows * v.slabs_per_stage / model.l2_bytes_per_cycle
    latency = model.load_latency_cycles / v.stages
    power = model.sharpness
    busiest = (tensor**power + l2**power + latency**power) ** (1 / power)
    return float(busiest + (model.cluster_cycles if v.cluster_size > 1 else 0.0))


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
    here), then the best modelled candidate of each tile.
    neighbours: best first; only their variants count, launched with this problem's defaults.
    """
    ordered = ranked(problem, candidates)
    by_variant = {c.variant: c for c in reversed(ordered)}
    best_of_tile: dict[Tile, KernelConfig] = {}
    for config in ordered:
        best_of_tile.setdefault(_tile(config), config)
    article = article_config(problem)
    first = [article] if article.variant in by_variant else []
    known = (by_variant[c.variant] for c in neighbours if c.variant in by_variant)
    return list(dict.fromkeys([*first, *islice(known, count // 2), *best_of_tile.values()]))[:count]


def _tile(config: KernelConfig) -> Tile:
    v = config.variant
    return v.block_m, v.block_n, v.schedule, v.reduction


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
