"""Old rows that nothing rests on any more, removed; the only deletion there is."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, product
from typing import Any

from sqlalchemy import Connection, Table, and_, delete, func, or_, select, text
from sqlalchemy.exc import DBAPIError

from tuner.errors import StoreError
from tuner.lookup import Numerics, choose
from tuner.lookup.race import races_of
from tuner.lookup.snapshot import InvalidSnapshot
from tuner.store.generation_rows import snapshot_of
from tuner.store.repository import Repository
from tuner.store.rows import readable
from tuner.store.tables import (
    APPEND_ONLY,
    PROBLEM,
    generations,
    measurements,
    runs,
    shape_outcomes,
)
from tuner.trial import PROTOCOL_HEAT, Measurement, Toolchain, TrialState

CHUNK = 500
Group = tuple[bool, Toolchain]
"""Rows of a problem that `choose` judges together: replayed or not, and what made the kernel."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was removed, or would be, by kind; `kept` is what stays of the old rows, and why."""

    screenings: int
    races: int
    outcomes: int
    runs: int
    kept: Mapping[str, int]

    @property
    def total(self) -> int:
        return self.screenings + self.races + self.outcomes + self.runs


class _TakenBack(Exception):
    """Ends a dry run."""


def prune(repository: Repository, before: datetime, dry_run: bool = False) -> Pruned:
    """Remove rows measured before an instant unless something rests on them, in one transaction.

    What stays: every failure; the races from which a problem is answered today, whatever protocol,
    numerics and kind of launch are asked for; the races of every stored generation; the latest
    outcome of a problem for each kernel, compiler, source and state; records of imports; and the
    newest row of each table.
    A dry run does the same and takes it back. Raises: StoreError.
    """
    done: Pruned | None = None
    try:
        with repository.transaction(writes=True) as connection, _lifted(connection):
            done = _removed(connection, before)
            if dry_run:
                raise _TakenBack
    except _TakenBack:
        pass
    assert done is not None
    return done


def _removed(connection: Connection, before: datetime) -> Pruned:
    c = measurements.c
    old = and_(c.measured_at < before, c.id < _newest(measurements))
    looked = or_(c.race.is_(None), c.protocol == PROTOCOL_HEAT)
    screenings = connection.execute(
        delete(measurements).where(old, looked, c.state == TrialState.OK.value)
    ).rowcount
    surplus = list(_surplus_races(connection, before))
    races = _delete(connection, measurements, surplus)
    outcomes = _delete(connection, shape_outcomes, _surplus_outcomes(connection, before))
    ended = connection.execute(_unused_runs(before)).rowcount
    by_state = select(c.state, func.count()).where(c.measured_at < before).group_by(c.state)
    left: dict[str, int] = {row[0]: row[1] for row in connection.execute(by_state)}
    answers = left.pop(TrialState.OK.value, 0)
    kept = {"in races that answers rest on": answers, "failures": sum(left.values())}
    return Pruned(screenings, races, outcomes, ended, kept)


def _surplus_races(connection: Connection, before: datetime) -> Iterator[int]:
    """Rows of groups that are old as a whole, answer nothing today and are in no generation."""
    published = _published(connection)
    c = measurements.c
    problem = [c[name] for name in PROBLEM]
    query = (
        select(measurements)
        .where(c.race.is_not(None), c.protocol != PROTOCOL_HEAT)
        .order_by(*problem, c.measured_at, c.id)
    )
    newest = connection.execute(select(_newest(measurements))).scalar_one()
    found = connection.execute(query.execution_options(yield_per=2000)).mappings()
    for key, rows in groupby(found, key=lambda row: tuple(row[name] for name in PROBLEM)):
        groups: dict[Group, list[tuple[int, Measurement]]] = {}
        for row in rows:
            if value := readable(dict(row)):
                groups.setdefault(_group(value), []).append((row["id"], value))
        every = [value for group in groups.values() for _, value in group]
        answering = _answering(every)
        for group, members in groups.items():
            made_with = group[1]
            if (
                group not in answering
                and (*key, made_with.kernel_hash, made_with.nvrtc_version) not in published
                and all(value.measured_at < before for _, value in members)
            ):
                yield from (
                    id for id, value in members if value.state is TrialState.OK and id < newest
                )


def _answering(rows: Sequence[Measurement]) -> set[Group]:
    races = races_of(rows)
    protocols = [None, *sorted({race.protocol for race in races})]
    promises: tuple[Numerics | None, ...] = (None, "invariant")
    answers = [
        answer
        for protocol, plain, numerics in product(protocols, (False, True), promises)
        if (answer := choose(races, protocol, plain=plain, numerics=numerics))
    ]
    return {(answer.source == "replay", answer.toolchain) for answer in answers}


def _group(row: Measurement) -> Group:
    return row.source == "replay", row.toolchain


def _published(connection: Connection) -> set[tuple[Any, ...]]:
    """Problem, kernel hash and NVRTC version of every answer of every generation."""
    named = set()
    for row in connection.execute(select(generations.c.id, generations.c.body)).mappings():
        try:
            snapshot = snapshot_of(dict(row))
        except InvalidSnapshot as error:
            raise StoreError(f"{error} Nothing is pruned before that is mended.") from error
        for entry in snapshot.entries:
            for told in (entry, *entry["under"].values()):
                values = {**told["shape"], **told, "device_key": snapshot.device_key}
                version = str(told["toolchain"]).removeprefix("nvrtc ")
                key = tuple(values[name] for name in PROBLEM)
                named.add((*key, told["kernel_hash"], version))
    return named


def _surplus_outcomes(connection: Connection, before: datetime) -> list[int]:
    c = shape_outcomes.c
    same = [*(c[name] for name in PROBLEM), c.kernel_hash, c.nvrtc_version, c.source, c.state]
    place = func.row_number().over(partition_by=same, order_by=[c.finished_at.desc(), c.id.desc()])
    ranked = select(c.id, c.finished_at, place.label("place")).subquery()
    query = select(ranked.c.id).where(ranked.c.place > 1, ranked.c.finished_at < before)
    newest = connection.execute(select(_newest(shape_outcomes))).scalar_one()
    return [id for id in connection.execute(query).scalars() if id < newest]


def _unused_runs(before: datetime) -> Any:
    used = [
        select(table.c.run_id).where(table.c.run_id == runs.c.id).exists() for table in APPEND_ONLY
    ]
    return delete(runs).where(
        runs.c.started_at < before, runs.c.source != "import", *(~one for one in used)
    )


def _newest(table: Table) -> Any:
    # Caches follow the largest number, which SQLite would give out again.
    return select(func.coalesce(func.max(table.c.id), 0)).scalar_subquery()


def _delete(connection: Connection, table: Table, ids: Sequence[int]) -> int:
    for start in range(0, len(ids), CHUNK):
        connection.execute(delete(table).where(table.c.id.in_(ids[start : start + CHUNK])))
    return len(ids)


@contextmanager
def _lifted(connection: Connection) -> Iterator[None]:
    """Let this transaction delete from the append-only tables; no other ever sees it."""
    names = [table.name for table in APPEND_ONLY]
    if connection.dialect.name == "sqlite":
        query = text("SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger'")
        guards = [row for row in connection.execute(query) if row.tbl_name in names]
        for guard in guards:
            connection.exec_driver_sql(f'DROP TRIGGER "{guard.name}"')
        yield
        for guard in guards:
            connection.exec_driver_sql(guard.sql)
        return
    try:
        for name in names:
            connection.execute(text(f"ALTER TABLE {name} DISABLE TRIGGER {name}_no_change"))
    except DBAPIError as error:
        raise StoreError(
            f"pruning needs the owner of the tables ({error.orig}); name that user in the URL."
        ) from error
    yield
    for name in names:
        connection.execute(text(f"ALTER TABLE {name} ENABLE TRIGGER {name}_no_change"))
