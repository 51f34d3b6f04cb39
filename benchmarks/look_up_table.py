"""The scores that `benchmarks/score_lookup.py` ships, as text of a document."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.evidence_files import BadEvidence

FILE = Path("tuner/lookup/tier_regret.json")
HEADS = ("regret, %", "mean", "95th percentile", "worst", "shapes", "recorded there")
NOT_SCORED = f"Not scored yet: there is no `{FILE}`."


def table(root: Path) -> str:
    """Regret of every rule, and how many of the stated intervals held.

    Raises: BadEvidence if the file cannot be used.
    """
    path = root / FILE
    if not path.exists():
        return NOT_SCORED
    try:
        scores = json.loads(path.read_text(encoding="utf-8"))
        rules = [_rule(row) for row in scores["table"]]
        bands = [_band(tier, band) for tier, found in scores["tiers"].items() for band in found]
        origin = (
            f"{len(scores['shapes'])} shapes of the recording `{scores['recording']}` "
            f"({scores['device_key']}, kernel `{scores['kernel_hash']}`), by `{scores['command']}`."
        )
    except (ValueError, KeyError, TypeError) as error:
        raise BadEvidence(f"{FILE} is not what score_lookup writes ({error}).") from None
    return "\n".join(
        [
            f"| {' | '.join(HEADS)} |",
            "| --- |" + " ---: |" * (len(HEADS) - 1),
            *rules,
            "",
            *bands,
            "",
            origin,
        ]
    )


def _rule(row: Mapping[str, Any]) -> str:
    shares = (f"{100 * row[name]:.1f}" for name in ("mean", "p95", "worst"))
    cells = [row["rule"].strip(), *shares, str(row["cases"]), str(row["recorded"])]
    return f"| {' | '.join(cells)} |"


def _band(tier: str, band: Mapping[str, Any]) -> str:
    reach = "any distance" if band["up_to"] is None else f"up to {band['up_to']:g} doublings"
    return (
        f"- 95 % intervals of predicted times, tier `{tier}`, {reach}: {band['covered']} of "
        f"{band['cases']} hold."
    )
