"""The rows of a race's evidence, checked against their rounds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose, isfinite
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.evidence_files import BadEvidence

OURS, PLAIN = "tuned", "tuned_plain"
"""The best config, and the best without dependent launch: often one, which then has one set of
rounds, as in files older than the second name."""
BASELINES = {
    "cublas": "cuBLAS",
    "cublaslt_best": "best cuBLASLt",
    "article": "article's config",
}
"""Contender in the evidence -> column heading. `X_us` holds its median, `rounds[X]` its samples."""
AGAIN = "cublas_again"
"""cuBLAS a second time in the same rounds: how far it is from itself is the noise."""


@dataclass(frozen=True, slots=True)
class Row:
    """One shape: medians in µs, and for each baseline raced how many times faster we are.

    plain_ratios: the same of PLAIN; tells_plain: the file names its config.
    noise: cuBLAS's time over its own in the same rounds, less 1.
    clock_mhz, power_w: of the card while the tuned config ran; None where they were not read.
    trials: how many configs the search tried; None where the file does not say.
    """

    shape: str
    times_us: Mapping[str, float]
    ratios: Mapping[str, float]
    plain_ratios: Mapping[str, float]
    tells_plain: bool
    noise: float
    clock_mhz: float | None
    power_w: float | None
    trials: int | None


def read_row(row: Mapping[str, Any], file: Path) -> Row:
    """Raises: BadEvidence for what is missing, malformed, or not what the rounds say."""
    try:
        shape = "{m} x {n} x {k}".format_map(row)
        needed = {name: row["rounds"][name] for name in (OURS, "cublas", AGAIN)}
        others = {name: row["rounds"].get(name) for name in (PLAIN, *BASELINES)}
        raced = others | needed
        rounds = {name: [float(us) for us in of_one] for name, of_one in raced.items() if of_one}
        apart = PLAIN in rounds
        rounds.setdefault(PLAIN, rounds.get(OURS, []))
        stated = {name: row[f"{name}_us"] for name in rounds.keys() - {AGAIN, PLAIN}}
        stated[PLAIN] = row["tuned_plain_us"] if apart else row.get("tuned_plain_us", stated[OURS])
        times = {name: float(us) for name, us in stated.items()}
        seen = [row.get("conditions", {}).get(name) for name in ("sm_clock_mhz", "power_w")]
        clock, power = (None if one is None else float(one) for one in seen)
        plain_config = row.get("plain_config", row["config"])
        dependent = bool(plain_config.get("dependent_launch", False))
    except KeyError as missing:
        raise BadEvidence(f"a row of {file} lacks {missing}: {str(row)[:80]}") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise BadEvidence(f"a row of {file} is malformed ({error}).") from None
    samples = [us for of_one in rounds.values() for us in of_one]
    if not needed.keys() <= rounds.keys() or not all(isfinite(us) and us > 0 for us in samples):
        raise BadEvidence(f"{file}: {shape} has times that are not positive and finite.")
    if len({len(of_one) for of_one in rounds.values()}) != 1:
        raise BadEvidence(f"{file}: the contenders of {shape} cover different rounds.")
    if not all(isclose(us, median(rounds[name]), rel_tol=1e-9) for name, us in times.items()):
        raise BadEvidence(f"{file}: a time of {shape} is not the median of its rounds.")
    if dependent or apart != (plain_config != row["config"]):
        raise BadEvidence(f"{file}: {shape} has no plain config, or not the rounds of it.")
    baselines = [name for name in BASELINES if name in rounds]
    return Row(
        shape,
        times,
        {name: paired(rounds[name], rounds[OURS]) for name in baselines},
        {name: paired(rounds[name], rounds[PLAIN]) for name in baselines},
        "plain_config" in row,
        paired(rounds[AGAIN], rounds["cublas"]) - 1,
        clock,
        power,
        row.get("trials"),
    )


def paired(baseline_us: Sequence[float], ours_us: Sequence[float]) -> float:
    """Median over rounds of baseline / ours within the round: above 1, we are faster."""
    return median(b / o for b, o in zip(baseline_us, ours_us, strict=True))
