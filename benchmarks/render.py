"""Write the results tables of README.md, and the commands in docs/evidence.md, from the evidence.

`python benchmarks/render.py` rewrites what stands between the markers of both from the files in
benchmarks/results/; `--check` only says whether that would change anything (exit 1). That the
kernel has changed since the evidence was made is noted below a table, and is no reason for
`--check` to fail. Exit 2: the evidence or the markers cannot be used.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, isclose, isfinite, log
from pathlib import Path
from statistics import median
from typing import Any

from tuner.compiler.source import kernel_hash

ROOT = Path(__file__).resolve().parent.parent
EVIDENCE = Path("benchmarks/results/article-hot.json")
COOL = Path("benchmarks/results/article-cool.json")
COOL_TITLE = "The same with idle gaps before every graph, so that clocks stay high:"
RESULTS = Path("benchmarks/results")
README = Path("README.md")
PAGE = Path("docs/evidence.md")
BEGIN = "<!-- results: written by benchmarks/render.py -->"
END = "<!-- end of results -->"
PAGE_BEGIN = "<!-- commands: written by benchmarks/render.py -->"
PAGE_END = "<!-- end of commands -->"
OLDER_KERNEL = "The table was measured with an older kernel than the one in this checkout."
NO_FILES = "No evidence has been written yet."
NOT_MEASURED = "Not measured yet: `benchmarks/results/article-hot.json` is not there."

OURS = "tuned"
BASELINES = {
    "cublas": "cuBLAS",
    "cublaslt_best": "best cuBLASLt",
    "article": "article's config",
}
"""Contender in the evidence -> column heading. `X_us` holds its median, `rounds[X]` its samples."""
AGAIN = "cublas_again"
"""cuBLAS a second time in the same rounds: how far it is from itself is the noise."""


class BadEvidence(Exception):
    """The evidence or the README is not of the form this command reads."""


@dataclass(frozen=True, slots=True)
class Row:
    """One shape: medians in µs, and for each baseline raced how many times faster we are.

    noise: cuBLAS's time over its own in the same rounds, less 1.
    clock_mhz, power_w: of the card while the tuned config ran; None where they were not read.
    trials: how many configs the search tried; None where the file does not say.
    """

    shape: str
    times_us: Mapping[str, float]
    ratios: Mapping[str, float]
    noise: float
    clock_mhz: float | None
    power_w: float | None
    trials: int | None


def read_row(row: Mapping[str, Any], file: Path) -> Row:
    """Raises: BadEvidence for what is missing, malformed, or not what the rounds say."""
    try:
        shape = "{m} x {n} x {k}".format_map(row)
        needed = {name: row["rounds"][name] for name in (OURS, "cublas", AGAIN)}
        raced = needed | {name: row["rounds"].get(name) for name in BASELINES}
        rounds = {name: [float(us) for us in of_one] for name, of_one in raced.items() if of_one}
        stated = {name: float(row[f"{name}_us"]) for name in rounds if name != AGAIN}
        seen = [row.get("conditions", {}).get(name) for name in ("sm_clock_mhz", "power_w")]
        clock, power = (None if one is None else float(one) for one in seen)
        trials = row.get("trials")
    except KeyError as missing:
        raise BadEvidence(f"a row of {file} lacks {missing}: {str(row)[:80]}") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise BadEvidence(f"a row of {file} is malformed ({error}).") from None
    samples = [us for of_one in rounds.values() for us in of_one]
    if not needed.keys() <= rounds.keys() or not all(isfinite(us) and us > 0 for us in samples):
        raise BadEvidence(f"{file}: {shape} has times that are not positive and finite.")
    if len({len(of_one) for of_one in rounds.values()}) != 1:
        raise BadEvidence(f"{file}: the contenders of {shape} cover different rounds.")
    if not all(isclose(us, median(rounds[name]), rel_tol=1e-9) for name, us in stated.items()):
        raise BadEvidence(f"{file}: a time of {shape} is not the median of its rounds.")
    ratios = {name: paired(rounds[name], rounds[OURS]) for name in BASELINES if name in rounds}
    noise = paired(rounds[AGAIN], rounds["cublas"]) - 1
    return Row(shape, stated, ratios, noise, clock, power, trials)


def paired(baseline_us: Sequence[float], ours_us: Sequence[float]) -> float:
    """Median over rounds of baseline / ours within the round: above 1, we are faster."""
    return median(b / o for b, o in zip(baseline_us, ours_us, strict=True))


def geometric_mean(values: Sequence[float]) -> float:
    return exp(sum(map(log, values)) / len(values))


def render(evidence: Mapping[str, Any], file: Path = EVIDENCE) -> str:
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
    ratios = {name: [r.ratios[name] for r in rows if name in r.ratios] for name in BASELINES}
    means = [f"**{geometric_mean(of_one):.3f}**" if of_one else "-" for of_one in ratios.values()]
    table = [
        "| M x N x K | tuned, µs | "
        + " | ".join(f"{title}, µs | ratio" for title in BASELINES.values())
        + " | MHz | W |",
        "|" + " --- |" + " ---: |" * (3 + 2 * len(BASELINES)),
        *(table_line(row) for row in rows),
        "| geometric mean | | " + " | ".join(f"| {mean}" for mean in means) + " | | |",
    ]
    summary = (
        f"Geometric mean over {len(rows)} shapes: {means[0]} times the speed of cuBLAS (least: "
        f"{min(ratios['cublas']):.3f}). cuBLAS against itself in the same rounds differs by at "
        f"most {100 * max(abs(row.noise) for row in rows):.1f} %."
    )
    if left_out := evidence.get("not_raced"):
        summary += f" Shapes without a race: {len(left_out)}; the evidence says why."
    older = kernel_of(evidence) not in (None, kernel_hash())
    return "\n".join([summary, "", *table, "", origin(evidence, rows), *["", OLDER_KERNEL] * older])


def origin(evidence: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """What a reader needs beside the table, on one line; PAGE has the rest."""
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
    return f"{'; '.join(parts)}. [The command]({PAGE}#commands)."


def table_line(row: Row) -> str:
    cells = [row.shape, f"{row.times_us[OURS]:.1f}"]
    for name in BASELINES:
        raced = name in row.ratios
        cells += [f"{row.times_us[name]:.1f}", f"{row.ratios[name]:.3f}"] if raced else ["-", "-"]
    cells += ["-" if seen is None else f"{seen:.0f}" for seen in (row.clock_mhz, row.power_w)]
    return "| " + " | ".join(cells) + " |"


def told(value: object) -> str:
    """A string, or the members of an object, on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {member}" for key, member in value.items())
    return str(value)


def device_of(evidence: Mapping[str, Any]) -> str:
    device = evidence["device"]
    if not isinstance(device, Mapping):
        return told(device)
    return f"{device.get('name')} (`{device.get('key')}`)"


def kernel_of(evidence: Mapping[str, Any]) -> str | None:
    """The hash of the kernel that was measured; None if the file does not say."""
    toolchain = evidence.get("toolchain")
    held = toolchain if isinstance(toolchain, Mapping) else evidence
    named = held.get("kernel_hash")
    return str(named) if named else None


def commit_of(evidence: Mapping[str, Any]) -> str:
    """The commit, marked where a person stated it and git did not confirm it."""
    by_hand = "stated" if "--commit" in str(evidence.get("command")).split() else "git"
    stated = evidence.get("commit_from", by_hand) == "stated"
    return f"`{evidence['commit']}`{' (as stated on the command line)' if stated else ''}"


def described(file: Path, evidence: Mapping[str, Any]) -> str:
    """Where one file comes from, and which of that it does not hold."""
    found = {
        "device": told(evidence.get("device") or ""),
        "driver": told(evidence.get("driver") or ""),
        "kernel": kernel_of(evidence) or "",
        "commit": commit_of(evidence) if evidence.get("commit") else "",
        "command": evidence.get("command") or "",
    }
    parts = [f"{name} {value}" for name, value in found.items() if value and name != "command"]
    command = f"`{found['command']}`" if found["command"] else "a command that it does not name"
    lines = [f"- `{file}`, written by", f"  {command}"]
    lines += [f"  ({'; '.join(parts)})."] if parts else []
    # What measured a database ran without a GPU, and names the database's version instead.
    of_database = "postgres" in evidence.get("environment", evidence)
    needed = found.keys() - ({"device", "driver", "kernel"} if of_database else set())
    if lacking := [name for name, value in found.items() if name in needed and not value]:
        lines.append(f"  The file lacks {', '.join(lacking)}, until it is written again.")
    return "\n".join(lines)


def commands_of(root: Path) -> str:
    """The text between the markers of PAGE.

    Raises: BadEvidence if a file cannot be read.
    """
    files = sorted(path.relative_to(root) for path in (root / RESULTS).glob("*.json"))
    read = [(file, read_evidence(root, file)) for file in files]
    return "\n".join(described(file, found) for file, found in read if found) or NO_FILES


def replaced(document: str, name: Path, markers: tuple[str, str], text: str) -> str:
    """`document` with `text` between the markers.

    Raises: BadEvidence unless each marker is there once, in order.
    """
    first, last = markers
    before, begin, rest = document.partition(first)
    _, end, after = rest.partition(last)
    if not (begin and end) or first in rest or last in after:
        raise BadEvidence(f"{name} must have the markers {first} and {last} once, in order.")
    return f"{before}{first}\n{text}\n{last}{after}"


def without_note(document: str) -> str:
    """What `--check` compares: a change of the kernel alone makes no document stale."""
    return document.replace(f"\n\n{OLDER_KERNEL}", "")


def results_of(root: Path) -> str:
    """The text between the markers.

    Raises: BadEvidence if a file is there and cannot be read.
    """
    hot = read_evidence(root, EVIDENCE)
    if hot is None:
        return NOT_MEASURED
    cool = read_evidence(root, COOL)
    parts = [render(hot)] + ([COOL_TITLE, render(cool, COOL)] if cool else [])
    return "\n\n".join(parts)


def read_evidence(root: Path, file: Path) -> Mapping[str, Any] | None:
    path = root / file
    if not path.exists():
        return None
    try:
        evidence = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadEvidence(f"{file} is not JSON ({error}).") from None
    if not isinstance(evidence, dict):
        raise BadEvidence(f"{file} is not a JSON object.")
    return evidence


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write README.md's results and docs/evidence.md.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if stale")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to work on")
    options = parser.parse_args(arguments)
    root: Path = options.root
    try:
        texts = {
            README: ((BEGIN, END), results_of(root)),
            PAGE: ((PAGE_BEGIN, PAGE_END), commands_of(root)),
        }
        old = {name: (root / name).read_text(encoding="utf-8") for name in texts}
        new = {name: replaced(old[name], name, *of_one) for name, of_one in texts.items()}
    except (BadEvidence, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.check:
        stale = [name for name in new if without_note(new[name]) != without_note(old[name])]
        for name in stale:
            print(f"{name} is older than the evidence; run python benchmarks/render.py.")
        if not stale and OLDER_KERNEL in new[README]:
            print("README.md: results of an older kernel than the one in this checkout.")
        return 1 if stale else 0
    for name in (name for name in new if new[name] != old[name]):
        (root / name).write_text(new[name], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
