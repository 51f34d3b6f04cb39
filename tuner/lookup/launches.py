"""How a variant is best launched for a problem: multiprocessors, shares of K, the kind of store."""

from tuner.config import KernelVariant, LaunchKnobs, Store
from tuner.legality import MAX_SPLIT_K, output_pitch
from tuner.shape import TMA_ROW_MULTIPLE, Problem
from tuner.tiling import k_steps, tile_grid

SHARE_STEPS = 4
"""Steps of the ring that a share of K has at least."""


def store_for(problem: Problem) -> Store:
    """A TMA store wherever the output's pitch allows one."""
    return "direct" if output_pitch(problem) % TMA_ROW_MULTIPLE else "tma"


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


def fewest_sms(problem: Problem, variant: KernelVariant) -> int:
    """Thread blocks that finish in as many waves as all resident ones; whole clusters."""
    size = variant.cluster_size
    tiles_m, tiles_n = tile_grid(problem, variant)
    clusters = tiles_m * tiles_n // size
    waves = -(-clusters // (resident_sms(problem.sms, size) // size))
    return -(-clusters // waves) * size


def sms_choices(problem: Problem, variant: KernelVariant) -> list[int]:
    """All resident blocks, 128, and the fewest that finish in as many waves."""
    size = variant.cluster_size
    full = resident_sms(problem.sms, size)
    if variant.reduction != "none":
        return [full]  # splitting K is what keeps them all at work
    fewest = fewest_sms(problem, variant)
    choices = (full, 128 // size * size, fewest, problem.sms // size * size)
    return list(dict.fromkeys(c for c in choices if size <= c <= problem.sms))
