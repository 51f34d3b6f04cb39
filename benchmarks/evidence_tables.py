"""A pair of files of race evidence, NAME-hot.json and NAME-cool.json, as text of a document."""

from collections.abc import Mapping, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

from benchmarks.evidence_files import (
    RESULTS,
    BadEvidence,
    commit_of,
    device_of,
    kernel_of,
    read_evidence,
    told,
)
from benchmarks.evidence_rows import BASELINES, OURS, PLAIN, Row, read_row
from tuner.compiler.source import kernel_hash

COOL_TITLE = "The same with idle gaps before every graph, so that clocks stay high:"
OLDER_KERNEL = "The table was measured with an older kernel than the one in this checkout."


def hot(name: str) -> Path:
    return RESULTS / f"{name}-hot.json"


def cool(name: str) -> Path:
    return RESULTS / f"{name}-cool.json"


def not_measured(name: str) -> str:
    return f"Not measured yet: there is no {hot(name).name} in `{RESULTS}/`."


def pair(root: Path, name: str, commands: str) -> str:
    """Both tables of `name`, or that it was not measured; the cool file may be missing.

    commands: a link to how the files were made. Raises: BadEvidence if one cannot be used.
    """
    first, second = (read_evidence(root, file) for file in (hot(name), cool(name)))
    if first is None:
        return not_measured(name)
    parts = [section(first, hot(name), commands)]
    parts += [COOL_TITLE, section(second, cool(name), commands)] if second else []
    return "\n\n".join(parts)


def section(evidence: Mapping[str, Any], file: Path, commands: str) -> str:
    """The summary, table and origin of one file.

    Raises: BadEvidence if the evidence is incomplete.
    """
    named = ("command", "commit", "device", "driver", "toolchain", "protocol", "rows")
    if missing := [name for name in named if not evidence.get(name)]:
        raise BadEvidence(f"{file} lacks {', '.join(missing)}.")
    if evidence.get("source", "measured") != "measured":
        raise BadEvidence(f"{file} was not measured: its source is {evidence['source']}.")
    if str(evidence["commit"]).endswith(("dirty", "unknown")):
        raise BadEvidence(f"{file} was not written from a clean tree: {evidence['commit']}.")
    rows = [read_row(row, file) for row in evidence["rows"]]
    if len({row.shape for row in rows}) != len(rows):
        raise BadEvidence(f"{file} has a shape twice.")
    parts = [summary(rows, evidence.get("not_raced", ()))]
    parts += ["\n".join(table(rows)), origin(evidence, rows, commands)]
    if kernel_of(evidence) not in (None, kernel_hash()):
        parts.append(OLDER_KERNEL)
    return "\n\n".join(parts)


def summary(rows: Sequence[Row], not_raced: Sequence[object]) -> str:
    ours = [row.ratios["cublas"] for row in rows]
    plain = [row.plain_ratios["cublas"] for row in rows]
    sentences = [
        f"Geometric mean over {len(rows)} shapes: {bold(ours)} times the speed of cuBLAS (least: "
        f"{min(ours):.3f})."
    ]
    if tells_plain(rows):
        sentences.append(f"Without dependent launch: {bold(plain)} (least: {min(plain):.3f}).")
    sentences.append(
        "cuBLAS against itself in the same rounds differs by at most "
        f"{100 * max(abs(row.noise) for row in rows):.1f} %."
    )
    if not_raced:
        sentences.append(f"Shapes without a race: {len(not_raced)}; the evidence says why.")
    return " ".join(sentences)


def table(rows: Sequence[Row]) -> list[str]:
    """Columns of plain configs only where the file has them, and of baselines that were raced."""
    plain = tells_plain(rows)
    raced = [name for name in BASELINES if any(name in row.ratios for row in rows)]
    heads = ["tuned, µs"] + ["plain, µs"] * plain
    means = [""] * len(heads)
    for name in raced:
        heads += [f"{BASELINES[name]}, µs", "ratio"] + ["plain ratio"] * plain
        means += ["", bold([row.ratios[name] for row in rows if name in row.ratios])]
        if plain:
            means.append(bold([row.plain_ratios[name] for row in rows if name in row.ratios]))
    heads, means = [*heads, "MHz", "W"], [*means, "", ""]
    return [
        line(["M x N x K", *heads]),
        "|" + " --- |" + " ---: |" * len(heads),
        *(line([row.shape, *cells(row, raced, plain)]) for row in rows),
        line(["geometric mean", *means]),
    ]


def cells(row: Row, raced: Sequence[str], plain: bool) -> list[str]:
    found = [f"{row.times_us[name]:.1f}" for name in [OURS] + [PLAIN] * plain]
    for name in raced:
        if name in row.ratios:
            ratios = [row.ratios[name]] + [row.plain_ratios[name]] * plain
            found += [f"{row.times_us[name]:.1f}", *(f"{ratio:.3f}" for ratio in ratios)]
        else:
            found += ["-"] * (2 + plain)
    return found + ["-" if seen is None else f"{seen:.0f}" for seen in (row.clock_mhz, row.power_w)]


def line(found: Sequence[str]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in found)


def tells_plain(rows: Sequence[Row]) -> bool:
    return any(row.tells_plain for row in rows)


def bold(ratios: Sequence[float]) -> str:
    """Their geometric mean."""
    return f"**{exp(sum(map(log, ratios)) / len(ratios)):.3f}**"


def origin(evidence: Mapping[str, Any], rows: Sequence[Row], commands: str) -> str:
    """What a reader needs beside the table, on one line; `commands` leads to the rest."""
    protocol, ranked_by = evidence["protocol"], evidence.get("ranked_by")
    rounds = f", {evidence['rounds']} rounds" if "rounds" in evidence else ""
    parts = [
        f"{device_of(evidence)}, driver {told(evidence['driver'])}",
        f"kernel `{kernel_of(evidence) or 'not stated'}`",
        f"commit {commit_of(evidence)}",
        f"protocol `{protocol}`{rounds}",
    ]
    if ranked_by:
        parts.append(f"configs ranked by {'it alone' if ranked_by == protocol else ranked_by}")
    if trials := {row.trials for row in rows if row.trials is not None}:
        parts.append(f"{' to '.join(map(str, sorted({min(trials), max(trials)})))} trials a shape")
    return f"{'; '.join(parts)}. [The command]({commands})."
