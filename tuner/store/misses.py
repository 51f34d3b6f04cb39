"""Look-ups that had no exact answer: counted, and ranked by what tuning them would save.

What a look-up is expected to save is the share of time its answer loses (the regret of the tier
that served it) times how long the product takes. That time is a roofline: it only ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Double,
    Exists,
    Select,
    and_,
    case,
    cast,
    delete,
    exists,
    func,
    or_,
    select,
    tuple_,
)
from sqlalchemy.dialects import postgresql, sqlite

from tuner.lookup.cost_model import DRAM_BYTES_PER_US, H200
from tuner.shape import ELEMENT_BYTES, TMA_ROW_MULTIPLE, OutputLayout, Problem
from tuner.store.leases import database_time
from tuner.store.repository import Repository
from tuner.store.rows import problem_of, problem_row
from tuner.store.tables import PROBLEM, jobs, misses, shape_outcomes
from tuner.trial import ShapeState, Source, Toolchain

TIERS = ("layer", "nearest", "sibling", "model", "none")
"""Who can have served a look-up that was not exact; `none`: nobody, it was refused."""
MOST_ROWS = 20_000
"""Rows that are kept; beyond, those go that were asked for least."""
FLOPS_PER_CYCLE_PER_SM = 4096
"""Dense bf16 on Hopper's tensor cores."""
LAUNCH_US = 3.0

TUNED = ShapeState.TUNED.value
FAILED = "failed"
"""The state of a job that workers gave up."""

MissKey = tuple[Problem, str, str]
"""A problem, the key of a device, and the tier that served it."""


@dataclass(slots=True)
class Tally:
    """How often a problem was missed; `regret`: summed shares of time that answers lost."""

    hits: int = 0
    regret: float = 0.0


@dataclass(frozen=True, slots=True)
class Missed:
    """A problem that was asked for and is not tuned.

    tiers: look-ups by the tier that served them. saved_us: what all of them together are expected
    to lose. state: how its latest tuning ended, if there was one.
    """

    problem: Problem
    hits: int
    tiers: Mapping[str, int]
    saved_us: float
    first_at: datetime
    last_at: datetime
    state: ShapeState | None


class Misses:
    """The misses of a database. Every method raises StoreError where it cannot be used."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    def add(self, counted: Mapping[MissKey, Tally]) -> None:
        """Add to what is counted already; all of it or nothing."""
        rows = [
            {
                **problem_row(problem, device_key),
                "tier": tier,
                "count": tally.hits,
                "regret": tally.regret,
            }
            for (problem, device_key, tier), tally in counted.items()
        ]
        if not rows:
            return
        # In one order everywhere, or two services could each wait for a row of the other's.
        rows.sort(key=lambda row: tuple(str(row[name]) for name in (*PROBLEM, "tier")))
        with self._repository.transaction(writes=True) as connection:
            insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
            now = database_time(connection)
            added = insert(misses).values(first_at=now, last_at=now)
            connection.execute(
                added.on_conflict_do_update(
                    index_elements=misses.primary_key.columns,
                    set_={
                        "count": misses.c.count + added.excluded.count,
                        "regret": misses.c.regret + added.excluded.regret,
                        "last_at": now,
                    },
                ),
                rows,
            )

    def trim(self, most: int = MOST_ROWS) -> int:
        """Forget what was asked for least, beyond `most` rows; returns how many."""
        named = [misses.c[name] for name in (*PROBLEM, "tier")]
        order = (misses.c.count.desc(), misses.c.last_at.desc(), *named)
        with self._repository.transaction(writes=True) as connection:
            if connection.execute(select(func.count()).select_from(misses)).scalar_one() <= most:
                return 0
            beyond = select(*named).order_by(*order).offset(most)
            return connection.execute(delete(misses).where(tuple_(*named).in_(beyond))).rowcount

    def ranked(
        self,
        device_key: str,
        limit: int,
        offset: int = 0,
        *,
        d: OutputLayout | None = None,
        sms: int | None = None,
    ) -> list[Missed]:
        """What was missed on a device and is not tuned, what promises most first.

        What was tuned in vain comes last.

        d, sms: only problems with that output and that budget of multiprocessors.
        """
        query = _ranked(device_key).where(~_tuned())
        for name, value in (("d", d), ("sms", sms)):
            if value is not None:
                query = query.where(misses.c[name] == value)
        with self._repository.transaction(writes=False) as connection:
            found = connection.execute(_with_state(query.limit(limit).offset(offset))).mappings()
            return [_missed(dict(row)) for row in found]

    def totals(self, device_key: str) -> tuple[int, int]:
        """How many problems of a device are missed and not tuned, and how many look-ups."""
        of_problem = (
            select(func.sum(misses.c.count).label("hits"))
            .where(_of(device_key), ~_tuned())
            .group_by(*(misses.c[name] for name in PROBLEM))
            .subquery()
        )
        query = select(func.count(), func.coalesce(func.sum(of_problem.c.hits), 0))
        with self._repository.transaction(writes=False) as connection:
            shapes, hits = connection.execute(query).one()
            return int(shapes), int(hits)


def most_promising(
    connection: Connection, device_key: str, toolchain: Toolchain, source: Source, limit: int
) -> Sequence[Problem]:
    """Missed problems that no worker with this kernel tried yet, and that are in no queue."""
    query = _ranked(device_key).where(~_tried(toolchain, source), ~_in_hand()).limit(limit)
    return [problem_of(dict(row)) for row in connection.execute(query).mappings()]


def is_untried(
    connection: Connection,
    problem: Problem,
    device_key: str,
    toolchain: Toolchain,
    source: Source,
) -> bool:
    """Whether a problem is still one of those that `most_promising` names."""
    this = and_(*(misses.c[name] == v for name, v in problem_row(problem, device_key).items()))
    query = select(misses.c.m).where(this, ~_tried(toolchain, source), ~_in_hand())
    return connection.execute(query.limit(1)).first() is not None


def _tuned() -> Exists:
    """A row of `misses` whose problem has an answer of its own by now."""
    return _ended().where(shape_outcomes.c.state == TUNED)


def _tried(toolchain: Toolchain, source: Source) -> Exists:
    """A row of `misses` whose tuning with this kernel ended, however it did."""
    c = shape_outcomes.c
    return _ended().where(
        c.kernel_hash == toolchain.kernel_hash,
        c.nvrtc_version == toolchain.nvrtc_version,
        c.source == source,
    )


def _ended() -> Exists:
    """A row of `misses` whose problem was tuned, however that ended."""
    return exists().where(and_(*(shape_outcomes.c[name] == misses.c[name] for name in PROBLEM)))


def _in_hand() -> Exists:
    """A row of `misses` that is queued or being tuned, or that workers gave up."""
    same = and_(*(jobs.c[name] == misses.c[name] for name in PROBLEM))
    return exists().where(same, or_(jobs.c.ended_at.is_(None), jobs.c.state == FAILED))


def _ranked(device_key: str) -> Select[Any]:
    """One row for each missed problem of a device that the kernel can run."""
    problem = [misses.c[name] for name in PROBLEM]
    hits = func.sum(misses.c.count)
    of_tier = [
        func.sum(case((misses.c.tier == tier, misses.c.count), else_=0)).label(f"tier_{tier}")
        for tier in TIERS
    ]
    saved_us = func.sum(misses.c.regret) * _roofline_us()
    # What was tuned in vain keeps its place below everything that was not tried.
    in_vain = case((_ended(), 1), else_=0)
    return (
        select(
            *problem,
            hits.label("hits"),
            *of_tier,
            saved_us.label("saved_us"),
            func.min(misses.c.first_at).label("first_at"),
            func.max(misses.c.last_at).label("last_at"),
            in_vain.label("in_vain"),
        )
        .where(_of(device_key))
        .group_by(*problem)
        .order_by(in_vain, saved_us.desc(), hits.desc(), *problem)
    )


def _of(device_key: str) -> ColumnElement[bool]:
    """A row of `misses` of that device, and of a shape that the kernel can run."""
    return and_(misses.c.device_key == device_key, misses.c.k % TMA_ROW_MULTIPLE == 0)


def _with_state(ranked: Select[Any]) -> Select[Any]:
    """The same rows, in their order, with how the latest tuning of each ended."""
    found = ranked.subquery()
    latest = (
        select(shape_outcomes.c.state)
        .where(and_(*(shape_outcomes.c[name] == found.c[name] for name in PROBLEM)))
        .order_by(shape_outcomes.c.finished_at.desc(), shape_outcomes.c.id.desc())
        .limit(1)
        .scalar_subquery()
    )
    problem = [found.c[name] for name in PROBLEM]
    order = (found.c.in_vain, found.c.saved_us.desc(), found.c.hits.desc(), *problem)
    return select(found, latest.label("latest")).order_by(*order)


def _roofline_us() -> ColumnElement[float]:
    """Modelled time of one product in µs: what limits it, and a launch."""
    # In floating point: the product of three extents passes 64 bits.
    m, n, k, sms = (cast(misses.c[name], Double) for name in ("m", "n", "k", "sms"))
    compute = 2.0 * m * n * k / (sms * FLOPS_PER_CYCLE_PER_SM * H200.clock_mhz)
    memory = ELEMENT_BYTES * (m * k + n * k + m * n) / DRAM_BYTES_PER_US
    slower = case((compute > memory, compute), else_=memory)
    return slower + LAUNCH_US


def _missed(row: Mapping[str, Any]) -> Missed:
    known = {state.value for state in ShapeState}
    return Missed(
        problem=problem_of(row),
        hits=int(row["hits"]),
        tiers={tier: int(n) for tier in TIERS if (n := row[f"tier_{tier}"])},
        saved_us=float(row["saved_us"]),
        first_at=row["first_at"],
        last_at=row["last_at"],
        state=ShapeState(row["latest"]) if row["latest"] in known else None,
    )
