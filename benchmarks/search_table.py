"""The evidence of `benchmarks/score_search.py` as text of a document."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.evidence_files import (
    RESULTS,
    BadEvidence,
    commit_of,
    device_of,
    kernel_of,
    read_evidence,
)

FILE = RESULTS / "search.json"
NOT_SCORED = f"Not scored yet: there is no {FILE.name} in `{RESULTS}/`."
NEEDED = ("command", "commit", "device", "toolchain", "shapes", "seeds", "budgets", "rows")


def table(root: Path, commands: str) -> str:
    """Regret of every contestant at every budget, or that nobody has played.

    commands: a link to how the file was made. Raises: BadEvidence if it cannot be used.
    """
    evidence = read_evidence(root, FILE)
    if evidence is None:
        return NOT_SCORED
    if missing := [name for name in NEEDED if not evidence.get(name)]:
        raise BadEvidence(f"{FILE} lacks {', '.join(missing)}.")
    budgets = [str(budget) for budget in evidence["budgets"]]
    heads = ["mean / 95th percentile of the regret, %", *budgets, "to 1 %", "flips", "games"]
    try:
        rows = [cells(row, budgets) for row in evidence["rows"]]
    except (KeyError, TypeError, IndexError) as error:
        raise BadEvidence(f"{FILE} has a row that is not of a contestant ({error}).") from None
    lines = [line(heads), "| --- |" + " ---: |" * (len(heads) - 1), *map(line, rows)]
    return "\n".join(lines) + f"\n\n{origin(evidence, commands)}"


def cells(row: Mapping[str, Any], budgets: Sequence[str]) -> list[str]:
    near = row["near"]
    moves = "-" if near["median_moves"] is None else f"{near['median_moves']:.0f}"
    flips = list(row["flips"].values())[-1]
    return [
        row["contestant"],
        *(regret(row["regret"].get(budget)) for budget in budgets),
        f"{moves} ({100 * near['share']:.0f} %)",
        f"{100 * flips:.0f} %",
        str(row["games"]),
    ]


def regret(found: Mapping[str, float] | None) -> str:
    return f"{100 * found['mean']:.2f} / {100 * found['p95']:.2f}" if found else "-"


def line(found: Sequence[str]) -> str:
    return f"| {' | '.join(found)} |"


def origin(evidence: Mapping[str, Any], commands: str) -> str:
    parts = [
        f"{evidence['shapes']} recorded shapes, {evidence['seeds']} seeds",
        f"recorded on {device_of(evidence)} with kernel `{kernel_of(evidence) or 'not stated'}`",
        f"commit {commit_of(evidence)}",
    ]
    return f"{'; '.join(parts)}. [The command]({commands})."
