"""Problems that workers are to tune: asked for by name, or taken from the misses.

A worker takes a job and the lease of its problem in one transaction. A job is in hand as long as
its owner's lease lasts, so that the job of a worker that died is free when the lease is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from sqlalchemy import (
    Connection,
    Select,
    and_,
    case,
    func,
    or_,
    select,
    update,
)

from tuner.shape import Problem
from tuner.store.job_rows import QUEUED, RUNNING, Job, is_held, job_of, with_life, worker_shown
from tuner.store.leases import Lease, Leases, database_time, lease_key
from tuner.store.misses import FAILED, is_untried, most_promising
from tuner.store.owners import Owner
from tuner.store.repository import Repository
from tuner.store.rows import problem_of, problem_row
from tuner.store.tables import jobs
from tuner.trial import Source, Toolchain

MOST_CLAIMS = 3
"""Workers that may leave a job unfinished before it is given up."""
CANDIDATES = 16
"""Misses that a worker tries to claim at a time; other workers have the first ones."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A job that is the caller's for as long as it holds `lease`, which it must enter."""

    job: Job
    owner: str
    lease: Lease


class Jobs:
    """The jobs of a database. Every method raises StoreError where it cannot be used."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    def ask(self, problems: Sequence[Problem], device_key: str) -> str:
        """Queue problems, each once, in their order; returns the id of the run they make."""
        run_id = uuid4().hex
        with self._repository.transaction(writes=True) as connection:
            now = database_time(connection)
            rows = [
                {
                    **problem_row(problem, device_key),
                    "run_id": run_id,
                    "origin": "asked",
                    "state": QUEUED,
                    "detail": "",
                    "claims": 0,
                }
                for problem in dict.fromkeys(problems)
            ]
            connection.execute(jobs.insert().values(asked_at=now), rows)
        return run_id

    def of_run(self, run_id: str) -> list[Job]:
        """The jobs of a run in their order; none if there is no such run."""
        return self._all(lambda query: query.where(jobs.c.run_id == run_id).order_by(jobs.c.id))

    def unended(self, limit: int) -> list[Job]:
        """What is running, then what is queued, in the order in which it is taken up."""
        waits = jobs.c.state != RUNNING
        return self._all(
            lambda query: (
                query.where(jobs.c.ended_at.is_(None)).order_by(waits, jobs.c.id).limit(limit)
            )
        )

    def ended(self, limit: int) -> list[Job]:
        """What ended, the latest first."""
        return self._all(
            lambda query: (
                query.where(jobs.c.ended_at.is_not(None))
                .order_by(jobs.c.ended_at.desc(), jobs.c.id.desc())
                .limit(limit)
            )
        )

    def counts(self) -> tuple[int, int]:
        """How many jobs are running, and how many wait."""
        with self._repository.transaction(writes=False) as connection:
            held = and_(jobs.c.state == RUNNING, is_held(connection))
            running = func.coalesce(func.sum(case((held, 1), else_=0)), 0)
            query = select(running, func.count()).where(jobs.c.ended_at.is_(None))
            busy, unended = connection.execute(query).one()
            return int(busy), int(unended) - int(busy)

    def claim(
        self, mine: Leases, device_key: str, toolchain: Toolchain, source: Source
    ) -> Claimed | None:
        """The next job of a device that nobody has; None if there is none.

        A job that too many workers left unfinished is ended here instead.
        """
        with self._repository.transaction(writes=True) as connection:
            dead = _dead_owners(connection, device_key)
            last = -1
            while True:
                free = _free(connection, device_key, dead)
                first = free.where(jobs.c.id > last).order_by(jobs.c.id).limit(1)
                found = connection.execute(first.with_for_update(skip_locked=True)).first()
                if found is None:
                    return None
                last = found.id
                # Ours now. What was committed before that, another worker's claim perhaps, is seen
                # by this look and was not by the first.
                row = connection.execute(free.where(jobs.c.id == last)).mappings().first()
                if row is None:
                    continue
                if row["claims"] >= MOST_CLAIMS:
                    _give_up(connection, dict(row))
                    continue
                key = lease_key(problem_of(dict(row)), device_key, toolchain, source)
                if mine.take_within(connection, key):
                    _start(connection, last, mine.owner)
                    return Claimed(_one(connection, last), mine.owner, Lease(mine, key))

    def claim_miss(
        self, mine: Leases, device_key: str, toolchain: Toolchain, source: Source
    ) -> Claimed | None:
        """Make a job of the most promising miss that nobody has; None if there is none."""
        kernel = (device_key, toolchain, source)
        with self._repository.transaction(writes=False) as connection:
            promising = most_promising(connection, *kernel, CANDIDATES)
        for problem in promising:
            key = lease_key(problem, *kernel)
            with self._repository.transaction(writes=True) as connection:
                if not mine.take_within(connection, key):
                    continue
                if not is_untried(connection, problem, *kernel):
                    # Another worker ended it since the first look.
                    mine.release_within(connection, key)
                    continue
                row = {
                    **problem_row(problem, device_key),
                    "run_id": uuid4().hex,
                    "origin": "miss",
                    "state": QUEUED,
                    "detail": "",
                    "claims": 0,
                    "asked_at": database_time(connection),
                }
                made = connection.execute(jobs.insert().values(row).returning(jobs.c.id))
                job_id = made.scalar_one()
                _start(connection, job_id, mine.owner)
                return Claimed(_one(connection, job_id), mine.owner, Lease(mine, key))
        return None

    def end(self, claimed: Claimed, state: str, detail: str = "") -> bool:
        """Say how a job ended; False, and nothing is changed, if it is another worker's by now."""
        with self._repository.transaction(writes=True) as connection:
            now = database_time(connection)
            return _changed(connection, claimed, state=state, detail=detail, ended_at=now)

    def give_back(self, claimed: Claimed, why: str, blamed: bool) -> bool:
        """Queue a job again; False if it is another worker's by now.

        blamed: count this as one of the claims that may be in vain.
        """
        with self._repository.transaction(writes=True) as connection:
            claims = jobs.c.claims if blamed else jobs.c.claims - 1
            return _changed(
                connection, claimed, state=QUEUED, detail=why, owner=None, claims=claims
            )

    def _all(self, narrowed: Any) -> list[Job]:
        with self._repository.transaction(writes=False) as connection:
            found = connection.execute(narrowed(with_life(connection))).mappings()
            return [job_of(dict(row)) for row in found]


def _free(connection: Connection, device_key: str, dead: Sequence[str]) -> Select[Any]:
    """Jobs of a device that are queued, or were left by a worker that ended."""
    held = is_held(connection, dead)
    return select(jobs).where(
        jobs.c.device_key == device_key,
        jobs.c.ended_at.is_(None),
        or_(jobs.c.state == QUEUED, ~held),
    )


def _dead_owners(connection: Connection, device_key: str) -> list[str]:
    """Owners of running jobs that are known to have ended on this machine."""
    running = select(jobs.c.owner).where(
        jobs.c.device_key == device_key, jobs.c.ended_at.is_(None), jobs.c.state == RUNNING
    )
    owners = {owner for owner in connection.execute(running).scalars() if owner}
    return [o for o in owners if (known := Owner.parse(o)) and known.is_known_dead()]


def _start(connection: Connection, job_id: int, owner: str) -> None:
    started = {
        "state": RUNNING,
        "owner": owner,
        "worker": worker_shown(owner),
        "claims": jobs.c.claims + 1,
        "started_at": database_time(connection),
        "detail": "",
    }
    connection.execute(update(jobs).where(jobs.c.id == job_id).values(started))


def _give_up(connection: Connection, row: Mapping[str, Any]) -> None:
    why = row["detail"] or "its worker ended without a word."
    detail = f"given up after {row['claims']} workers left it unfinished; the last: {why}"
    ended = {"state": FAILED, "detail": detail, "ended_at": database_time(connection)}
    connection.execute(update(jobs).where(jobs.c.id == row["id"]).values(ended))


def _changed(connection: Connection, claimed: Claimed, **values: Any) -> bool:
    this = and_(
        jobs.c.id == claimed.job.id, jobs.c.owner == claimed.owner, jobs.c.ended_at.is_(None)
    )
    return connection.execute(update(jobs).where(this).values(values)).rowcount > 0


def _one(connection: Connection, job_id: int) -> Job:
    query = with_life(connection).where(jobs.c.id == job_id)
    return job_of(dict(connection.execute(query).mappings().one()))
