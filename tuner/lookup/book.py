"""One device's answers in memory, and what they teach about problems that were not measured."""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import count
from math import log
from statistics import fmean
from typing import Self

from tuner.config import KernelConfig
from tuner.errors import TunerError
from tuner.legality import faults
from tuner.lookup.answer import Answer
from tuner.lookup.cost_model import H200, CostModel, estimate_us
from tuner.lookup.entries import Entry, answer_of, problem_of
from tuner.lookup.layer import Layer, layer_key
from tuner.lookup.miss import Miss
from tuner.lookup.neighbours import Neighbours
from tuner.lookup.snapshot import Snapshot
from tuner.lookup.terms import ALL_TERMS, Terms
from tuner.shape import Problem
from tuner.trial import Toolchain

WINNERS = 3
"""Configs that a shape lends: its best and others that tied with it."""
MOST_REMEMBERED = 20_000
"""Look-ups that a book remembers before it forgets them all."""

_serials = count()

Measured = tuple[Answer, Mapping[str, Answer]]
"""The best answer of a problem, and the best on other terms by label."""
Told = Answer | Entry
Kind = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one measured problem teaches on some terms.

    winners: configs with how far, in ln(time), each was off the analytic model.
    """

    problem: Problem
    answer: Answer
    winners: tuple[tuple[KernelConfig, float], ...]

    @property
    def off(self) -> float:
        """How far the model was off on the best config."""
        return self.winners[0][1]


class Book:
    """Immutable but for its memory of what was asked; any thread may ask.

    refused: why a problem was tuned and has no answer, so that none is made up for it.
    current: the toolchain in use; answers made with another are marked stale.
    model: guesses how long configs take that were not measured.
    """

    def __init__(
        self,
        device_key: str,
        device_name: str,
        answers: Iterable[Measured] = (),
        layers: Iterable[Layer] = (),
        refused: Mapping[Problem, Miss] | None = None,
        current: Toolchain | None = None,
        model: CostModel = H200,
    ) -> None:
        told = {best.problem: {"": best, **under} for best, under in answers}
        self._fill(device_key, device_name, told, layers, refused, current, model)

    @classmethod
    def from_snapshot(
        cls,
        snapshot: Snapshot,
        current: Toolchain | None = None,
    ) -> Self:
        """Entries are read when they are asked for; one that this version cannot read, or whose
        config breaks a rule, is absent.

        Raises: InvalidSnapshot.
        """
        book = cls.__new__(cls)
        told = {problem_of(entry): {"": entry, **entry["under"]} for entry in snapshot.entries}
        key, name = snapshot.device_key, snapshot.device_name
        book._fill(key, name, told, snapshot.layers, snapshot.refused, current, H200)
        return book

    def _fill(
        self,
        device_key: str,
        device_name: str,
        told: Mapping[Problem, Mapping[str, Told]],
        layers: Iterable[Layer],
        refused: Mapping[Problem, Miss] | None,
        current: Toolchain | None,
        model: CostModel,
    ) -> None:
        self.device_key, self.device_name, self.model = device_key, device_name, model
        self._told, self._current = told, current
        self._refused = dict(refused or {})
        self._layers = _by_key(layers)
        kinds: dict[Kind, list[Problem]] = {}
        for problem in sorted(told):
            kinds.setdefault(_kind(problem), []).append(problem)
        self._neighbours = {kind: Neighbours(problems) for kind, problems in kinds.items()}
        self._exact: dict[tuple[Problem, Terms], Answer | None] = {}
        self._lessons: dict[tuple[Problem, Terms], Lesson | None] = {}
        self._usual: dict[tuple[Kind, Terms], float | None] = {}
        self._remembered: dict[object, Answer | Miss] = {}
        self.serial = next(_serials)

    def revised(
        self,
        changed: Mapping[Problem, Measured | Miss | None],
        layers: Iterable[Layer] | None = None,
    ) -> Self:
        """The book after these problems were measured anew; None: with nothing to tell.

        layers: all there are now; None: as before. Costs a copy, and keeps what was learnt of the
        other problems.
        """
        book = copy(self)
        if layers is not None:
            book._layers = _by_key(layers)
        told, book._refused = dict(self._told), dict(self._refused)
        for problem, found in changed.items():
            told.pop(problem, None)
            book._refused.pop(problem, None)
            if isinstance(found, Miss):
                book._refused[problem] = found
            elif found is not None:
                told[problem] = {"": found[0], **found[1]}
        book._told = told
        book._neighbours = dict(self._neighbours)
        for kind in {_kind(problem) for problem in changed}:
            gone = [p for p in changed if _kind(p) == kind and p in self._told and p not in told]
            come = [p for p in changed if _kind(p) == kind and p not in self._told and p in told]
            if gone or come:
                before = self._neighbours.get(kind, Neighbours(()))
                book._neighbours[kind] = before.changed(gone, come)
        # Whole copies first: other threads add to these.
        book._exact, book._lessons = dict(self._exact), dict(self._lessons)
        for key in ((problem, terms) for problem in changed for terms in ALL_TERMS):
            book._exact.pop(key, None)
            book._lessons.pop(key, None)
        book._usual, book._remembered = {}, {}
        book.serial = next(_serials)
        return book

    def __len__(self) -> int:
        return len(self._told)

    def __bool__(self) -> bool:
        return True  # one without answers may still refuse some

    def __contains__(self, problem: object) -> bool:
        return problem in self._told

    @property
    def problems(self) -> Sequence[Problem]:
        """Every problem with an answer, in order."""
        return sorted(self._told)

    @property
    def layers(self) -> Sequence[Layer]:
        return [layer for found in self._layers.values() for layer in found]

    def refusal(self, problem: Problem) -> Miss | None:
        """Why a problem that was tuned has no answer."""
        return self._refused.get(problem)

    def stale(self, toolchain: Toolchain) -> bool:
        """Whether something was made with another toolchain than the current one."""
        return self._current is not None and toolchain != self._current

    def recall(self, asked: object) -> Answer | Miss | None:
        """What `remember` was told of this question, if it was not forgotten."""
        return self._remembered.get(asked)

    def remember(self, asked: object, found: Answer | Miss) -> Answer | Miss:
        """`found`, which later answers the same question at once."""
        if len(self._remembered) >= MOST_REMEMBERED:
            self._remembered = {}
        self._remembered[asked] = found
        return found

    def exact(self, problem: Problem, terms: Terms) -> Answer | None:
        """What was measured for just this."""
        told = self._told.get(problem)
        if told is None or terms.label not in told:
            return None
        key = (problem, terms)
        if key not in self._exact:
            self._exact[key] = self._read(told[terms.label])
        return self._exact[key]

    def layer(self, problem: Problem, terms: Terms) -> Layer | None:
        """The layer whose intervals hold M, chosen for the same protocol."""
        found = self._layers.get(layer_key(problem), ())
        fitting = [
            layer
            for layer in found
            if layer.terms.protocol == terms.protocol
            and (interval := layer.interval(problem.shape.m))
            and terms.admit(interval.config)
        ]
        # One that was chosen for just these terms, if there is one.
        return min(
            fitting, key=lambda layer: (layer.terms != terms, layer.terms.label), default=None
        )

    def near(
        self, problem: Problem, terms: Terms, reach: float, count: int
    ) -> list[tuple[float, Lesson]]:
        """What up to `count` problems within `reach` teach, the nearest first."""
        neighbours = self._neighbours.get(_kind(problem))
        if neighbours is None:
            return []
        found = neighbours.within(problem, reach, count)
        return [(away, lesson) for away, p in found if (lesson := self._lesson(p, terms))]

    def usual(self, problem: Problem, terms: Terms) -> float | None:
        """How far, in ln(time), the model is off on this device on average; None if unknown."""
        kind = _kind(problem)
        key = (kind, terms)
        if key not in self._usual:
            lessons = (self._lesson(p, terms) for p in self._told if _kind(p) == kind)
            off = [lesson.off for lesson in lessons if lesson]
            self._usual[key] = fmean(off) if off else None
        return self._usual[key]

    def _read(self, told: Told) -> Answer | None:
        if isinstance(told, Answer):
            answer = told
        else:
            try:
                answer = answer_of(told, self.device_key, self.device_name)
            except (KeyError, TypeError, ValueError, TunerError):
                return None
            if faults(answer.config, answer.problem):
                return None
        turned = self.stale(answer.toolchain) and not answer.stale
        return replace(answer, stale=True) if turned else answer

    def _lesson(self, problem: Problem, terms: Terms) -> Lesson | None:
        key = (problem, terms)
        if key not in self._lessons:
            self._lessons[key] = self._learnt(problem, terms)
        return self._lessons[key]

    def _learnt(self, problem: Problem, terms: Terms) -> Lesson | None:
        """From what is best on these terms or, without it, on others and meets these."""
        for asked in dict.fromkeys((terms, Terms(terms.protocol), Terms())):
            answer = self.exact(problem, asked)
            if answer is None or not answer.timings:
                continue
            median_us = answer.timings[0].median_us
            winners = []
            for config in (answer.config, *answer.ties)[:WINNERS]:
                off = log(median_us / estimate_us(problem, config, self.model))
                launched = _plainly(config) if terms.plain else config
                if terms.admit(launched):
                    winners.append((launched, off))
            if winners:
                return Lesson(problem, answer, tuple(winners))
        return None


def _by_key(layers: Iterable[Layer]) -> dict[Problem, list[Layer]]:
    found: dict[Problem, list[Layer]] = {}
    for layer in layers:
        found.setdefault(layer.key, []).append(layer)
    return found


def _kind(problem: Problem) -> Kind:
    return problem.dtype, problem.layout, problem.epilogue


def _plainly(config: KernelConfig) -> KernelConfig:
    if not config.knobs.dependent_launch:
        return config
    return replace(config, knobs=replace(config.knobs, dependent_launch=False))
