"""Who goes on: the best by two rankings, so that neither state of the card decides alone."""

from collections.abc import Sequence
from itertools import zip_longest

from tuner.config import KernelConfig, KernelVariant


def choose_finalists(
    screened: Sequence[KernelConfig], hot: Sequence[KernelConfig], per_variant: int = 1
) -> list[KernelConfig]:
    """The two rankings in turn, without repeats, at most `per_variant` of a variant.

    screened: as each was screened alone; hot: as a heat ranked them, which goes first.
    """
    taken: dict[KernelVariant, int] = {}
    chosen: dict[KernelConfig, None] = {}
    for pair in zip_longest(hot, screened):
        for config in pair:
            if config is None or config in chosen:
                continue
            if taken.get(config.variant, 0) < per_variant:
                taken[config.variant] = taken.get(config.variant, 0) + 1
                chosen[config] = None
    return list(chosen)
