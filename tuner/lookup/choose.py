"""Which config is best, by rules that the server, the command line and the client share.

A config is judged only by its ratio to cuBLAS within a race, never by times of two races. The
rules do not depend on the order in which rows arrive.
"""

from collections.abc import Sequence
from statistics import median

from tuner.config import KernelConfig
from tuner.lookup.answer import Answer, Library, Match, Timing, Use
from tuner.lookup.intervals import median_interval
from tuner.lookup.numerics import Numerics, numerics_of
from tuner.lookup.race import Candidate, Evidence, Race, candidates
from tuner.trial import PROTOCOL_COOL, PROTOCOL_HOT, Contender, Source, Toolchain

TIE_MARGIN = 0.005
"""Configs whose ratios differ by less are equal if their intervals overlap as well."""
DEFAULT_PROTOCOLS = ((PROTOCOL_HOT, PROTOCOL_COOL), (PROTOCOL_HOT,), (PROTOCOL_COOL,))
"""Without a protocol asked for, hot and cool both count; a shape raced under one has that one."""

COUNTED_PROTOCOLS = frozenset(name for group in DEFAULT_PROTOCOLS for name in group)
"""All that an answer without a protocol rests on."""


def choose(
    races: Sequence[Race],
    protocol: str | None = None,
    current: Toolchain | None = None,
    current_driver: str | None = None,
    *,
    plain: bool = False,
    numerics: Numerics | None = None,
) -> Answer | None:
    """The best config that `races` of one problem on one device show; None if they show none.

    With `protocol` its best ratio to cuBLAS wins. Without, the best geometric mean of hot and
    cool among the configs that lose to cuBLAS in neither or, where all lose in one, among all.
    Rows of a real device come before replayed ones, then those made with `current`, then the
    newest toolchain; what differs from `current` or `current_driver` is marked stale.
    plain: only configs without dependent launch. numerics: only configs that promise as much; an
    `invariant` answer recommends no library either.
    """
    choices = ((protocol,),) if protocol is not None else DEFAULT_PROTOCOLS
    for group in by_preference(races, current):
        for protocols in choices:
            used = _of_driver(group, protocols, current_driver)
            found = [
                c for c in candidates(used, protocols) if _admitted(c.contender, plain, numerics)
            ]
            if any(c.contender.config is not None for c in found):
                stale = (current is not None and group[0].toolchain != current) or (
                    current_driver is not None and any(r.driver != current_driver for r in used)
                )
                return _answer(found, used, stale).promising(numerics)
    return None


def _admitted(contender: Contender, plain: bool, numerics: Numerics | None) -> bool:
    """Whether a config is one that was asked for; libraries compete all the same."""
    if contender.config is None:
        return True
    launched = not (plain and contender.config.knobs.dependent_launch)
    return launched and (numerics != "invariant" or numerics_of(contender) == "invariant")


def by_preference(races: Sequence[Race], current: Toolchain | None) -> list[list[Race]]:
    """Races split by toolchain, replayed ones apart, the most trustworthy group first."""
    groups: dict[tuple[bool, Toolchain], list[Race]] = {}
    for race in sorted(races, key=lambda race: (race.id, race.protocol)):
        if race.measurements:
            groups.setdefault((race.source == "replay", race.toolchain), []).append(race)

    def rank(key: tuple[bool, Toolchain]) -> tuple[bool, bool, float, str, str]:
        replayed, made_with = key
        newest = max(race.measured_at for race in groups[key]).timestamp()
        return (
            replayed,
            made_with != current,
            -newest,
            made_with.kernel_hash,
            made_with.nvrtc_version,
        )

    return [groups[key] for key in sorted(groups, key=rank)]


def _of_driver(races: list[Race], protocols: Sequence[str], driver: str | None) -> list[Race]:
    """The races of each protocol under `driver`, or all of a protocol that has none."""
    used = []
    for protocol in protocols:
        of_protocol = [race for race in races if race.protocol == protocol]
        fresh = [race for race in of_protocol if race.driver == driver and race.cublas_us()]
        used += fresh if fresh and driver is not None else of_protocol
    return used


def best_of(configs: Sequence[Candidate]) -> tuple[Candidate, list[Candidate]]:
    """The winner, and the others that cannot be told from the fastest, in config order."""
    eligible = [c for c in configs if not c.loses] or list(configs)
    fastest = max(eligible, key=lambda c: (c.score, c.interval))
    tied = [
        c
        for c in eligible
        if c.score >= fastest.score * (1 - TIE_MARGIN) and c.interval[1] >= fastest.interval[0]
    ]
    winner, *others = sorted(tied, key=lambda c: _config(c.contender))
    return winner, others


def _answer(found: Sequence[Candidate], used: Sequence[Race], stale: bool) -> Answer:
    configs = [c for c in found if c.contender.config is not None]
    algorithms = [c for c in found if c.contender.name == "cublaslt"]
    winner, others = best_of(configs)
    use, library = _fastest(winner, algorithms)
    timings = tuple(_timing(e, used) for e in winner.evidence)
    rows = [row for e in winner.evidence for row in e.rows]
    newest = max(rows, key=lambda row: row.measured_at)
    return Answer(
        problem=newest.problem,
        device_key=newest.device_key,
        device_name=newest.device_name,
        match=Match(),
        config=_config(winner.contender),
        timings=timings,
        speedup=winner.score,
        use=use,
        library=library,
        ties=tuple(_config(c.contender) for c in others),
        toolchain=newest.toolchain,
        measured_at=newest.measured_at,
        stale=stale,
        source=_source({row.source for row in rows}),
        numerics=numerics_of(winner.contender),
    )


def _fastest(winner: Candidate, algorithms: Sequence[Candidate]) -> tuple[Use, Library | None]:
    """Whoever measured fastest among those that lose to cuBLAS under no protocol."""
    routine = max(
        (c for c in algorithms if not c.loses),
        key=lambda c: (c.score, c.contender.algorithm or ""),
        default=None,
    )
    if not winner.loses and (routine is None or winner.score >= routine.score):
        return "kernel", None
    if routine is not None and routine.score > 1:
        return "cublaslt", Library(_cublas_version(routine), routine.contender.algorithm)
    return "cublas", Library(_cublas_version(winner), None)


def _cublas_version(candidate: Candidate) -> str | None:
    rows = [row for e in candidate.evidence for row in e.rows if row.conditions.cublas_version]
    newest = max(rows, key=lambda row: row.measured_at, default=None)
    return newest.conditions.cublas_version if newest else None


def _timing(evidence: Evidence, used: Sequence[Race]) -> Timing:
    shape = evidence.rows[0].problem.shape
    median_us = median(evidence.samples_us)
    beside = [r for r in used if r.protocol == evidence.protocol and r.id in evidence.race_ids]
    algorithms: dict[str | None, list[float]] = {}
    for row in (row for race in beside for row in race.finished()):
        if row.contender.name == "cublaslt":
            algorithms.setdefault(row.contender.algorithm, []).extend(row.samples_us)
    return Timing(
        protocol=evidence.protocol,
        median_us=median_us,
        tflops=shape.flops / median_us / 1e6,
        ci95_us=median_interval(evidence.samples_us),
        samples=len(evidence.samples_us),
        speedup=evidence.ratio,
        cublas_us=median(evidence.cublas_us),
        cublaslt_best_us=min(map(median, algorithms.values()), default=None),
    )


def _source(sources: set[Source]) -> Source:
    return next(s for s in ("measured", "import", "replay") if s in sources)


def _config(contender: Contender) -> KernelConfig:
    assert contender.config is not None
    return contender.config
