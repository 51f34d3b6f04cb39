"""Tune a layer: a few Ms, more where these answer badly, then each winner at every M."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tuner.errors import DeviceError, DeviceUnavailable, DoesNotFit
from tuner.lookup.cross_races import Span, span_of
from tuner.lookup.layer import at_m, layer_key
from tuner.lookup.layer_plan import MOST_MS, first_ms, next_m
from tuner.shape import Problem
from tuner.study.cross_race import CrossRace, Winner, stored_rows, winners
from tuner.study.ports import Tools
from tuner.study.progress import Budget, Event, OnEvent, Remark, ShapeEnded, ShapeStarted
from tuner.study.run import WAIT_S, run_all, stored_setbacks
from tuner.study.turns import Turns
from tuner.trial import Measurement, ShapeOutcome, ShapeState


@dataclass(frozen=True, slots=True)
class LayerTask:
    """key: the problem of the layer with M = 1. span: the Ms that are to be answered.

    Raises: InvalidLayer for a span that a dozen Ms do not cover.
    """

    key: Problem
    span: Span

    def __post_init__(self) -> None:
        first_ms(self.key, self.span.low, self.span.high)

    @property
    def most_ms(self) -> int:
        return min(MOST_MS, self.span.high - self.span.low + 1)

    def __str__(self) -> str:
        shape = self.key.shape
        return f"layer N={shape.n} K={shape.k}, M {self.span}"


def run_layers(
    tasks: Sequence[LayerTask], tools: Tools, budget: Budget, on_event: OnEvent = lambda _: None
) -> list[ShapeOutcome]:
    """Tune every layer, one after the other; the outcomes of all their Ms.

    What was finished before is not done again: the same tasks go on where they stopped.
    Raises: as `run_all`.
    """
    outcomes: list[ShapeOutcome] = []
    total = sum(task.most_ms for task in tasks)
    before = 0
    for task in tasks:
        outcomes += _Layer(task, tools, budget, on_event, before, total).run()
        before += task.most_ms
    return outcomes


class _Layer:
    """The tuning of one layer; `before` of `total` Ms belong to the layers before it."""

    def __init__(
        self,
        task: LayerTask,
        tools: Tools,
        budget: Budget,
        on_event: OnEvent,
        before: int,
        total: int,
    ) -> None:
        self._task, self._tools, self._budget = task, tools, budget
        self._on_event, self._before, self._total = on_event, before, total
        self._outcomes: dict[int, ShapeOutcome] = {}

    def run(self) -> list[ShapeOutcome]:
        span = self._task.span
        planned = first_ms(self._task.key, span.low, span.high)
        self._tune(sorted({*planned, *self._crossed_before()}))
        won = {m: winners(self._at(m), self._tools) for m in self._tuned()}
        while len(self._outcomes) < self._task.most_ms:
            m = next_m(self._task.key, {m: configs[0] for m, configs in won.items() if configs})
            if m is None or m in self._outcomes:
                break
            self._tune([m])
            if m in self._tuned():
                won[m] = winners(self._at(m), self._tools)
                won = dict(sorted(won.items()))
        self._cross([(self._at(m), config) for m, configs in won.items() for config in configs])
        return [self._outcomes[m] for m in sorted(self._outcomes)]

    def _crossed_before(self) -> list[int]:
        """Ms of this very span that had a cross race: they stay, whatever is planned by now."""
        span, key = self._task.span, self._tools.device.identify().key
        tuned = (outcome.problem for outcome in self._tools.repository.shapes(key))
        same = [problem for problem in tuned if layer_key(problem) == self._task.key]
        return [
            problem.shape.m
            for problem in same
            if any(
                row.race and span_of(row.race) == span for row in stored_rows(problem, self._tools)
            )
        ]

    def _at(self, m: int) -> Problem:
        return at_m(self._task.key, m)

    def _tuned(self) -> list[int]:
        return sorted(m for m, o in self._outcomes.items() if o.state is ShapeState.TUNED)

    def _tune(self, ms: Sequence[int]) -> None:
        position = self._before + len(self._outcomes)

        def counted(event: Event) -> None:
            if isinstance(event, ShapeStarted | ShapeEnded):
                event = replace(event, position=position + event.position, total=self._total)
            self._on_event(event)

        ended = run_all([self._at(m) for m in ms], self._tools, self._budget, counted)
        self._outcomes |= {outcome.problem.shape.m: outcome for outcome in ended}

    def _cross(self, won: Sequence[Winner]) -> None:
        """A cross race at every M that was tuned; those that another driver has come last."""
        turns, setbacks = Turns(self._tools), stored_setbacks(self._tools)
        left = self._tuned() if len(self._tuned()) > 1 else []
        while left:
            taken = []
            for m in left:
                lease = turns.claim(self._at(m))
                if lease is None:
                    taken.append(m)
                    continue
                with lease:
                    self._cross_at(m, won, setbacks)
            if len(taken) == len(left):
                time.sleep(WAIT_S)
            left = taken

    def _cross_at(self, m: int, won: Sequence[Winner], setbacks: list[Measurement]) -> None:
        study = CrossRace(self._at(m), self._tools, self._budget, self._on_event, setbacks)
        try:
            if study.run_over(self._task.span, won):
                return
            reason = "no winner could be raced."
        except DeviceUnavailable:
            raise
        except (DeviceError, DoesNotFit) as error:
            reason = str(error)
        self._on_event(Remark(f"{self._task}: no cross race at M={m}: {reason}"))
