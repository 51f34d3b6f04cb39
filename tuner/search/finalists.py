"""Who goes on: the best by two rankings, so that neither state of the card decides alone."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from tuner.config import KernelConfig, KernelVariant

HEAT = ((96, 3),)
"""Laps of a heat: how many configs race, in how many rounds."""
LAST_HEAT = (*HEAT, (24, 8))
"""Three rounds only tell apart what differs by more than a step of the card's clock, about 1 %."""


def choose_finalists(
    screened: Sequence[KernelConfig],
    hot: Sequence[KernelConfig],
    per_variant: int = 1,
    per_tile: int = 1,
) -> list[KernelConfig]:
    """The two rankings in turn, without repeats, at most so many of a variant and of a tile.

    screened: as each was screened alone; hot: as a heat ranked them, which goes first. Launches of
    one tile are often equally fast, and would leave nobody to race against.
    """
    taken: Counter[KernelVariant] = Counter()
    taken_tiles: Counter[KernelVariant] = Counter()
    chosen: dict[KernelConfig, None] = {}
    for pair in zip_longest(hot, screened):
        for config in pair:
            if config is None or config in chosen:
                continue
            tile = _tile_of(config.variant)
            if taken[config.variant] < per_variant and taken_tiles[tile] < per_tile:
                taken[config.variant] += 1
                taken_tiles[tile] += 1
                chosen[config] = None
    return list(chosen)


def _tile_of(variant: KernelVariant) -> KernelVariant:
    """Variants that cut a problem alike and share its loads alike give the same value."""
    return replace(
        variant, stages=2, producer_registers=0, consumer_registers=0, transposed_store=False
    )
