"""What leaving measured shapes out has shown of each tier: `tier_regret.json`, read once.

`benchmarks/score_lookup.py` writes the file; it says from which recordings and with which command.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from tuner.lookup.answer import Tier
from tuner.lookup.confidence import Regret
from tuner.shape import GemmShape
from tuner.trial import Toolchain

FILE = "tier_regret.json"


@dataclass(frozen=True, slots=True)
class Band:
    """What a tier did where the tuned shape that it chose was at most `up_to` doublings away.

    log_width: half of the 95 % interval of ln(time / predicted time).
    """

    up_to: float
    regret: Regret
    log_width: float


@dataclass(frozen=True, slots=True)
class TierRegret:
    """shapes: those that were left out, one after the other. toolchain: what they ran with."""

    bands: Mapping[Tier, Sequence[Band]]
    shapes: tuple[GemmShape, ...]
    toolchain: Toolchain

    def of(self, tier: Tier, distance: float | None) -> Band:
        """The band of a distance; that of the last where none reaches so far.

        A tier that nothing could be left out for has the numbers of the model, and no cases.
        """
        bands = self.bands.get(tier)
        if not bands:
            last = self.bands["model"][-1]
            return Band(last.up_to, Regret(last.regret.mean, last.regret.p95, 0), last.log_width)
        return next((b for b in bands if distance is not None and distance <= b.up_to), bands[-1])


@cache
def tier_regret() -> TierRegret:
    """The file that is shipped."""
    # Loads half of the standard library, which an importing program should not wait for.
    from importlib.resources import files

    text = (files("tuner.lookup") / FILE).read_text(encoding="utf-8")
    read = json.loads(text)
    return TierRegret(
        {
            tier: tuple(
                Band(
                    float("inf") if band["up_to"] is None else band["up_to"],
                    Regret(band["mean"], band["p95"], band["cases"]),
                    band["log_width"],
                )
                for band in bands
            )
            for tier, bands in read["tiers"].items()
        },
        tuple(GemmShape(*extents) for extents in read["shapes"]),
        Toolchain(read["kernel_hash"], read["nvrtc_version"]),
    )
