"""What the overview shows, as plain values that its template only has to print."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import exp, log
from statistics import fmean
from typing import Literal
from urllib.parse import urlencode
from weakref import WeakKeyDictionary

from tuner.config import KernelConfig
from tuner.lookup import Answer
from tuner.lookup.book import Book
from tuner.lookup.terms import Terms
from tuner.shape import Problem

Order = Literal["shape", "cublas", "cublaslt"]
TIMES = "\N{MULTIPLICATION SIGN}"
"""Between the extents of a shape on the page, and so perhaps in what is searched for."""
BAR_WIDTH = 72
"""Pixels of a ratio's bar; its middle is a ratio of 1."""
FULL_RATIO = 1.25
"""A ratio whose bar ends at the right; its inverse ends at the left, and all beyond do too."""


@dataclass(frozen=True, slots=True)
class ShapeRow:
    """A tuned problem. cublas, cublaslt: the time of that library over ours, by both protocols."""

    problem: Problem
    config: str
    median_us: float
    tflops: float
    spread: float
    cublas: float
    cublaslt: float | None
    use: str
    marks: tuple[str, ...]
    link: str


@dataclass(frozen=True, slots=True)
class Summary:
    """All tuned problems of a device; geometric means of the ratios, None without any."""

    shapes: int
    cublas: float | None
    cublaslt: float | None
    uses: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Bar:
    """The bar of a ratio, in pixels from the left."""

    start: float
    width: float
    faster: bool


@dataclass(frozen=True, slots=True)
class ShapeTable:
    """Some rows of all: `found` match what was searched for, and these begin at `offset`."""

    rows: Sequence[ShapeRow]
    found: int
    offset: int


_ROWS: "WeakKeyDictionary[Book, tuple[Sequence[ShapeRow], Summary]]" = WeakKeyDictionary()
"""Made once for each book, and forgotten with it."""


def shapes_of(book: Book) -> tuple[Sequence[ShapeRow], Summary]:
    """Every tuned problem of a device in order, and what they are together."""
    made = _ROWS.get(book)
    if made is None:
        answers = (book.exact(problem, Terms()) for problem in book.problems)
        rows = [_row(answer) for answer in answers if answer and answer.timings]
        made = _ROWS[book] = rows, _summary(rows)
    return made


def table(
    rows: Sequence[ShapeRow], search: str, order: Order, offset: int, limit: int
) -> ShapeTable:
    """The rows whose `MxNxK` holds `search`, those that gain least first if ordered by a ratio."""
    wanted = "x".join(search.lower().replace(TIMES, "x").replace("x", " ").split())
    found = [row for row in rows if wanted in str(row.problem.shape)] if wanted else list(rows)
    if order == "cublas":
        found.sort(key=lambda row: row.cublas)
    elif order == "cublaslt":
        found.sort(key=lambda row: (row.cublaslt is None, row.cublaslt or 0.0))
    offset = min(offset, max(len(found) - 1, 0) // limit * limit)  # the last page, not none
    return ShapeTable(found[offset : offset + limit], len(found), offset)


def bar(ratio: float) -> Bar:
    """Logarithmic, so that twice and half the speed are equally far from the middle."""
    middle = BAR_WIDTH / 2
    length = min(abs(log(ratio)) / log(FULL_RATIO), 1.0) * middle
    return Bar(middle if ratio >= 1 else middle - length, length, ratio >= 1)


def digits(value: float) -> str:
    """Three digits that count, or more before the point; no exponent."""
    decimals = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{decimals}f}"


def ago(moment: datetime, now: datetime | None = None) -> str:
    """How long ago, in one unit; a moment to come is now."""
    seconds = max(((now or datetime.now(UTC)) - moment).total_seconds(), 0.0)
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def _row(answer: Answer) -> ShapeRow:
    shown, problem = answer.timings[0], answer.problem
    low, high = shown.ci95_us
    lt = [t.cublaslt_best_us / t.median_us for t in answer.timings if t.cublaslt_best_us]
    marks: list[str] = [answer.source] if answer.source != "measured" else []
    marks += ["stale"] if answer.stale else []
    asked = {
        **{name: getattr(problem.shape, name) for name in ("m", "n", "k")},
        "d": problem.d,
        "sms": problem.sms,
        "device": answer.device_key,
    }
    return ShapeRow(
        problem=problem,
        config=_config(answer.config),
        median_us=shown.median_us,
        tflops=shown.tflops,
        spread=(high - low) / 2 / shown.median_us,
        cublas=answer.speedup or shown.speedup,
        cublaslt=_geometric_mean(lt),
        use=answer.use,
        marks=tuple(marks),
        link=f"/best-config?{urlencode(asked)}",
    )


def _summary(rows: Sequence[ShapeRow]) -> Summary:
    return Summary(
        shapes=len(rows),
        cublas=_geometric_mean([row.cublas for row in rows]),
        cublaslt=_geometric_mean([row.cublaslt for row in rows if row.cublaslt]),
        uses=Counter(row.use for row in rows),
    )


def _geometric_mean(ratios: Sequence[float]) -> float | None:
    return exp(fmean(map(log, ratios))) if ratios else None


def _config(config: KernelConfig) -> str:
    """What a person wants to know first; the link has all of it."""
    v, knobs = config.variant, config.knobs
    said = [f"{v.block_m}x{v.block_n}", f"{v.stages} stages"]
    if v.cluster_size > 1:
        said.append(f"cluster {v.cluster_m}x{v.cluster_n}")
    if v.schedule != "cooperative":
        said.append("ping-pong")
    if knobs.split_k > 1:
        said.append(f"K in {knobs.split_k}")
    return ", ".join(said)
