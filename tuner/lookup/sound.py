"""Configs that the analytic model proposes where too little was measured to borrow from.

A few common tiles, each with the deepest ring that fits, in pairs of thread blocks or alone, and
with K split where that keeps a device busy. No menu is searched: the tiles that keep the busiest
multiprocessor shortest are modelled in full.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from tuner.config import KernelConfig, KernelVariant, Reduction, Schedule, Store
from tuner.legality import MAX_SPLIT_CONSUMERS, MAX_STAGES, variant_faults
from tuner.lookup.cost_model import CostModel, rows_on_lines, tile_cycles
from tuner.lookup.launches import default_knobs, split_choices, store_for
from tuner.shape import Problem
from tuner.tiling import k_steps, wgmma_extents

Tile = tuple[int, Schedule, int, tuple[int, ...]]
_TILES: tuple[Tile, ...] = (
    # Consumer warpgroups, their schedule, block_m, and each block_n.
    (1, "cooperative", 64, (16, 32, 64, 96, 128, 192, 256)),
    (2, "cooperative", 128, (64, 128, 192, 256)),
    (2, "cooperative", 256, (64, 128)),
    (2, "pingpong", 64, (64, 128, 192, 256)),
    (2, "pingpong", 128, (64, 96, 128, 160, 192)),
    (3, "cooperative", 192, (128, 160, 192)),
)
_REGISTERS = {1: (0, 0), 2: (40, 232), 3: (32, 160)}
"""Of the producer and of each consumer, by the number of consumers."""
_CLUSTERS = ((1, 1), (2, 1), (1, 2))
_SPLIT_CLUSTERS = ((1, 1), (2, 1))
_MODELLED = 4
"""Tiles that are modelled in full, with K whole and with K split."""


_SMALL_TILE = 32
"""Accumulators per thread up to which two slabs of K behind one barrier are proposed as well."""


@dataclass(frozen=True, slots=True)
class _Costed:
    variant: KernelVariant
    step_cycles: float
    store_cycles: float


def sound_configs(problem: Problem, model: CostModel, split: bool = True) -> Iterator[KernelConfig]:
    """Promising configs, legal but for what only `faults` can say of the problem.

    split: K may be split.
    """
    k_whole, k_split = [], []
    for costed in _costed(model, rows_on_lines(problem)):
        v = costed.variant
        rows, columns = wgmma_extents(problem, v.transposed_store)
        tiles = -(-rows // v.block_m) * -(-columns // v.block_n)
        mainloop = k_steps(problem.shape.k, v) * costed.step_cycles
        visible = 0.0 if v.schedule == "pingpong" else costed.store_cycles
        k_whole.append((-(-tiles // problem.sms) * (mainloop + visible), v))
        k_split.append((tiles * (mainloop + costed.store_cycles), v))
    store = store_for(problem)
    for _, tile in sorted(k_whole)[:_MODELLED]:
        for cluster, slabs in product(_CLUSTERS, _slabs(tile)):
            if variant := _deepest(tile, cluster, slabs, store, "none"):
                yield KernelConfig(variant, default_knobs(problem, variant))
    shared = [entry for entry in k_split if entry[1].consumers <= MAX_SPLIT_CONSUMERS]
    for _, tile in sorted(shared)[: _MODELLED * split]:
        for cluster, slabs in product(_SPLIT_CLUSTERS, _slabs(tile)):
            variant = _deepest(tile, cluster, slabs, store, "workspace")
            if variant and split_choices(problem, variant):
                yield KernelConfig(variant, default_knobs(problem, variant))


def _slabs(tile: KernelVariant) -> tuple[int, ...]:
    return (2, 1) if tile.accumulators <= _SMALL_TILE else (1,)


@cache
def _costed(model: CostModel, on_lines: bool) -> tuple[_Costed, ...]:
    tiles = (
        KernelVariant(
            block_m,
            block_n,
            stages=2,
            consumers=consumers,
            schedule=schedule,
            producer_registers=_REGISTERS[consumers][0],
            consumer_registers=_REGISTERS[consumers][1],
            transposed_store=transposed,
        )
        for consumers, schedule, block_m, widths in _TILES
        for block_n in widths
        for transposed in (False, True)
    )
    variants = (_deepest(tile, (1, 1), 1, "tma", "none") for tile in tiles)
    return tuple(_Costed(v, *tile_cycles(v, model, on_lines)) for v in variants if v)


@cache
def _deepest(
    tile: KernelVariant, cluster: tuple[int, int], slabs: int, store: Store, reduction: Reduction
) -> KernelVariant | None:
    """`tile` with the most stages that are legal; None if it is legal with none."""
    base = replace(
        tile,
        slabs_per_stage=slabs,
        cluster_m=cluster[0],
        cluster_n=cluster[1],
        store=store,
        reduction=reduction,
    )
    rings = (replace(base, stages=stages) for stages in range(MAX_STAGES, 1, -1))
    return next((v for v in rings if not any(variant_faults(v))), None)
