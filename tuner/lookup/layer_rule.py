"""From the cross races of a layer to its intervals: which config for which Ms.

1. At each measured M a config loses what it is slower there than the fastest, cuBLAS included; one
   that loses to cuBLAS under a protocol loses at least that.
2. The measured Ms are cut into the fewest runs in each of which one config, or cuBLAS, loses at
   most TOLERANCE at every M; of several ways the one that loses least in all.
3. Between the last M of a run and the first of the next, the analytic model, corrected to what was
   measured at both, says up to which M the first config is the better one. Beside cuBLAS, which it
   does not know, it is halfway in doublings.
4. Where those two Ms are more than LINK apart, or the two configs did not meet at both, the Ms
   between have no interval.
5. Spans that were tuned one after the other: the later decides wherever it has intervals.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from math import isqrt, log, log2
from statistics import fmean

from tuner.config import KernelConfig
from tuner.lookup.adapt import adapted
from tuner.lookup.answer import Use
from tuner.lookup.choose import DEFAULT_PROTOCOLS
from tuner.lookup.confidence import Regret
from tuner.lookup.cross_races import Span, span_of
from tuner.lookup.crossing import Meeting, last_of_first
from tuner.lookup.layer import Interval, Layer, at_m, layer_key
from tuner.lookup.layer_plan import LINK
from tuner.lookup.race import Candidate, Race, candidates
from tuner.lookup.terms import ALL_TERMS, Terms
from tuner.shape import Problem
from tuner.trial import Toolchain

TOLERANCE = 0.01
"""What the config of an interval may lose at a measured M, so that intervals are few."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One M on some terms: the configs of a span's cross races there, with all they showed.

    fastest: how many times faster than cuBLAS the best of all races there is, at least 1.
    """

    crossed: Mapping[KernelConfig, Candidate]
    fastest: float

    def loss(self, config: KernelConfig | None) -> float:
        """How much slower than the fastest a config is, or cuBLAS where it is None: 0.01 is 1 %."""
        if config is None:
            return self.fastest - 1
        own = self.crossed[config]
        beside_cublas = max(1 / evidence.ratio for evidence in own.evidence)
        return max(self.fastest / own.score, beside_cublas, 1.0) - 1


Standings = Mapping[int, Standing]


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring measured Ms with one config, and what that loses at each."""

    ms: tuple[int, ...]
    config: KernelConfig
    use: Use
    losses: tuple[float, ...]


def layers_of(
    key: Problem, races: Mapping[int, Sequence[Race]], current: Toolchain | None = None
) -> list[Layer]:
    """The layers that the races of one N and K show, one for each terms that need their own.

    key: the problem with any M. races: by M; heats apart, all that the M was in. Only Ms with a
    cross race count, and of those the races of one toolchain and source: of a real device before
    replayed ones, then those made with `current`, then the newest.
    """
    crossed = [
        race for of_m in races.values() for race in of_m if race.measurements and span_of(race.id)
    ]
    if not crossed:
        return []
    best = max(
        crossed, key=lambda r: (r.source != "replay", r.toolchain == current, r.measured_at, r.id)
    )
    own = {m: [race for race in of_m if _alike(race, best)] for m, of_m in races.items()}
    spans = _spans(own)
    found: list[Layer] = []
    general: dict[str | None, Layer] = {}
    for terms in ALL_TERMS:
        base = general.get(terms.protocol)
        if base and all(terms.admit(interval.config) for interval in base.intervals):
            continue  # which answers on these terms too
        intervals: list[Interval] = []
        for span, ms in spans.items():
            at = ((m, _standing(own[m], span, terms)) for m in ms)
            standings = {m: standing for m, standing in at if standing}
            intervals = _beside(intervals, intervals_of(key, standings))
        if intervals:
            layer = _layer(key, terms, intervals, own, best)
            found.append(layer)
            general.setdefault(terms.protocol, layer)
    return found


def intervals_of(key: Problem, standings: Standings) -> list[Interval]:
    """Intervals of one span, ascending; see the rules above."""
    runs = _fewest_runs(standings)
    lows, highs = [run.ms[0] for run in runs], [run.ms[-1] for run in runs]
    for at, (first, second) in enumerate(pairwise(runs)):
        highs[at], lows[at + 1] = _parted(key, standings, first, second)
    return [
        Interval(low, high, run.config, run.use, run.ms, _regret(run.losses))
        for run, low, high in zip(runs, lows, highs, strict=True)
    ]


def _standing(races: Sequence[Race], span: Span, terms: Terms) -> Standing | None:
    """None where no config of the span's cross races may answer on these terms."""
    met = {
        row.contender.config
        for race in races
        if span_of(race.id) == span
        for row in race.measurements
    }
    choices = DEFAULT_PROTOCOLS if terms.protocol is None else ((terms.protocol,),)
    for protocols in choices:
        found = {
            config: candidate
            for candidate in candidates(races, protocols)
            if (config := candidate.contender.config) is not None and terms.admit(config)
        }
        if crossed := {config: one for config, one in found.items() if config in met}:
            eligible = [one for one in found.values() if not one.loses] or list(found.values())
            return Standing(crossed, max(1.0, *(one.score for one in eligible)))
    return None


def _fewest_runs(standings: Standings) -> list[Run]:
    ms = sorted(standings)
    # By how many Ms are cut up: the number of runs, what they lose in all, and the runs.
    best: list[tuple[int, float, list[Run]]] = [(0, 0.0, [])]
    for end in range(1, len(ms) + 1):
        ways = []
        for start in range(end - 1, -1, -1):
            if start + 1 < end and log2(ms[start + 1] / ms[start]) > LINK:
                break
            if (run := _run(ms[start:end], standings)) is None:
                break
            count, lost, before = best[start]
            ways.append((count + 1, lost + sum(run.losses), [*before, run]))
        best.append(min(ways, key=lambda way: way[:2]))
    return best[-1][2]


def _run(ms: Sequence[int], standings: Standings) -> Run | None:
    """What loses least in all, and at no M more than TOLERANCE; at one M alone there always is."""
    shared = sorted(set.intersection(*(set(standings[m].crossed) for m in ms)))
    ways: list[tuple[float, bool, KernelConfig, tuple[float, ...]]] = []
    for config in shared:
        losses = tuple(standings[m].loss(config) for m in ms)
        ways.append((sum(losses), False, config, losses))
    if ways:
        config = min(ways)[2]  # for those whom no library suits
        losses = tuple(standings[m].loss(None) for m in ms)
        ways.append((sum(losses), True, config, losses))
    fitting = [way for way in ways if len(ms) == 1 or max(way[3]) <= TOLERANCE]
    if not fitting:
        return None
    _, library, config, losses = min(fitting)
    return Run(tuple(ms), config, "cublas" if library else "kernel", losses)


def _parted(key: Problem, standings: Standings, first: Run, second: Run) -> tuple[int, int]:
    """The last M of the first run's interval, and the first of the second's."""
    a, b = first.ms[-1], second.ms[0]
    below, above = _met(key, standings, a, b, first), _met(key, standings, b, a, second)
    if log2(b / a) > LINK or below is None or above is None:
        return a, b
    if "cublas" in (first.use, second.use):
        last = min(max(isqrt(a * b), a), b - 1)
        return last, last + 1
    ends = Meeting(a, first.config, above), Meeting(b, below, second.config)
    leads = [
        log(of[end.first].score / of[end.second].score)
        for of, end in ((standings[end.m].crossed, end) for end in ends)
    ]
    last = last_of_first(layer_key(key), *ends, leads[0], leads[1])
    return last, last + 1


def _met(key: Problem, standings: Standings, m: int, other: int, run: Run) -> KernelConfig | None:
    """The config of a run at M as it raced at the other M: as a look-up launches it there, or as it
    is; None if neither raced there."""
    launched = adapted(run.config, at_m(key, m), at_m(key, other))
    raced = standings[other].crossed
    return next((form for form in (launched, run.config) if form in raced), None)


def _beside(settled: list[Interval], others: Iterable[Interval]) -> list[Interval]:
    """`settled`, and of the others what lies below or above all of them."""
    if not settled:
        return list(others)
    low, high = settled[0].low, settled[-1].high
    parts = []
    for other in others:
        below = replace(other, high=min(other.high, low - 1))
        above = replace(other, low=max(other.low, high + 1))
        for part in (below, above):
            measured = tuple(m for m in other.measured if part.low <= m <= part.high)
            if measured:
                parts.append(replace(part, measured=measured))
    return sorted([*settled, *parts], key=lambda interval: interval.low)


def _spans(races: Mapping[int, Sequence[Race]]) -> dict[Span, list[int]]:
    """The Ms that were crossed in each span, the span that was tuned last first."""
    newest: dict[Span, datetime] = {}
    ms: dict[Span, dict[int, None]] = {}
    for m in sorted(races):
        for race in races[m]:
            if span := span_of(race.id):
                newest[span] = max(newest.get(span, race.measured_at), race.measured_at)
                ms.setdefault(span, {})[m] = None
    order = sorted(newest, key=lambda span: (-newest[span].timestamp(), span))
    return {span: list(ms[span]) for span in order}


def _layer(
    key: Problem,
    terms: Terms,
    intervals: Sequence[Interval],
    races: Mapping[int, Sequence[Race]],
    like: Race,
) -> Layer:
    used = {m for interval in intervals for m in interval.measured}
    return Layer(
        key.shape.n,
        key.shape.k,
        key.sms,
        terms,
        tuple(intervals),
        like.toolchain,
        max(race.measured_at for m in used for race in races[m]),
        like.source,
        key.dtype,
        key.layout,
        key.d,
        key.epilogue,
    )


def _alike(race: Race, other: Race) -> bool:
    """Whether two races are judged together, as `choose` judges."""
    if not race.measurements or race.toolchain != other.toolchain:
        return False
    return (race.source == "replay") == (other.source == "replay")


def _regret(losses: Sequence[float]) -> Regret:
    return Regret(fmean(losses), max(losses), len(losses))
