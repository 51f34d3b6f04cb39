"""The rules a configuration must keep, each stated once.

The search, the API and the compiler ask here; `kernels/config_checks.cuh` and
`kernels/producer.cuh` assert what the kernel itself relies on. A test compiles legal variants drawn
at random, and another checks that every assertion has its rule here.
"""

from collections.abc import Iterator

from tuner.config import PROMOTIONS, KernelConfig, KernelVariant, LaunchKnobs
from tuner.hardware import (
    MAX_CLUSTER_SIZE,
    MAX_REGISTERS_PER_THREAD,
    MAX_TMA_BOX_ROWS,
    MAX_WGMMA_N,
    REGISTERS_PER_SM,
    SMEM_BYTES_PER_BLOCK,
)
from tuner.shape import TMA_ROW_MULTIPLE, Problem
from tuner.tiling import k_steps, tiling_of

MAX_ACCUMULATORS = 208
"""Above this the consumers spill, whatever the register split."""
REGISTERS_BESIDE_ACCUMULATORS = 32
"""Addresses, descriptors, the loop and the epilogue; with fewer the consumers spill."""
WGMMA_EXTRA_REGISTERS = 26
"""What ptxas 13.0 asks for beside the accumulators of one WGMMA (C7602), of the registers at
launch: those that setmaxnreg adds later do not count."""
MAX_CONSUMERS = 3
MAX_STAGES = 16
BARRIER_TX_LIMIT_BYTES = 2**20 - 1
"""PTX ISA, "mbarrier: tx-count": the largest number of bytes one phase can expect."""
BUSY_PRODUCER_REGISTERS = 40
"""A producer that works out its share of K, or slices of unequal size, spills with fewer."""
MAX_SPLIT_CONSUMERS = 2
"""Three consumers lack the registers to exchange partial tiles: they spill."""
MAX_SPLIT_CLUSTER = 4
"""Thread blocks that wait for each other must all be resident; few large clusters fit."""
MAX_SPLIT_K = 64
MAX_PARTIALS_BYTES = 64 * 2**20
"""Device memory for partial tiles: what cuBLASLt is given too."""


def variant_faults(v: KernelVariant) -> Iterator[str]:
    """Every rule that `v` breaks, as sentences; nothing if it can be compiled and launched."""
    if not 1 <= v.consumers <= MAX_CONSUMERS:
        yield f"consumers must be 1 to {MAX_CONSUMERS}, not {v.consumers}."
        return
    if min(v.cluster_m, v.cluster_n) < 1 or v.cluster_size > MAX_CLUSTER_SIZE:
        yield (
            f"a cluster of {v.cluster_m}x{v.cluster_n} is not between 1 and {MAX_CLUSTER_SIZE} "
            "thread blocks."
        )
        return
    if v.schedule == "pingpong" and v.consumers != 2:
        yield f"ping-pong alternates between two consumer warpgroups, not {v.consumers}."
    if v.schedule == "pingpong" and v.split != "m":
        yield "split names how cooperative consumers share a tile; ping-pong keeps split=m."
    if v.consumers == 1 and v.split != "m":
        yield "one consumer warpgroup has nothing to split; keep split=m."
    yield from _extent_faults(v)
    if not 2 <= v.stages <= MAX_STAGES:
        yield f"stages must be 2 to {MAX_STAGES}, not {v.stages}."
    if v.slabs_per_stage not in (1, 2, 4):
        yield f"slabs_per_stage must be 1, 2 or 4, not {v.slabs_per_stage}."
    if v.stage_bytes > BARRIER_TX_LIMIT_BYTES:
        yield f"a stage of {v.stage_bytes} B exceeds what one barrier counts."
    if v.smem_bytes > SMEM_BYTES_PER_BLOCK:
        room = SMEM_BYTES_PER_BLOCK - (v.smem_bytes - v.stages * v.stage_bytes)
        yield (
            f"{v.stages} stages need {v.smem_bytes} B of shared memory; sm_90 allows "
            f"{SMEM_BYTES_PER_BLOCK} B per block. Use stages <= {max(room, 0) // v.stage_bytes}."
        )
    yield from _register_faults(v)
    if v.reduction != "none" and v.consumers > MAX_SPLIT_CONSUMERS:
        yield f"a kernel that splits K has at most {MAX_SPLIT_CONSUMERS} consumers."
    if v.reduction != "none" and v.cluster_size > MAX_SPLIT_CLUSTER:
        yield f"a kernel that splits K has clusters of at most {MAX_SPLIT_CLUSTER} thread blocks."


def _extent_faults(v: KernelVariant) -> Iterator[str]:
    if v.consumer_m <= 0 or v.consumer_m % 64:
        yield (
            f"each consumer warpgroup takes whole 64-row WGMMA blocks; block_m={v.block_m} gives "
            f"{v.consumer_m} rows."
        )
    if v.block_m % 64:
        yield f"block_m must be a multiple of 64, not {v.block_m}."
    shares_n = v.schedule == "cooperative" and v.split == "n"
    if shares_n and v.block_n % v.consumers:
        yield f"block_n={v.block_n} does not divide among {v.consumers} consumers."
    if not 8 <= v.consumer_n <= MAX_WGMMA_N or v.consumer_n % 8:
        yield (
            f"WGMMA's N is a multiple of 8 up to {MAX_WGMMA_N}; block_n={v.block_n} gives each "
            f"consumer {v.consumer_n}."
        )
    for name, extent, sharers in (
        ("block_m", v.block_m, v.cluster_n),
        ("block_n", v.block_n, v.cluster_m),
    ):
        if extent < 8 * sharers:
            yield (
                f"{name}={extent} has fewer groups of 8 rows than the {sharers} thread blocks that "
                "would each multicast a slice of it."
            )
        elif extent % 8:
            continue  # said above
        elif extent % (8 * sharers) == 0 and extent % (
            8 * sharers * (boxes := operand_boxes(extent, sharers))
        ):
            yield (
                f"{name}={extent} needs {boxes} loads of at most {MAX_TMA_BOX_ROWS} rows for each "
                f"of {sharers} thread blocks; make it a multiple of {8 * sharers * boxes}, so that "
                "all are alike and of whole 8-row groups."
            )


def uneven(extent: int, sharers: int) -> bool:
    """Whether the groups of 8 rows of a tile cannot be shared out evenly for multicast."""
    return extent // 8 % sharers != 0


def operand_boxes(extent: int, sharers: int) -> int:
    """Loads that a thread block needs for its slice of a tile, which `sharers` blocks share."""
    return max(-(-extent // (sharers * MAX_TMA_BOX_ROWS)), 1)


def _register_faults(v: KernelVariant) -> Iterator[str]:
    most = MAX_ACCUMULATORS
    if v.consumer_registers:
        most = min(most, v.consumer_registers - REGISTERS_BESIDE_ACCUMULATORS)
    if v.accumulators > most:
        yield (
            f"{v.accumulators} accumulators per thread exceed {most}; use more consumers or a "
            "smaller tile."
        )
    at_launch = launch_registers(v.threads)
    if v.consumer_n // 2 + WGMMA_EXTRA_REGISTERS > at_launch:
        yield (
            f"one WGMMA of {v.consumer_n} columns needs {v.consumer_n // 2 + WGMMA_EXTRA_REGISTERS}"
            f" registers, and a launch of {v.threads} threads has {at_launch} for each; use "
            f"{(at_launch - WGMMA_EXTRA_REGISTERS) * 2 // 8 * 8} columns or fewer."
        )
    if v.producer_registers == 0 and v.consumer_registers == 0:
        return
    for name in ("producer_registers", "consumer_registers"):
        count = getattr(v, name)
        if count % 8 or not 24 <= count <= 256:
            yield f"{name} must be a multiple of 8 from 24 to 256, not {count}."
    used = v.producer_registers + v.consumers * v.consumer_registers
    if v.consumers == 1:
        yield "one consumer warpgroup keeps the compiler's allocation: both register counts are 0."
    elif used > (1 + v.consumers) * at_launch:
        yield (
            f"{used} registers per lane over all warpgroups exceed the {(1 + v.consumers)} x "
            f"{at_launch} that a launch of {v.threads} threads owns."
        )
    if v.producer_registers > at_launch or v.consumer_registers < at_launch:
        yield f"setmaxnreg only lowers the producer and raises the consumers from {at_launch}."
    busy = v.reduction != "none" or uneven(v.block_m, v.cluster_n) or uneven(v.block_n, v.cluster_m)
    if busy and v.producer_registers < BUSY_PRODUCER_REGISTERS:
        yield (
            f"a producer that splits K, or slices of unequal size, needs {BUSY_PRODUCER_REGISTERS} "
            f"registers, not {v.producer_registers}."
        )


def launch_registers(threads: int) -> int:
    """Registers per thread that the compiler may use for one resident block of `threads`."""
    return min(MAX_REGISTERS_PER_THREAD, REGISTERS_PER_SM // threads // 8 * 8)


def knob_faults(knobs: LaunchKnobs, variant: KernelVariant, sms: int) -> Iterator[str]:
    """Every rule that `knobs` break for a device, or an SM budget, of `sms`."""
    if not variant.cluster_size <= knobs.num_sms <= sms:
        yield f"num_sms must hold one cluster and stay within {sms}; it is {knobs.num_sms}."
    elif knobs.num_sms % variant.cluster_size:
        yield f"num_sms={knobs.num_sms} is not a multiple of the cluster size."
    if knobs.group < 1:
        yield f"group must be at least 1, not {knobs.group}."
    if knobs.promotion not in PROMOTIONS:
        yield f"promotion must be one of {PROMOTIONS} bytes, not {knobs.promotion}."


def problem_faults(variant: KernelVariant, problem: Problem) -> Iterator[str]:
    """Why `variant` cannot run `problem`, as sentences."""
    if reason := problem.shape.unsupported_reason():
        yield reason
    pitch = output_pitch(problem)
    if variant.store == "tma" and pitch % TMA_ROW_MULTIPLE:
        yield (
            f"rows of {pitch} output elements are not a multiple of 16 bytes, which a TMA store "
            "needs; use store=direct."
        )


def split_faults(config: KernelConfig, problem: Problem) -> Iterator[str]:
    """Why `config` cannot split K of `problem` as it says, as sentences."""
    v, knobs = config.variant, config.knobs
    if v.reduction == "none":
        if knobs.split_k != 1 or knobs.split_tail:
            yield "this variant cannot split K; use split_k=1 without split_tail."
        return
    steps = k_steps(problem.shape.k, v)
    most = min(MAX_SPLIT_K, steps, knobs.num_sms // v.cluster_size)
    if not 2 <= knobs.split_k <= most:
        yield f"split_k must be 2 to {most} here, not {knobs.split_k}."
        return
    tiling = tiling_of(config, problem)
    tail = tiling.split_tiles
    if knobs.split_tail and (tail == 0 or tiling.whole == 0):
        yield "split_tail needs full waves of tiles and a last one that is not full."
    if tiling.partials_bytes > MAX_PARTIALS_BYTES:
        yield (
            f"partial tiles would take {tiling.partials_bytes} B; at most {MAX_PARTIALS_BYTES} B "
            "are set aside. Split fewer tiles, or less."
        )


def output_pitch(problem: Problem) -> int:
    """Elements between two rows (d=row) or columns (d=col) of the output."""
    return problem.shape.n if problem.d == "row" else problem.shape.m


def faults(config: KernelConfig, problem: Problem) -> list[str]:
    """Every rule `config` breaks for `problem`; empty means it may be compiled and measured."""
    return [
        *variant_faults(config.variant),
        *knob_faults(config.knobs, config.variant, problem.sms),
        *problem_faults(config.variant, problem),
        *split_faults(config, problem),
    ]
