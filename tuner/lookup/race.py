"""Races as evidence: what each contender's rounds say beside cuBLAS in the same rounds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from math import prod
from statistics import fmean, median

from tuner.lookup.intervals import median_interval
from tuner.trial import Contender, Measurement, Source, Toolchain, TrialState, shortest_us

SHORTEST_US, LONGEST_US = 1e-6, 1e12
"""Outside this no GEMM was timed, whatever wrote the row; a ratio inside it is finite."""


@dataclass(frozen=True, slots=True)
class Race:
    """Rows of one shuffled race: sample i of each was taken in round i.

    All rows share problem, device, toolchain, source and protocol.
    """

    id: str
    protocol: str
    measurements: tuple[Measurement, ...]

    @property
    def source(self) -> Source:
        return self.measurements[0].source

    @property
    def toolchain(self) -> Toolchain:
        return self.measurements[0].toolchain

    @property
    def driver(self) -> str | None:
        """The driver the race ran under; None if no row could tell."""
        return next((d for row in self.measurements if (d := row.conditions.driver)), None)

    @property
    def measured_at(self) -> datetime:
        return max(row.measured_at for row in self.measurements)

    def finished(self) -> list[Measurement]:
        """The rows with a time in every round they saw, and one that a device can reach."""
        return [
            row
            for row in self.measurements
            if row.state is TrialState.OK and row.samples_us and _possible(row)
        ]

    def cublas_us(self) -> tuple[float, ...]:
        """cuBLAS's time in each round, the mean where an A/A pair ran; empty if it did not run."""
        pair = [row.samples_us for row in self.finished() if row.contender.name == "cublas"]
        if len({len(samples) for samples in pair}) != 1:
            return ()
        return tuple(fmean(of_round) for of_round in zip(*pair, strict=True))


@dataclass(frozen=True)
class Evidence:
    """One contender under one protocol, the rounds of every race it ran in."""

    protocol: str
    rows: tuple[Measurement, ...]
    cublas_us: tuple[float, ...]
    race_ids: frozenset[str]

    @cached_property
    def samples_us(self) -> tuple[float, ...]:
        return tuple(sample for row in self.rows for sample in row.samples_us)

    @cached_property
    def ratios(self) -> tuple[float, ...]:
        """cuBLAS's time over ours, round by round: above 1, we are faster."""
        return tuple(c / o for c, o in zip(self.cublas_us, self.samples_us, strict=True))

    @cached_property
    def ratio(self) -> float:
        return median(self.ratios)


@dataclass(frozen=True)
class Candidate:
    """One contender with its evidence under each protocol that counts."""

    contender: Contender
    evidence: tuple[Evidence, ...]

    @cached_property
    def score(self) -> float:
        """Geometric mean over protocols of cuBLAS / ours."""
        return _geometric_mean([e.ratio for e in self.evidence])

    @cached_property
    def interval(self) -> tuple[float, float]:
        """95 % interval of each protocol's ratio, joined as the score joins the ratios."""
        bounds = [median_interval(e.ratios) for e in self.evidence]
        return (
            _geometric_mean([low for low, _ in bounds]),
            _geometric_mean([high for _, high in bounds]),
        )

    @property
    def loses(self) -> bool:
        """Slower than cuBLAS under some protocol."""
        return any(e.ratio < 1 for e in self.evidence)


def candidates(races: Iterable[Race], protocols: Sequence[str]) -> list[Candidate]:
    """Every contender that was raced against cuBLAS under all of `protocols`."""
    rows: dict[Contender, dict[str, list[tuple[Race, Measurement, tuple[float, ...]]]]] = {}
    for race in races:
        cublas_us = race.cublas_us()
        for row in race.finished() if race.protocol in protocols else ():
            if len(row.samples_us) == len(cublas_us):
                by_protocol = rows.setdefault(row.contender, {})
                by_protocol.setdefault(race.protocol, []).append((race, row, cublas_us))
    return [
        Candidate(
            contender,
            tuple(
                Evidence(
                    protocol,
                    tuple(row for _, row, _ in found[protocol]),
                    tuple(us for _, _, cublas_us in found[protocol] for us in cublas_us),
                    frozenset(race.id for race, _, _ in found[protocol]),
                )
                for protocol in protocols
            ),
        )
        for contender, found in rows.items()
        if all(protocol in found for protocol in protocols)
    ]


def races_of(raced: Iterable[Measurement]) -> list[Race]:
    """Rows of one problem as the races they were measured in, in the order of their first rows."""
    together: dict[tuple[object, ...], list[Measurement]] = {}
    for row in raced:
        # One race has one of each; rows that differ could not be compared.
        key = (row.race, row.protocol, row.source, row.toolchain)
        together.setdefault(key, []).append(row)
    return [Race(str(key[0]), rows[0].protocol, tuple(rows)) for key, rows in together.items()]


def _possible(row: Measurement) -> bool:
    shortest = max(SHORTEST_US, shortest_us(row.problem, row.contender, row.device_key))
    return all(shortest <= sample <= LONGEST_US for sample in row.samples_us)


def _geometric_mean(values: Sequence[float]) -> float:
    # One protocol asked for: its ratio, to the last bit.
    return values[0] if len(values) == 1 else prod(values) ** (1 / len(values))
