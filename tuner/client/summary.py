"""The one warning: what was asked, where the answers came from, and what tunes the rest."""

from __future__ import annotations

import os
import shlex

from tuner.client.best import NONE, TUNED
from tuner.entry import EXACT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from tuner.client.best import BestConfig, Shape
    from tuner.client.sources import Loaded

RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""Where launchers say which of many alike processes one is."""
MOST_TYPED = 20
"""Shapes that a command line holds, where no file can be written."""


def summary(
    loaded: Loaded, device: str | None, asked: Iterable[BestConfig], untunable: Collection[Shape]
) -> str:
    """One line; empty if all that was asked is tuned and no source was passed over."""
    tiers: dict[Shape, str] = {}
    for best in asked:
        # A shape that was asked on several terms counts as the least sure of its answers.
        if tiers.get(best.shape, EXACT) in TUNED:
            tiers[best.shape] = best.tier
    missing = [s for s, tier in tiers.items() if tier not in TUNED and s not in untunable]
    if not (missing or loaded.problems or untunable):
        return ""
    counts = {tier: list(tiers.values()).count(tier) for tier in dict.fromkeys(tiers.values())}
    told = ", ".join(f"{n} {'without a config' if t == NONE else t}" for t, n in counts.items())
    looked_up = "1 shape was" if len(tiers) == 1 else f"{len(tiers)} shapes were"
    parts = [f"{looked_up} looked up for {device or 'no known device'}: {told}."] if tiers else []
    if missing:
        parts.append(f"To tune the {len(missing)} missing: {_command(loaded, missing)}")
    if untunable:
        parts.append(f"{len(untunable)} cannot be tuned; `reason` of their answers says why.")
    if loaded.problems:
        where = f"configs of the source `{loaded.source}` are" if loaded.told else "no configs are"
        parts.append(f"{where[0].upper()}{where[1:]} used, because {' '.join(loaded.problems)}")
    return " ".join(parts)


def warn(sentences: str) -> bool:
    """Log them once for all ranks of a job; False if there was nothing to say."""
    if not sentences:
        return False
    rank = next((os.environ[name] for name in RANKS if os.environ.get(name)), "0")
    if rank.strip("0") == "":
        import logging

        logging.getLogger("tuner.client").warning("gemm-tuner: %s", sentences)
    return True


def _command(loaded: Loaded, missing: list[Shape]) -> str:
    lines = [" ".join(map(str, shape)) for shape in missing]
    text = "\n".join(lines) + "\n"
    if path := loaded.cache.missing(text):
        return f"tuner run --shapes {shlex.quote(path)}"
    more = "" if len(lines) <= MOST_TYPED else f" (and {len(lines) - MOST_TYPED} more)"
    typed = "\\n".join(lines[:MOST_TYPED])
    return f"printf '{typed}\\n' > missing.txt && tuner run --shapes missing.txt{more}"
