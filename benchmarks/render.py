"""Write the results table of README.md from the evidence in benchmarks/results/.

`python benchmarks/render.py` rewrites the text between the markers; `--check` only says whether
that would change anything (exit 1). Exit 2: the evidence or the markers cannot be used.
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

ROOT = Path(__file__).resolve().parent.parent
EVIDENCE = Path("benchmarks/results/article-hot.json")
COOL = Path("benchmarks/results/article-cool.json")
COOL_TITLE = "The same with idle gaps before every graph, so that clocks stay high:"
BEGIN = "<!-- results: written by benchmarks/render.py -->"
END = "<!-- end of results -->"
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
    """

    shape: str
    times_us: Mapping[str, float]
    ratios: Mapping[str, float]
    noise: float


def read_row(row: Mapping[str, Any], file: Path) -> Row:
    """Raises: BadEvidence for what is missing, malformed, or not what the rounds say."""
    try:
        shape = "{m} x {n} x {k}".format_map(row)
        needed = {name: row["rounds"][name] for name in (OURS, "cublas", AGAIN)}
        raced = needed | {name: row["rounds"].get(name) for name in BASELINES}
        rounds = {name: [float(us) for us in of_one] for name, of_one in raced.items() if of_one}
        stated = {name: float(row[f"{name}_us"]) for name in rounds if name != AGAIN}
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
    return Row(shape, stated, ratios, paired(rounds[AGAIN], rounds["cublas"]) - 1)


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
        + " |",
        "|" + " --- |" + " ---: |" * (1 + 2 * len(BASELINES)),
        *(table_line(row) for row in rows),
        "| geometric mean | | " + " | ".join(f"| {mean}" for mean in means) + " |",
    ]
    summary = (
        f"Geometric mean over {len(rows)} shapes: {means[0]} times the speed of cuBLAS (least: "
        f"{min(ratios['cublas']):.3f}). cuBLAS against itself in the same rounds differs by at "
        f"most {100 * max(abs(row.noise) for row in rows):.1f} %."
    )
    if left_out := evidence.get("not_raced"):
        summary += f" Shapes without a race: {len(left_out)}; the evidence says why."
    origin = (
        f"Device {told(evidence['device'])}; driver {told(evidence['driver'])}; "
        f"{told(evidence['toolchain'])}; protocol `{evidence['protocol']}`; "
        f"commit `{evidence['commit']}`; written by `{evidence['command']}`."
    )
    return "\n".join([summary, "", *table, "", origin])


def table_line(row: Row) -> str:
    cells = [row.shape, f"{row.times_us[OURS]:.1f}"]
    for name in BASELINES:
        raced = name in row.ratios
        cells += [f"{row.times_us[name]:.1f}", f"{row.ratios[name]:.3f}"] if raced else ["-", "-"]
    return "| " + " | ".join(cells) + " |"


def told(value: object) -> str:
    """A string, or the members of an object, on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {member}" for key, member in value.items())
    return str(value)


def with_results(readme: str, results: str) -> str:
    """`readme` with the text between the markers replaced.

    Raises: BadEvidence unless each marker is there once, in order.
    """
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in after:
        raise BadEvidence(f"README.md must have the markers {BEGIN} and {END} once, in order.")
    return f"{before}{BEGIN}\n{results}\n{END}{after}"


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
    parser = argparse.ArgumentParser(description="Write README.md's results from the evidence.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if stale")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to work on")
    options = parser.parse_args(arguments)
    readme = options.root / "README.md"
    try:
        old = readme.read_text(encoding="utf-8")
        new = with_results(old, results_of(options.root))
    except (BadEvidence, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if old == new:
        return 0
    if options.check:
        print("README.md is older than the evidence; run python benchmarks/render.py.")
        return 1
    readme.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
