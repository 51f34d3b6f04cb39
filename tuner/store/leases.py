"""Leases: of several drivers one tunes a problem, and the others take the next.

A lease has an owner and an end, both by the clock of the database: no client's clock is asked. An
owner that lives moves the end; one that dies leaves a lease that ends by itself. A lease taken in
the future, as after a clock was set back, has age zero.
"""

from collections.abc import Callable
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self

from sqlalchemy import ColumnElement, Connection, and_, delete, func, literal_column, select, update
from sqlalchemy.dialects import postgresql, sqlite

from tuner.errors import StoreError
from tuner.shape import Problem
from tuner.store.owners import Owner
from tuner.store.patience import at_once
from tuner.store.repository import Repository
from tuner.store.rows import Row, problem_row
from tuner.store.tables import UtcTime, leases
from tuner.trial import Source, Toolchain

LEASE_SECONDS = 60.0
RENEWALS = 4
"""Beats of the heart within one lease: all but one may be missed."""


class Leases:
    """The leases of one driver."""

    def __init__(
        self,
        repository: Repository,
        owner: str | None = None,
        seconds: float = LEASE_SECONDS,
        patiently: Callable[[Callable[[], bool]], bool] = at_once,
    ) -> None:
        """owner: a name nobody else has; this process's, if None.

        patiently: makes a call again while the database cannot be used.
        """
        self.owner = str(Owner.this_process()) if owner is None else owner
        self.seconds = seconds
        self._repository = repository
        self._patiently = patiently

    def claim(
        self, problem: Problem, device_key: str, toolchain: Toolchain, source: Source
    ) -> "Lease | None":
        """A lease that renews itself until it is left, or None while another driver has it.

        The lease of an owner whose process ended on this machine is taken over at once.
        Raises: StoreError if the database cannot be used.
        """
        key = lease_key(problem, device_key, toolchain, source)
        if self._patiently(lambda: self.take(key)):
            return Lease(self, key)
        return None

    def take(self, key: Row) -> bool:
        """Own the lease of `key` from now on, if it is free or ours; one atomic statement."""
        with self._repository.transaction(writes=True) as connection:
            return self.take_within(connection, key)

    def take_within(self, connection: Connection, key: Row) -> bool:
        """As `take`, together with whatever else the caller's transaction does."""
        if _taken(connection, key, self.owner, self.seconds):
            return True
        holder = connection.execute(select(leases.c.owner).where(_is(key))).scalar()
        gone = Owner.parse(holder or "")
        if holder is None or gone is None or not gone.is_known_dead():
            return False
        return _taken(connection, key, self.owner, self.seconds, instead_of=holder)

    def renew(self, key: Row) -> bool:
        """Move the end of the lease on; False if it is not ours any more."""
        mine = and_(_is(key), leases.c.owner == self.owner)
        with self._repository.transaction(writes=True) as connection:
            later = {"expires_at": database_time(connection, self.seconds)}
            return connection.execute(update(leases).where(mine).values(later)).rowcount > 0

    def release(self, key: Row) -> None:
        """Let others have it; nothing happens if it is not ours."""
        with self._repository.transaction(writes=True) as connection:
            self.release_within(connection, key)

    def release_within(self, connection: Connection, key: Row) -> None:
        """As `release`, together with whatever else the caller's transaction does."""
        mine = and_(_is(key), leases.c.owner == self.owner)
        connection.execute(delete(leases).where(mine))


class Lease:
    """A claimed problem; a context that renews the lease on a thread of its own."""

    def __init__(self, of: Leases, key: Row) -> None:
        self._leases, self._key = of, key
        self._stop = Event()
        self._thread = Thread(target=self._beat, name="lease", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release it. Where the database cannot be used, it ends by itself."""
        self._stop.set()
        self._thread.join()
        try:
            self._leases.release(self._key)
        except StoreError:
            return

    def is_held(self) -> bool:
        """Renew it once more: False if another driver has it by now.

        A database that cannot be used gives it to nobody else.
        """
        try:
            return self._leases.renew(self._key)
        except StoreError:
            return True

    def _beat(self) -> None:
        while not self._stop.wait(self._leases.seconds / RENEWALS):
            if not self.is_held():
                return


def lease_key(problem: Problem, device_key: str, toolchain: Toolchain, source: Source) -> Row:
    """The columns that a lease is named by."""
    made_with = {"kernel_hash": toolchain.kernel_hash, "nvrtc_version": toolchain.nvrtc_version}
    return {**problem_row(problem, device_key), **made_with, "source": source}


def _is(key: Row) -> ColumnElement[bool]:
    return and_(*(leases.c[name] == value for name, value in key.items()))


def _taken(
    connection: Connection, key: Row, owner: str, seconds: float, instead_of: str | None = None
) -> bool:
    now = database_time(connection)
    times: dict[str, Any] = {
        "acquired_at": now,
        "expires_at": database_time(connection, seconds),
    }
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    free = (leases.c.expires_at <= now) | leases.c.owner.in_([owner, instead_of or owner])
    taken = insert(leases).values(**key, owner=owner, **times)
    taken = taken.on_conflict_do_update(
        index_elements=leases.primary_key.columns, set_={"owner": owner, **times}, where=free
    )
    return connection.execute(taken.returning(leases.c.owner)).scalar() == owner


def database_time(connection: Connection, later_s: float = 0.0) -> ColumnElement[Any]:
    """The clock of the database, `later_s` seconds on, in the form of the columns."""
    if connection.dialect.name == "sqlite":
        # As SQLAlchemy writes it: six digits, of which SQLite's clock has three.
        shift = f"{later_s:+.3f} seconds"
        return func.strftime("%Y-%m-%d %H:%M:%f000", "now", shift, type_=UtcTime)
    # Not the start of the transaction, which may have waited for a lock since.
    return func.clock_timestamp() + literal_column("INTERVAL '1 second'") * later_s
