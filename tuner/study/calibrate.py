"""On a card that nobody tuned on: what is fastest elsewhere is timed here, within a time budget.

The shapes whose best config saves most beside cuBLAS elsewhere come first. Rows are those of any
race; no outcome is stored, so that a later run still tunes the shapes.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from tuner.config import KernelConfig
from tuner.lookup import Race
from tuner.lookup.adapt import adapted
from tuner.lookup.leaders import leaders
from tuner.shape import Problem
from tuner.study.ports import Tools
from tuner.study.retiming import retime
from tuner.study.revalidate import TOP, RacesOf
from tuner.trial import ShapeState


@dataclass(frozen=True, slots=True)
class Proposal:
    """What to time for one problem of this device.

    ratios: of each config, best first, cuBLAS / ours where it was measured.
    saved_us: what its best config takes less than cuBLAS there, in microseconds of one product.
    """

    problem: Problem
    ratios: Mapping[KernelConfig, float]
    saved_us: float


@dataclass(frozen=True, slots=True)
class Calibrated:
    """One shape. ratios: of the configs that were timed here, best first; empty if none was."""

    proposal: Proposal
    state: ShapeState
    detail: str
    ratios: Mapping[KernelConfig, float]
    seconds: float

    @property
    def winner_kept(self) -> bool:
        return bool(self.ratios) and next(iter(self.ratios)) == next(iter(self.proposal.ratios))

    @property
    def ranking_kept(self) -> bool:
        """The configs that were timed are in the order that they had elsewhere."""
        there = [config for config in self.proposal.ratios if config in self.ratios]
        return bool(self.ratios) and there == list(self.ratios)


def propose(measured: Iterable[Sequence[Race]], there_sms: int, here_sms: int) -> list[Proposal]:
    """The TOP configs of each problem, most valuable first; one item of `measured` a problem.

    there_sms: of the device that was measured on. A problem of all its multiprocessors is asked of
    all those here, its configs adapted; one of fewer stays as it is where there are as many.
    """
    found = []
    for races in measured:
        best = leaders(races, TOP)
        if not best:
            continue
        won_on = best[0].evidence[0].rows[0].problem
        here = replace(won_on, sms=here_sms) if won_on.sms == there_sms else won_on
        if here.sms > here_sms:
            continue
        ratios: dict[KernelConfig, float] = {}
        for candidate in best:
            config = candidate.contender.config
            if config and (fitting := adapted(config, won_on, here)):
                ratios.setdefault(fitting, candidate.score)
        shown = best[0].evidence[0]
        if ratios:
            saved_us = median(shown.cublas_us) - median(shown.samples_us)
            found.append(Proposal(here, ratios, saved_us))
    return sorted(found, key=lambda p: (-p.saved_us, p.problem))


def calibrate(
    proposals: Sequence[Proposal],
    tools: Tools,
    races_of: RacesOf,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Calibrated]:
    """Time the proposals in order, and end before the next one would overrun `seconds`, if it
    takes as long as the longest so far; the first is always timed.

    Raises: DeviceUnavailable, StoreError, or CompileError where no compiler works.
    """
    began, longest_s = clock(), 0.0
    for number, proposal in enumerate(proposals):
        started = clock()
        if number and started - began + longest_s > seconds:
            return
        retimed = retime(proposal.problem, list(proposal.ratios), tools)
        now = [
            race
            for race in races_of(proposal.problem)
            if {row.run_id for row in race.measurements} == {tools.run_id}
        ]
        here = {c.contender.config: c.score for c in leaders(now, TOP) if c.contender.config}
        took_s = clock() - started
        longest_s = max(longest_s, took_s)
        outcome = retimed.outcome
        yield Calibrated(proposal, outcome.state, outcome.detail, here, took_s)
