"""Launches drawn at random: what does not decide which work there is, only its order and hints."""

from random import Random

from tuner.config import PROMOTIONS, LaunchKnobs
from tuner.search.launches import EVICTIONS, RASTERS


def drawn_launch(
    random: Random, num_sms: int, split: tuple[int, bool], *, dependent: bool
) -> LaunchKnobs:
    """Raster, group, promotion and eviction as the search may try them. split: as knobs name it."""
    raster, group = random.choice(RASTERS)
    evict_a, evict_b = random.choice(EVICTIONS)
    split_k, split_tail = split
    return LaunchKnobs(
        num_sms,
        raster,  # type: ignore[arg-type]
        group,
        random.choice(PROMOTIONS),
        evict_a,  # type: ignore[arg-type]
        evict_b,  # type: ignore[arg-type]
        split_k,
        split_tail,
        dependent,
    )
