"""Jobs as values: what a row says, and whether somebody still works on it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Select, and_, exists, select

from tuner.shape import Problem
from tuner.store.leases import database_time
from tuner.store.owners import Owner
from tuner.store.rows import problem_of
from tuner.store.tables import PROBLEM, jobs, leases

Origin = Literal["asked", "miss"]
QUEUED, RUNNING = "queued", "running"


@dataclass(frozen=True, slots=True)
class Job:
    """One problem to tune on one device.

    state: `queued`, `running`, `failed` (given up) or, once tuned, how the tuning ended; `detail`
    says why where that is not `tuned`. worker: who has it, or had it last.
    """

    id: int
    run_id: str
    origin: Origin
    problem: Problem
    device_key: str
    state: str
    detail: str
    worker: str | None
    claims: int
    asked_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


def is_held(connection: Connection, dead: Sequence[str] = ()) -> ColumnElement[bool]:
    """A row of `jobs` whose owner has the lease of its problem and is not among `dead`."""
    same = and_(*(leases.c[name] == jobs.c[name] for name in PROBLEM))
    lasts = leases.c.expires_at > database_time(connection)
    lives = leases.c.owner.not_in(dead)
    return exists().where(same, leases.c.owner == jobs.c.owner, lasts, lives)


def with_life(connection: Connection) -> Select[Any]:
    return select(jobs, is_held(connection).label("held"))


def job_of(row: Mapping[str, Any]) -> Job:
    # One whose worker died waits for another, though nobody has written that down.
    left = row["state"] == RUNNING and not row["held"]
    return Job(
        id=row["id"],
        run_id=row["run_id"],
        origin=row["origin"],
        problem=problem_of(row),
        device_key=row["device_key"],
        state=QUEUED if left else row["state"],
        detail=row["detail"],
        worker=row["worker"],
        claims=row["claims"],
        asked_at=row["asked_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
    )


def worker_shown(owner: str) -> str:
    """An owner as people read it: machine and process."""
    known = Owner.parse(owner)
    return f"{known.host}:{known.pid}" if known else owner
