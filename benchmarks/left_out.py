"""What look-ups would have answered for a measured shape, had nobody measured it.

Every recorded shape is left out in turn; the others, as the service would hold them, are asked for
it, and the recorded race tells how much slower the answer is than the best config there. Leaving
out its neighbours as well shows how a tier does farther away.

Launches are compared as plain ones: few were recorded as dependent ones too. A config that was not
recorded for the left-out shape is scored as the recorded config most like it (`unlikeness`), times
what the analytic model, fitted without the shape, says that the two differ by; how many were
recorded is counted. All rules are scored so, the naive ones too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf, log, log2
from statistics import fmean, median
from typing import Any, get_args

from tuner.config import PROMOTIONS, Eviction, KernelConfig, Raster
from tuner.device.replay import Recording
from tuner.legality import faults
from tuner.lookup import Answer, Book, Race, answers_on_terms, find
from tuner.lookup.adapt import adapted
from tuner.lookup.cost_model import CostModel, estimate_us
from tuner.lookup.distance import distance
from tuner.lookup.race import Candidate, candidates
from tuner.search.space import article_config
from tuner.shape import Problem
from tuner.trial import PROTOCOL_COOL, PROTOCOL_HOT

RADII = (0.0, 0.5, 1.0, 2.0, 3.0, 4.5, inf)
"""Shapes at most so many doublings from the left-out one are left out with it."""
TILE, RING, KNOB = 1.0, 0.5, 0.1
"""What a difference in tiles, rings and launch knobs counts for; `tuner/search/surrogate.py`
orders them alike."""


@dataclass(frozen=True)
class Recorded:
    """One shape: what the service would hold of it, and every config raced as a plain launch."""

    problem: Problem
    best: Answer
    under: Mapping[str, Answer]
    raced: Mapping[KernelConfig, Candidate]

    @property
    def best_score(self) -> float:
        return max(candidate.score for candidate in self.raced.values())

    @property
    def plain_best(self) -> KernelConfig:
        return max(self.raced, key=lambda config: (self.raced[config].score, config))

    def like(self, config: KernelConfig) -> KernelConfig:
        """`config`, or the recorded one most like it."""
        if config in self.raced:
            return config
        return min(self.raced, key=lambda other: (unlikeness(config, other), other))

    def regret(self, config: KernelConfig, like: KernelConfig, model: CostModel) -> float:
        """How much slower than the best recorded, hot and cool together: 0.03 is 3 %.

        like: the recorded config that `config` is scored as. Nothing is faster than the recorded.
        """
        slower = self.best_score / self.raced[like].score * self._modelled(config, like, model)
        return max(slower - 1, 0.0)

    def us(
        self, config: KernelConfig, like: KernelConfig, model: CostModel, protocol: str
    ) -> float:
        """What `config` takes under `protocol`, measured as `like`."""
        evidence = self.raced[like].evidence
        measured = median(next(e.samples_us for e in evidence if e.protocol == protocol))
        return measured * self._modelled(config, like, model)

    def _modelled(self, config: KernelConfig, like: KernelConfig, model: CostModel) -> float:
        return estimate_us(self.problem, config, model) / estimate_us(self.problem, like, model)


@dataclass(frozen=True)
class Case:
    """One left-out shape answered by one rule.

    radius: what else was left out. log_off: ln of the time over what was predicted, hot; None for
    a rule that predicts nothing. recorded: the very config was raced there.
    """

    problem: Problem
    rule: str
    radius: float
    regret: float
    recorded: bool
    distance: float | None = None
    log_off: float | None = None


def recorded_shapes(recording: Recording) -> list[Recorded]:
    """Shapes of a recording that were raced hot and cool."""
    found = []
    for problem in recording.problems():
        protocols = (PROTOCOL_HOT, PROTOCOL_COOL)
        rows = {protocol: tuple(recording.race(problem, protocol)) for protocol in protocols}
        if not all(rows.values()):
            continue
        races = [Race(protocol, protocol, rows[protocol]) for protocol in protocols]
        raced = {
            c.contender.config: c
            for c in candidates(races, protocols)
            if c.contender.config and not c.contender.config.knobs.dependent_launch
        }
        if (answers := answers_on_terms(races)) is not None:
            found.append(Recorded(problem, *answers, raced))
    return found


def left_out(
    shapes: Sequence[Recorded], device_key: str, model_without: Callable[[Problem], CostModel]
) -> Iterator[Case]:
    """Every shape, answered by every rule from the others."""
    lent = Lent()
    for asked in shapes:
        model = model_without(asked.problem)
        seen: set[frozenset[Problem]] = set()
        for radius in RADII:
            known = [
                s for s in shapes if s is not asked and distance(s.problem, asked.problem) > radius
            ]
            if (key := frozenset(s.problem for s in known)) in seen:
                continue
            seen.add(key)
            yield from _look_up(asked, known, radius, device_key, model)
            if not radius and known:
                yield from _naive(asked, known, lent, model)


def _look_up(
    asked: Recorded, known: Sequence[Recorded], radius: float, device_key: str, model: CostModel
) -> Iterator[Case]:
    answers = [(s.best, s.under) for s in known]
    book = Book(device_key, device_key, answers, model=model)
    answer = find(asked.problem, {device_key: book}, device_key=device_key, plain=True)
    if not isinstance(answer, Answer) or not (interval := answer.confidence.ci95_us):
        return
    predicted = (interval[0] * interval[1]) ** 0.5
    like = asked.like(answer.config)
    yield Case(
        asked.problem,
        answer.match.tier,
        radius,
        asked.regret(answer.config, like, model),
        answer.config in asked.raced,
        answer.confidence.distance,
        log(asked.us(answer.config, like, model, PROTOCOL_HOT) / predicted),
    )


NAIVE = (
    "the best of the nearest M",
    "the best of the nearest shape",
    "the config best on the other shapes",
    "one default config, the article's",
)


class Lent:
    """The best config of one shape as it is launched for another, worked out once for each pair."""

    def __init__(self) -> None:
        self._found: dict[tuple[Problem, Problem], tuple[KernelConfig, KernelConfig] | None] = {}

    def __call__(
        self, winner: Recorded, there: Recorded, model: CostModel
    ) -> tuple[KernelConfig, float] | None:
        """The config and its regret there; None if it is not legal there."""
        pair = (winner.problem, there.problem)
        if pair not in self._found:
            config = adapted(winner.plain_best, *pair)
            legal = config is not None and not faults(config, there.problem)
            self._found[pair] = (config, there.like(config)) if config and legal else None
        if (found := self._found[pair]) is None:
            return None
        return found[0], there.regret(*found, model)


def _naive(
    asked: Recorded, known: Sequence[Recorded], lent: Lent, model: CostModel
) -> Iterator[Case]:
    """What is done without a model: each rule's first config that is legal here."""
    problem = asked.problem
    m = problem.shape.m

    def by_m(s: Recorded) -> tuple[float, float]:
        return abs(log2(s.problem.shape.m / m)), distance(s.problem, problem)

    def by_shape(s: Recorded) -> float:
        return distance(s.problem, problem)

    def elsewhere(winner: Recorded) -> float:
        """Mean regret over the known shapes."""
        return fmean(found[1] if (found := lent(winner, there, model)) else inf for there in known)

    keys: tuple[Callable[[Recorded], Any], ...] = (by_m, by_shape, elsewhere)
    for rule, key in zip(NAIVE, keys, strict=False):
        legal = (found for s in sorted(known, key=key) if (found := lent(s, asked, model)))
        for config, regret in islice(legal, 1):
            yield Case(problem, rule, 0.0, regret, config in asked.raced)
    article = article_config(problem)
    regret = asked.regret(article, asked.like(article), model)
    yield Case(problem, NAIVE[-1], 0.0, regret, article in asked.raced)


def unlikeness(a: KernelConfig, b: KernelConfig) -> float:
    """How differently two configs may be expected to do: tiles count most, then rings, knobs."""
    return sum(abs(x - y) for x, y in zip(coordinates(a), coordinates(b), strict=True))


def coordinates(c: KernelConfig) -> list[float]:
    """What `unlikeness` compares, to be subtracted and summed."""
    v, k = c.variant, c.knobs
    tile = [
        log2(v.block_m),
        log2(v.block_n),
        v.consumers / 2,
        log2(k.split_k) / 2,
        v.transposed_store / 2,
        v.schedule == "pingpong",
        (v.split == "n") / 2,
        2 * (v.reduction != "none"),
    ]
    ring = [
        log2(v.stages),
        log2(v.slabs_per_stage),
        log2(v.cluster_m),
        log2(v.cluster_n),
        v.consumer_registers / 64,
    ]
    # One that is chosen by name is two halves apart from any other.
    named: list[tuple[object, tuple[object, ...]]] = [
        (k.raster, get_args(Raster)),
        (k.promotion, PROMOTIONS),
        (k.evict_a, get_args(Eviction)),
        (k.evict_b, get_args(Eviction)),
    ]
    knob = [
        k.num_sms / 6,
        log2(k.group) / 2,
        k.dependent_launch,
        *((chosen == one) / 2 for chosen, every in named for one in every),
    ]
    return [*(TILE * x for x in tile), *(RING * x for x in ring), *(KNOB * x for x in knob)]
