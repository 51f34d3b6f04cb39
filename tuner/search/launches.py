"""How a variant may be launched: knobs that compile nothing.

What is legal is decided in `tuner.legality` alone; this module says what is worth asking.
"""

from dataclasses import replace
from itertools import product

from tuner.config import PROMOTIONS, KernelConfig, KernelVariant, LaunchKnobs
from tuner.legality import MAX_SPLIT_K, faults
from tuner.shape import Problem
from tuner.tiling import k_steps, tile_grid

SHARE_STEPS = 4
"""Steps of the ring that a share of K has at least."""
RASTERS = (
    *product(("along_m", "along_n"), (1, 2, 4, 8, 16)),
    ("hilbert", 8),  # one entry: a space-filling curve has no group
)
EVICTIONS = (
    ("normal", "normal"),
    ("first", "normal"),
    ("normal", "first"),
    ("first", "last"),
    ("last", "first"),
)


def resident_sms(sms: int, cluster_size: int) -> int:
    """Thread blocks that run at once, as far as it is known without asking a device.

    Clusters of four strand multiprocessors: an H200 was seen to hold 30 of the 33 that its count
    suggests. For other parts and other sizes the same share is a guess.
    """
    usable = sms * 10 // 11 if cluster_size > 2 else sms
    return max(usable // cluster_size, 1) * cluster_size


def default_knobs(problem: Problem, variant: KernelVariant) -> LaunchKnobs:
    """The knobs a variant is first measured with; K is split as far as it can be."""
    sms = resident_sms(problem.sms, variant.cluster_size)
    split_k, split_tail = next(iter(split_choices(problem, variant)), (1, False))
    return LaunchKnobs(num_sms=sms, split_k=split_k, split_tail=split_tail)


def split_choices(problem: Problem, variant: KernelVariant) -> list[tuple[int, bool]]:
    """(split_k, split_tail) worth trying; none where splitting K cannot pay.

    Tiles that leave half of the multiprocessors idle, all of them or in their last wave, are shared
    out among those; a share has SHARE_STEPS steps at least, or it is not worth its exchange.
    """
    if variant.reduction == "none":
        return [(1, False)]
    clusters = resident_sms(problem.sms, variant.cluster_size) // variant.cluster_size
    tiles_m, tiles_n = tile_grid(problem, variant)
    positions = tiles_m * tiles_n // variant.cluster_size
    deepest = min(k_steps(problem.shape.k, variant) // SHARE_STEPS, MAX_SPLIT_K)
    tail = positions > clusters
    most = min(clusters // (positions % clusters or clusters), deepest)
    fewer = (most, most * 3 // 4, most // 2)
    return [(split, tail) for split in dict.fromkeys(fewer) if split >= 2]


def sms_choices(problem: Problem, variant: KernelVariant) -> list[int]:
    """All resident blocks, 128, and the fewest that finish in as many waves."""
    size = variant.cluster_size
    full = resident_sms(problem.sms, size)
    if variant.reduction != "none":
        return [full]  # splitting K is what keeps them all at work
    tiles_m, tiles_n = tile_grid(problem, variant)
    clusters = tiles_m * tiles_n // size
    waves = -(-clusters // (full // size))
    fewest = -(-clusters // waves) * size
    choices = (full, 128 // size * size, fewest, problem.sms // size * size)
    return list(dict.fromkeys(c for c in choices if size <= c <= problem.sms))


def knob_menu(problem: Problem, variant: KernelVariant) -> list[LaunchKnobs]:
    """Every launch of `variant` that the search may try."""
    return [
        LaunchKnobs(sms, raster, group, promotion, evict_a, evict_b, split_k, split_tail)  # type: ignore[arg-type]
        for sms, (raster, group), promotion, (evict_a, evict_b), (split_k, split_tail) in product(
            sms_choices(problem, variant),
            RASTERS,
            PROMOTIONS,
            EVICTIONS,
            split_choices(problem, variant),
        )
    ]


def knob_neighbours(config: KernelConfig, problem: Problem) -> list[KernelConfig]:
    """The same variant launched with one knob changed."""
    variant, knobs = config.variant, config.knobs
    changed = [
        *(replace(knobs, num_sms=n) for n in sms_choices(problem, variant)),
        *(replace(knobs, raster=r, group=g) for r, g in RASTERS),  # type: ignore[arg-type]
        *(replace(knobs, promotion=p) for p in PROMOTIONS),
        *(replace(knobs, evict_a=a, evict_b=b) for a, b in EVICTIONS),  # type: ignore[arg-type]
        *(replace(knobs, split_k=s, split_tail=t) for s, t in split_choices(problem, variant)),
    ]
    configs = (KernelConfig(variant, k) for k in dict.fromkeys(changed) if k != knobs)
    return [c for c in configs if not faults(c, problem)]
