"""How a variant may be launched: knobs that compile nothing.

What is legal is decided in `tuner.legality` alone; this module says what is worth asking.
"""

from dataclasses import replace
from itertools import product

from tuner.config import PROMOTIONS, KernelConfig, KernelVariant, LaunchKnobs
from tuner.legality import faults
from tuner.lookup.launches import sms_choices, split_choices
from tuner.shape import Problem

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
