"""After a change of kernel, compiler or driver: what was tuned before is timed again, not dropped.

Only the first few configs of a shape race again. Where the winner holds, the shape counts as tuned
with the current kernel; where it drifted, the shape's outcome says so and a run tunes it anew.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from tuner.config import KernelConfig
from tuner.lookup import Race
from tuner.lookup.choose import COUNTED_PROTOCOLS, TIE_MARGIN
from tuner.lookup.leaders import leaders
from tuner.lookup.race import Candidate
from tuner.shape import Problem
from tuner.study.ports import Lease, Tools
from tuner.study.retiming import retime
from tuner.study.turns import Alone
from tuner.trial import ShapeOutcome, ShapeState

TOP = 4
"""Configs of a shape that are timed again: its winner, what tied with it, and the next."""
RacesOf = Callable[[Problem], Sequence[Race]]
"""Every stored race of a problem on this device."""


class Drift(StrEnum):
    """What became of a shape's winner; `drifted` beyond the tie margin or below another config."""

    CURRENT = "current"
    KEPT = "kept"
    DRIFTED = "drifted"
    NOT_TUNED = "not_tuned"
    TAKEN = "taken"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Revalidated:
    """One shape. Ratios are cuBLAS / ours as `choose` ranks them.

    config, old_ratio: the stored winner and its ratio. new_ratio: of the same config now; None if
    it was not timed or is no longer right. winner: the best of those timed now.
    """

    problem: Problem
    drift: Drift
    detail: str = ""
    config: KernelConfig | None = None
    old_ratio: float | None = None
    new_ratio: float | None = None
    winner: KernelConfig | None = None
    timed: int = 0
    outcome: ShapeOutcome | None = None


def revalidate(problem: Problem, tools: Tools, races_of: RacesOf) -> Revalidated:
    """Time the first TOP configs of `problem` again, unless its races are of the current toolchain
    and driver; the rows are stored as those of any race.

    Raises: DeviceUnavailable, StoreError, or CompileError where no compiler works.
    """
    identity, toolchain = tools.device.identify(), tools.compiler.toolchain()
    stored = [race for race in races_of(problem) if _counts(race, tools)]
    fresh = [r for r in stored if r.toolchain == toolchain and r.driver in (None, identity.driver)]
    if leaders(fresh, 1):
        return Revalidated(problem, Drift.CURRENT)
    best = leaders(stored, TOP)
    configs = [c.contender.config for c in best if c.contender.config]
    if not configs:
        return Revalidated(problem, Drift.NOT_TUNED, f"{problem.shape} has no stored config.")
    lease: Lease = Alone()
    if tools.leases is not None:
        claimed = tools.leases.claim(problem, identity.key, toolchain, tools.source)
        if claimed is None:
            return Revalidated(problem, Drift.TAKEN, "another driver tunes it now.")
        lease = claimed
    with lease:
        retimed = retime(problem, configs, tools)
        begun = Revalidated(
            problem,
            Drift.FAILED,
            retimed.outcome.detail,
            configs[0],
            best[0].score,
            timed=len(configs),
            outcome=retimed.outcome,
        )
        if retimed.outcome.state is not ShapeState.TUNED:
            return begun
        now = [r for r in races_of(problem) if {m.run_id for m in r.measurements} == {tools.run_id}]
        done = _compared(begun, leaders(now, TOP))
        if done.outcome is not None and done.drift in (Drift.KEPT, Drift.DRIFTED):
            tools.repository.finish_shape(done.outcome)
    return done


def _counts(race: Race, tools: Tools) -> bool:
    """A replay says nothing of a real device, nor the reverse."""
    replayed = race.source == "replay"
    return race.protocol in COUNTED_PROTOCOLS and replayed == (tools.source == "replay")


def _compared(begun: Revalidated, now: Sequence[Candidate]) -> Revalidated:
    """The drift of the stored winner; the first of `now` is the winner of today."""
    if not now or begun.old_ratio is None or begun.outcome is None:
        return replace(begun, detail="no race had a kernel and cuBLAS that finished.")
    again = next((c for c in now if c.contender.config == begun.config), None)
    new_ratio = again.score if again else None
    winner = now[0].contender.config
    done = replace(begun, new_ratio=new_ratio, winner=winner, drift=Drift.KEPT)
    moved = new_ratio is None or abs(new_ratio / begun.old_ratio - 1) > TIE_MARGIN
    if winner == begun.config and not moved:
        return done
    became = "is not right any more" if new_ratio is None else f"is now {new_ratio:.3f} x cuBLAS"
    detail = f"its winner was {begun.old_ratio:.3f} x cuBLAS and {became}"
    detail += "." if winner == begun.config else "; another config is faster."
    outcome = replace(begun.outcome, detail=detail)
    return replace(done, drift=Drift.DRIFTED, detail=detail, outcome=outcome)
