"""The legal candidates of one problem: which variants to compile.

What is legal is decided in `tuner.legality` alone. This module says what is worth asking: tile
families that Hopper's tensor cores run well, and for each tile a few rings, clusters and register
splits, without tiles that would mostly compute padding.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import product
from random import Random

from tuner.config import KernelConfig, KernelVariant, LaunchKnobs
from tuner.hardware import L2_LINE_BYTES
from tuner.legality import (
    MAX_SPLIT_CONSUMERS,
    MAX_STAGES,
    faults,
    uneven,
    variant_faults,
)
from tuner.lookup.launches import default_knobs, split_choices, store_for
from tuner.search.families import FAMILIES, FOURS, PAIRS, TWO_CONSUMERS, WIDE, Family
from tuner.search.launches import knob_menu
from tuner.shape import ELEMENT_BYTES, Problem
from tuner.tiling import round_up, tile_grid, tiling_of, wgmma_extents

# The thresholds that follow are guesses, set to leave several hundred variants of a menu and fitted
# on nothing: recordings are drawn from the menu, so they cannot tell what lies beyond it.
MAX_PADDING = 2.0
"""A tile is left out if it computes more than this many times what the tightest one computes."""
MAX_CLUSTER_PADDING = 4 / 3
"""The same for tiles that only exist to fill up a cluster."""
MAX_TRAFFIC = 2.5
"""A tile is left out if it loads this many times what another does that keeps the device busy."""
MAX_IDLE = 5.0
"""A tile is left out if this many times its thread blocks could work at once with another."""
SMALL_TILE = 64
"""Accumulators per thread up to which deep rings and several slabs per stage are offered."""
MAX_SPLIT_PADDING = 1.3
"""The same for tiles whose K is split: they need not fit the device as well."""
MIN_SPLIT_USE = 0.75
"""Multiprocessor turns that the shares of split tiles must fill, or the tile is not worth it."""
MAX_WAVES_BEFORE_TAIL = 8
"""Whole waves after which splitting the last one can gain little."""
MAX_FITTING = 2
"""Widths that a family gets for the sake of one problem."""
LARGE_TILE = 128
"""Accumulators per thread from which a second register split is offered."""


def menu(problem: Problem) -> list[KernelConfig]:
    """Every variant worth compiling for `problem`, once each, with default knobs; all legal."""
    found = dict.fromkeys(_variants(problem))
    configs = (KernelConfig(v, default_knobs(problem, v)) for v in found)
    return [c for c in configs if not faults(c, problem)]


def sample(
    problem: Problem, count: int, seed: int, *, any_knobs: bool = False
) -> list[KernelConfig]:
    """`count` different configs drawn evenly from the menu, or all of it if it is smaller.

    The same seed prefers the same variants for every problem, so that samples of two menus have in
    common what they can. any_knobs: draw launch knobs as well, instead of the defaults.
    """
    random = Random(seed)

    def lot(config: KernelConfig) -> bytes:
        # Pitch decides how a kernel stores, which makes it no other candidate.
        variant = replace(config.variant, store="tma")
        return sha256(f"{seed} {variant}".encode()).digest()

    chosen = sorted(menu(problem), key=lot)[:count]
    if any_knobs:
        return [
            KernelConfig(c.variant, random.choice(knob_menu(problem, c.variant))) for c in chosen
        ]
    return chosen


def article_config(problem: Problem) -> KernelConfig:
    """The published configuration of the kernel this project started from."""
    variant = KernelVariant(128, 256, stages=3, cluster_m=2, store=store_for(problem))
    sms = min(128, problem.sms // variant.cluster_size * variant.cluster_size)
    return KernelConfig(variant, LaunchKnobs(num_sms=sms, raster="hilbert"))


def trusted_config(problem: Problem) -> KernelConfig:
    """The plain configuration that a device checks against higher precision, then trusts."""
    variant = KernelVariant(128, 128, stages=4, store=store_for(problem))
    return KernelConfig(variant, default_knobs(problem, variant))


def _variants(problem: Problem) -> Iterator[KernelVariant]:
    store = store_for(problem)
    tiles = [
        KernelVariant(
            family.block_m,
            block_n,
            stages=2,
            consumers=family.consumers,
            split=family.split,
            schedule=family.schedule,
            producer_registers=family.registers[0][0],
            consumer_registers=family.registers[0][1],
            transposed_store=transposed,
            store=store,
        )
        for family, transposed in product(FAMILIES, (False, True))
        for block_n in (*family.block_n, *_fitting(family, transposed, problem))
    ]
    for tile in _promising(tiles, problem):
        yield from _details(tile, problem)
    for tile in _worth_splitting(tiles, problem):
        yield from _splitting(tile, problem)


def _fitting(family: Family, transposed: bool, problem: Problem) -> list[int]:
    """Other widths with which the busiest multiprocessor computes less than with any of `family`.

    WGMMA takes any multiple of 8, and a width of its own may spare a problem a wave.
    """
    rows, columns = wgmma_extents(problem, transposed)
    tiles_m = -(-rows // family.block_m)
    step = 8 * family.consumers if family.split == "n" else 8

    def busiest(block_n: int) -> int:
        return -(-tiles_m * -(-columns // block_n) // problem.sms) * block_n

    least = min(busiest(block_n) for block_n in family.block_n)
    others = range(family.block_n[0], family.block_n[-1], step)
    fitting = [n for n in others if n not in family.block_n and busiest(n) < least]
    return sorted(fitting, key=lambda n: (busiest(n), -n))[:MAX_FITTING]


def _promising(tiles: Sequence[KernelVariant], problem: Problem) -> Iterator[KernelVariant]:
    """Tiles that neither compute padding, nor starve on loads, nor leave the device idle."""
    tightest = min(_padded(problem, t) for t in tiles)
    tiles = [t for t in tiles if _padded(problem, t) <= MAX_PADDING * tightest]
    busiest = max(_parallel(problem, t) for t in tiles)
    lightest = min(_loads(t) for t in tiles if 2 * _parallel(problem, t) >= busiest)
    for tile in tiles:
        idle = _parallel(problem, tile) * MAX_IDLE < busiest
        starved = _loads(tile) > MAX_TRAFFIC * lightest
        if not (idle or starved):
            yield tile


def _details(tile: KernelVariant, problem: Problem) -> Iterator[KernelVariant]:
    """Rings, clusters and register splits of one tile."""
    small = tile.accumulators <= SMALL_TILE
    # Rows off the 128-byte lines cost L2 more requests, which multicast spares.
    aligned = problem.shape.k * ELEMENT_BYTES % L2_LINE_BYTES == 0
    for cluster_m, cluster_n in (*PAIRS, *FOURS, *(() if aligned else WIDE)):
        base = _registers_for(replace(tile, cluster_m=cluster_m, cluster_n=cluster_n))
        if not _cluster_pays(base, problem) or list(variant_faults(base)):
            continue
        paired = base.cluster_size <= 2
        deepest = _deepest(base)
        yield replace(base, stages=deepest)
        if paired and deepest > 3:
            yield replace(base, stages=deepest - 1)
        if small and paired and deepest > 9:
            yield replace(base, stages=8)
        if base.cluster_size == 1 and not small and deepest > 4:
            yield replace(base, stages=deepest - 2)
        if (
            tile.accumulators >= LARGE_TILE
            and tile.consumers == 2
            and (cluster_m, cluster_n) in PAIRS[:2]
        ):
            producer, consumer = TWO_CONSUMERS[1]
            yield replace(
                base,
                stages=deepest,
                producer_registers=producer,
                consumer_registers=consumer,
            )
        if small and paired:
            yield from _merged(base, problem)


def _registers_for(tile: KernelVariant) -> KernelVariant:
    """`tile` with the registers that its producer needs."""
    uneven_slices = uneven(tile.block_m, tile.cluster_n) or uneven(tile.block_n, tile.cluster_m)
    if tile.consumers != 2 or not (uneven_slices or tile.reduction != "none"):
        return tile
    producer, consumer = TWO_CONSUMERS[1]
    return replace(tile, producer_registers=producer, consumer_registers=consumer)


def _worth_splitting(tiles: Sequence[KernelVariant], problem: Problem) -> Iterator[KernelVariant]:
    """Tiles that compute little padding and do not starve on loads; few of them are no fault."""
    tightest = min(_padded(problem, t) for t in tiles)
    tight = [t for t in tiles if _padded(problem, t) <= MAX_SPLIT_PADDING * tightest]
    lightest = min(_loads(t) for t in tight)
    for tile in tight:
        if tile.consumers <= MAX_SPLIT_CONSUMERS and _loads(tile) <= MAX_TRAFFIC * lightest:
            yield tile


def _splitting(tile: KernelVariant, problem: Problem) -> Iterator[KernelVariant]:
    """Kernels that split K, of tiles that leave much of the device idle otherwise."""
    for cluster_m, cluster_n in (*PAIRS, *FOURS):
        base = _registers_for(
            replace(tile, cluster_m=cluster_m, cluster_n=cluster_n, reduction="workspace")
        )
        if list(variant_faults(base)) or not _cluster_pays(base, problem):
            continue
        if not split_choices(problem, base):
            continue
        config = KernelConfig(base, default_knobs(problem, base))
        tiling = tiling_of(config, problem)
        shares, waves = tiling.units - tiling.whole, tiling.whole // tiling.resident
        share_of_turns = shares / (-(-shares // tiling.resident) * tiling.resident)
        if share_of_turns >= MIN_SPLIT_USE and waves <= MAX_WAVES_BEFORE_TAIL:
            yield replace(base, stages=_deepest(base))
            if tile.accumulators <= SMALL_TILE:
                yield from _merged(base, problem)


def _merged(base: KernelVariant, problem: Problem) -> Iterator[KernelVariant]:
    """Several slabs of K behind one barrier, where K and the ring have room for it."""
    for slabs in (2, 4):
        merged = replace(base, slabs_per_stage=slabs)
        if problem.shape.k < 64 * slabs or list(variant_faults(merged)):
            continue
        if (deepest := _deepest(merged)) >= 3:
            yield replace(merged, stages=deepest)


def _deepest(base: KernelVariant) -> int:
    """The most stages that are legal for `base`, which is legal itself."""
    rings: Sequence[int] = range(MAX_STAGES, base.stages, -1)
    return next((s for s in rings if not list(variant_faults(replace(base, stages=s)))), 2)


def _padded(problem: Problem, tile: KernelVariant) -> int:
    """Elements that tiles of this size compute, padding included."""
    rows, columns = wgmma_extents(problem, tile.transposed_store)
    return round_up(rows, tile.block_m) * round_up(columns, tile.block_n)


def _parallel(problem: Problem, tile: KernelVariant) -> int:
    """Multiprocessors that have a tile in the first wave."""
    tiles_m, tiles_n = tile_grid(problem, tile)
    return min(tiles_m * tiles_n, problem.sms)


def _loads(tile: KernelVariant) -> float:
    """Operand elements loaded for each element of the output, per unit of K."""
    return 1 / tile.block_m + 1 / tile.block_n


def _cluster_pays(base: KernelVariant, problem: Problem) -> bool:
    """Whether a cluster has enough tiles to share among, and little padding."""
    alone = replace(base, cluster_m=1, cluster_n=1)
    plain_m, plain_n = tile_grid(problem, alone)
    tiles_m, tiles_n = tile_grid(problem, base)
    fits = base.cluster_m <= plain_m and base.cluster_n <= plain_n
    full = tiles_m * tiles_n <= MAX_CLUSTER_PADDING * plain_m * plain_n
    return fits and full and base.cluster_size <= problem.sms
