"""What was stored since a reader last looked: cheap to ask, and without gaps."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    and_,
    func,
    select,
    text,
    true,
    union,
)

from tuner.shape import Problem
from tuner.store.repository import Repository
from tuner.store.rows import problem_of
from tuner.store.tables import PROBLEM, devices, measurements, publications, shape_outcomes
from tuner.trial import PROTOCOL_HEAT, Toolchain

CHUNK = 20_000
"""Rows of a table that one look tells of."""
RACED = and_(measurements.c.race.is_not(None), measurements.c.protocol != PROTOCOL_HEAT)
"""Rows that answers rest on."""
_DEVICES = select(devices.c.key, devices.c.name, devices.c.sms).order_by(devices.c.key)

Key = tuple[str, Problem]
"""The key of a device, and a problem on it."""


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device that is known."""

    key: str
    name: str
    sms: int


@dataclass(frozen=True, slots=True)
class Changes:
    """whole: what was seen before is void, because this is the first look, or because the database
        is another one or lost its newest row; nothing else is told then.
    raced, ended: problems with new rows of races, and with new outcomes.
    toolchains: what the new rows of races were made with.
    published: something was published. devices: all that are known, by key.
    more: not everything is told yet; look again.
    """

    whole: bool = False
    raced: frozenset[Key] = frozenset()
    ended: frozenset[Key] = frozenset()
    toolchains: frozenset[Toolchain] = frozenset()
    published: bool = False
    devices: tuple[DeviceRow, ...] = ()
    more: bool = False


class ChangeFeed:
    """Remembers what one reader has seen. For one thread at a time.

    SQLite commits rows in the order of their ids. Postgres does not: a row may appear below others
    that were seen long before. There an id is settled only when every transaction that could have
    taken it has ended, and what is not settled is counted again at each look.
    """

    def __init__(self) -> None:
        self._cursors: tuple[_Cursor, ...] = ()
        self._publication: int | None = None

    def look(self, repository: Repository) -> Changes:
        """What is new since the last look. Raises: StoreError; the next look then tells it."""
        with repository.transaction(writes=False, moment=True) as connection:
            transactions = _transactions(connection)
            publication = connection.execute(select(func.max(publications.c.id))).scalar()
            known = connection.execute(_DEVICES).all()
            # Copies, so that a look that fails leaves all as it was.
            ahead = tuple(copy(cursor) for cursor in self._cursors)
            try:
                found = [cursor.new(connection, transactions) for cursor in ahead]
            except _Void:
                found = []
            if not found:
                ahead = (
                    _Cursor(measurements, RACED, connection, transactions),
                    _Cursor(shape_outcomes, true(), connection, transactions),
                )
        before, self._publication = self._publication, publication
        self._cursors = ahead
        there = tuple(DeviceRow(row.key, row.name, row.sms) for row in known)
        if not found:
            return Changes(whole=True, devices=there)
        raced, ended = found
        return Changes(
            raced=frozenset(_key(row) for row in raced),
            ended=frozenset(_key(row) for row in ended),
            toolchains=frozenset(Toolchain(row.kernel_hash, row.nvrtc_version) for row in raced),
            published=before != publication,
            devices=there,
            more=any(cursor.more for cursor in ahead),
        )

    def forget(self) -> None:
        """Start over at the next look."""
        self._cursors = ()


@dataclass(frozen=True, slots=True)
class Transactions:
    """Postgres' at one moment: all below `ended` have ended, none from `next` on has begun."""

    ended: int
    next: int


@dataclass(slots=True)
class _Doubt:
    """Rows up to `id` numbered `count` when transactions below `until` had not all ended."""

    id: int
    until: int
    count: int


class _Void(Exception):
    """What was told is not what is stored any more."""


class _Cursor:
    """How far a reader has come in one table, of which it wants some rows."""

    def __init__(
        self,
        table: Table,
        wanted: ColumnElement[bool],
        connection: Connection,
        transactions: Transactions | None,
    ) -> None:
        self._table, self._wanted = table, wanted
        self._newest = self._newest_now(connection)
        self._told = self._newest[0] if self._newest else 0
        """The last id that was looked at."""
        self._settled = self._told
        """Up to this id nothing can appear any more."""
        self._unsettled: set[int] = set()
        """Ids of wanted rows between the two."""
        self._waiting: tuple[int, int] | None = None
        """An id that is settled when all transactions below the second number have ended."""
        self._doubt: _Doubt | None = None
        if transactions and transactions.ended < transactions.next:
            count = self._count(connection, 0, self._told)
            self._doubt = _Doubt(self._told, transactions.next, count)
        self.more = False

    def new(self, connection: Connection, transactions: Transactions | None) -> Sequence[Row[Any]]:
        """Wanted rows that were not told. Raises: _Void."""
        newest = self._newest_now(connection)
        if newest != self._newest and not self._still_there(connection):
            raise _Void
        if transactions and not self._doubt_was_vain(connection, transactions):
            raise _Void
        late = self._late(connection)
        found = connection.execute(self._rows(self._told, None).limit(CHUNK)).all()
        self.more = len(found) == CHUNK
        told_before, end = self._told, newest[0] if newest else 0
        self._newest = newest
        self._told = found[-1].id if self.more else max(self._told, end)
        self._settle([row.id for row in (*late, *found)], told_before, transactions)
        return [*late, *found]

    def _settle(
        self, told: Sequence[int], told_before: int, transactions: Transactions | None
    ) -> None:
        if transactions is None:
            self._settled = self._told
            return
        self._unsettled = self._unsettled.union(told)
        if self._waiting and transactions.ended >= self._waiting[1]:
            self._settled, self._waiting = self._waiting[0], None
            self._unsettled = {id for id in self._unsettled if id > self._settled}
        if self._waiting is None and told_before > self._settled:
            # Told at the last look, not at this one: an insert takes its id a moment before its
            # transaction has a number.
            self._waiting = (told_before, transactions.next)

    def _late(self, connection: Connection) -> Sequence[Row[Any]]:
        """Rows that appeared among those that were told."""
        if self._settled >= self._told:
            return []
        if self._count(connection, self._settled, self._told) == len(self._unsettled):
            return []
        there = connection.execute(self._rows(self._settled, self._told)).all()
        return [row for row in there if row.id not in self._unsettled]

    def _doubt_was_vain(self, connection: Connection, transactions: Transactions) -> bool:
        doubt = self._doubt
        if doubt is None or transactions.ended < doubt.until:
            return True
        self._doubt = None
        return self._count(connection, 0, doubt.id) == doubt.count

    def _still_there(self, connection: Connection) -> bool:
        if self._newest is None:
            return True
        id, digest = self._newest
        query = select(self._table.c.digest).where(self._table.c.id == id)
        return bool(connection.execute(query).scalar() == digest)

    def _newest_now(self, connection: Connection) -> tuple[int, str] | None:
        """Id and digest of the newest row, by which a table is known again."""
        c = self._table.c
        row = connection.execute(select(c.id, c.digest).order_by(c.id.desc()).limit(1)).first()
        return (row.id, row.digest) if row else None

    def _rows(self, above: int, to: int | None) -> Select[Any]:
        c = self._table.c
        named = (*(c[name] for name in PROBLEM), c.kernel_hash, c.nvrtc_version)
        query = select(c.id, *named).where(c.id > above, self._wanted).order_by(c.id)
        return query if to is None else query.where(c.id <= to)

    def _count(self, connection: Connection, above: int, to: int) -> int:
        c = self._table.c
        within = and_(c.id > above, c.id <= to, self._wanted)
        return int(connection.execute(select(func.count()).where(within)).scalar_one())


def all_problems(repository: Repository) -> list[Key]:
    """Every problem that was raced or whose tuning ended, on every device, in order."""
    raced = select(*(measurements.c[name] for name in PROBLEM)).where(
        measurements.c.race.is_not(None)
    )
    ended = select(*(shape_outcomes.c[name] for name in PROBLEM))
    both = union(raced, ended).subquery()
    with repository.transaction(writes=False) as connection:
        found = connection.execute(select(both).order_by(*(both.c[name] for name in PROBLEM)))
        return [_key(row) for row in found]


def toolchains(repository: Repository, kernel_hash: str) -> list[Toolchain]:
    """What rows of that kernel were made with."""
    c = measurements.c
    query = select(c.nvrtc_version).where(c.kernel_hash == kernel_hash, RACED).distinct()
    with repository.transaction(writes=False) as connection:
        return [Toolchain(kernel_hash, found) for found in connection.execute(query).scalars()]


def _transactions(connection: Connection) -> Transactions | None:
    if connection.dialect.name != "postgresql":
        return None
    now = "pg_current_snapshot()"
    query = f"SELECT pg_snapshot_xmin({now})::text, pg_snapshot_xmax({now})::text"
    ended, following = connection.execute(text(query)).one()
    return Transactions(int(ended), int(following))


def _key(row: Row[Any]) -> Key:
    told = row._mapping
    return told["device_key"], problem_of(dict(told))
