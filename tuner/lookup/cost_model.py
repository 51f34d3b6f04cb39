"""A first guess of how long a config takes.

The model counts, per tile, the cycles of whatever limits it (tensor cores, L2, or the latency that
the ring must hide), adds the epilogue, and multiplies by the tiles that the busiest multiprocessor
runs. Its constants come from a run of `benchmarks/fit_model.py` on recorded hot races of an H200 (a
random search: runs differ where the recording does not decide), of kernel 4e5ed687ed12a94b. It only
ranks: a search corrects it as measurements arrive, a look-up with what was measured nearby.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from tuner.config import SLAB_K, KernelConfig, KernelVariant
from tuner.hardware import L2_LINE_BYTES
from tuner.lookup.launches import resident_sms
from tuner.shape import ELEMENT_BYTES, Problem
from tuner.tiling import PARTIAL_BYTES, k_steps, tiling_of

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
    exchange_cycles, exchange_bytes_per_cycle, dependent_us: what splitting K costs and a dependent
        launch saves.
    unaligned_traffic: how often L2 is asked for a row of a slab that lies across two of its lines.
    """

    clock_mhz: float = 1869.0
    l2_bytes_per_cycle: float = 115.0
    load_latency_cycles: float = 1575.0
    store_bytes_per_cycle: float = 30.3
    epilogue_cycles: float = 537.0
    launch_us: float = 2.25
    cluster_cycles: float = 56.8
    sharpness: float = 1.98
    overlap: float = 0.871
    exchange_cycles: float = 7700.0
    exchange_bytes_per_cycle: float = 18.5
    dependent_us: float = 1.14
    unaligned_traffic: float = 2.0


H200 = CostModel()
Estimate = Callable[[Problem, KernelConfig], float]
"""Modelled time of one launch in µs, by whatever model."""


def estimate_us(problem: Problem, config: KernelConfig, model: CostModel = H200) -> float:
    """Modelled time of one launch in µs; meant for ranking configs of one problem."""
    v = config.variant
    tiling = tiling_of(config, problem)
    shares = tiling.units - tiling.whole
    # More may be asked for than run at once; the others wait for a whole round.
    fitting = resident_sms(problem.sms, v.cluster_size) // v.cluster_size
    clusters = max(min(tiling.resident, tiling.units, fitting), 1)
    blocks = clusters * v.cluster_size
    # Rounds of tiles, or of shares of a tile, that the busiest multiprocessor runs.
    rounds, split_rounds = -(-tiling.whole // clusters), -(-shares // clusters)

    step, epilogue = tile_cycles(v, model, rows_on_lines(problem))
    mainloop = k_steps(problem.shape.k, v) * step
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
    launch_us = max(model.launch_us - model.dependent_us * config.knobs.dependent_launch, 0.0)
    return launch_us + max(compute / model.clock_mhz, memory_us) + 0.1 * memory_us


def rows_on_lines(problem: Problem) -> bool:
    """Whether rows of the operands begin where lines of L2 do."""
    return problem.shape.k * ELEMENT_BYTES % L2_LINE_BYTES == 0


@lru_cache(maxsize=16_384)
def tile_cycles(
    v: KernelVariant, model: CostModel = H200, on_lines: bool = True
) -> tuple[float, float]:
    """Cycles of one step along K, and of storing the tile, on one multiprocessor.

    on_lines: as `rows_on_lines` says of the problem.
    """
    stored = v.block_m * v.block_n * ELEMENT_BYTES
    step = _step_cycles(v, model, 1.0 if on_lines else model.unaligned_traffic)
    return step, model.epilogue_cycles + stored / model.store_bytes_per_cycle


def _step_cycles(v: KernelVariant, model: CostModel, traffic: float) -> float:
    """Cycles of one stage on one multiprocessor."""
    slab_rows = SLAB_K * ELEMENT_BYTES
    # One m64nNk16 reads A (64 rows) and B (N rows) of 32 bytes and takes N/2 tensor cycles.
    wgmma = max(v.consumer_n / 2, (64 + v.consumer_n) * 32 / SMEM_BYTES_PER_CYCLE)
    per_tile = v.block_m * v.block_n // (64 * v.consumer_n)
    tensor = per_tile * wgmma * (SLAB_K // 16) * v.slabs_per_stage
    shared_rows = v.block_m / v.cluster_n + v.block_n / v.cluster_m
    l2 = traffic * shared_rows * slab_rows * v.slabs_per_stage / model.l2_bytes_per_cycle
    latency = model.load_latency_cycles / v.stages
    power = model.sharpness
    busiest = (tensor**power + l2**power + latency**power) ** (1 / power)
    return float(busiest + (model.cluster_cycles if v.cluster_size > 1 else 0.0))
