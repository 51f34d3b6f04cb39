"""Generations: snapshots of the best answers that were published, and which of them is served."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, func, select, text

from tuner.errors import StoreError
from tuner.lookup.snapshot import InvalidSnapshot, Snapshot, build_snapshot
from tuner.store.best_answers import best_on_terms, device_name, refused_problems
from tuner.store.generation_rows import generation_row, snapshot_of
from tuner.store.layers import device_layers
from tuner.store.repository import Repository, insert_new
from tuner.store.tables import generations, publications

SHORTEST_ID = 6
"""Digits of an id that stand for all 64, if no other begins so."""
TRIES = 20
"""Snapshots that a publisher builds before it gives way to others for good."""
_ONE_PUBLISHER = 0x70756273
"""The first half of the advisory lock that publishers to one Postgres database agree on."""


class NoSuchGeneration(StoreError):
    """No generation has the id that was named."""


@dataclass(frozen=True, slots=True)
class Published:
    """What a device serves now. `new`: this publication changed it."""

    id: str
    device_key: str
    entries: int
    new: bool
    before: str | None


@dataclass(frozen=True, slots=True)
class Generation:
    """A stored snapshot, without its body. `current`: it is the one served."""

    id: str
    device_key: str
    created_at: datetime
    created_by: str
    parent: str | None
    note: str
    entries: int
    current: bool


class Generations:
    """The generations of a database. Every method raises StoreError for what is not there.

    A reader sees one whole generation at a time, the old one or the new.
    """

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    def publish(self, device_key: str, by: str, note: str = "") -> Published:
        """Make the best answers of a device, as they are now, what it serves.

        The same answers have the same id: publishing them again adds nothing.
        """
        for _ in range(TRIES):
            # Built without the lock: thousands of shapes take longer than writers would wait.
            with self._repository.transaction(writes=False, moment=True) as connection:
                seen = connection.execute(_latest(device_key)).one_or_none()
                snapshot = _snapshot_now(connection, device_key)
            with self._repository.transaction(writes=True) as connection:
                latest = _only_publisher(connection, device_key)
                before = latest.generation_id if latest else None
                if latest != seen and before != snapshot.id:
                    # Somebody published meanwhile, and perhaps newer rows than these.
                    continue
                row = generation_row(snapshot, datetime.now(UTC), by, note, before)
                insert_new(connection, generations, [row])
                new = _serve(connection, device_key, snapshot.id, by, note or "publish", before)
            return Published(snapshot.id, device_key, len(snapshot.entries), new, before)
        raise StoreError(f"others keep publishing for {device_key}; try again when they are done.")

    def rollback(self, id: str, by: str, reason: str = "") -> Published:
        """Serve an older generation again; `id` may be cut short where no other begins so."""
        found = self.find(id)
        snapshot = self.snapshot(found.id)
        with self._repository.transaction(writes=True) as connection:
            latest = _only_publisher(connection, found.device_key)
            before = latest.generation_id if latest else None
            why = reason or "rollback"
            new = _serve(connection, found.device_key, found.id, by, why, before)
        return Published(found.id, found.device_key, len(snapshot.entries), new, before)

    def current(self, device_key: str) -> Snapshot | None:
        """What a device serves; None before the first publication."""
        with self._repository.transaction(writes=False, moment=True) as connection:
            latest = connection.execute(_latest(device_key)).one_or_none()
            return self._snapshot(connection, latest.generation_id) if latest else None

    def snapshot(self, id: str) -> Snapshot:
        """The snapshot of a full id, which is how a reader pins one."""
        with self._repository.transaction(writes=False) as connection:
            return self._snapshot(connection, id)

    def all(self, device_key: str | None = None) -> Sequence[Generation]:
        """Every generation, or those of a device, the newest first."""
        columns = [c for c in generations.columns if c.name != "body"]
        query = select(*columns).order_by(generations.c.created_at.desc(), generations.c.id)
        if device_key is not None:
            query = query.where(generations.c.device_key == device_key)
        latest = (
            select(func.max(publications.c.id)).group_by(publications.c.device_key)
        ).scalar_subquery()
        with self._repository.transaction(writes=False, moment=True) as connection:
            served = set(
                connection.execute(
                    select(publications.c.generation_id).where(publications.c.id.in_(latest))
                ).scalars()
            )
            found = connection.execute(query).mappings().all()
        return [Generation(**row, current=row["id"] in served) for row in found]

    def find(self, id: str) -> Generation:
        """The one generation whose id begins so."""
        matching = [g for g in self.all() if g.id.startswith(id.lower())]
        if len(id) < SHORTEST_ID or not matching:
            raise StoreError(
                f"{self._repository.location} has no generation {id!a}; give {SHORTEST_ID} digits "
                "or more of an id that `tuner generations list` shows."
            )
        if len(matching) > 1:
            shown = ", ".join(g.id[: len(id) + 4] for g in matching)
            raise StoreError(f"several generations begin with {id}: {shown}. Give more digits.")
        return matching[0]

    def _snapshot(self, connection: Connection, id: str) -> Snapshot:
        query = select(generations.c.id, generations.c.body).where(generations.c.id == id)
        row = connection.execute(query).mappings().one_or_none()
        if row is None:
            raise NoSuchGeneration(f"{self._repository.location} has no generation {id!a}.")
        try:
            return snapshot_of(dict(row))
        except InvalidSnapshot as error:
            raise StoreError(
                f"{self._repository.location}: {error} Publish again, or roll back to another."
            ) from error


def _snapshot_now(connection: Connection, device_key: str) -> Snapshot:
    name = device_name(connection, device_key)
    if name is None:
        raise StoreError(f"nothing is stored for the device {device_key!a}.")
    answers = list(best_on_terms(connection, device_key))
    refused = dict(refused_problems(connection, device_key))
    for best, _ in answers:
        refused.pop(best.problem, None)
    layers = device_layers(connection, device_key)
    snapshot = build_snapshot(device_key, name, answers, layers, refused=refused)
    if not snapshot.entries:
        raise StoreError(
            f"no shape has a raced config on {device_key}, so there is nothing to publish. Tune "
            "some with `tuner run`."
        )
    return snapshot


def _latest(device_key: str) -> Select[Any]:
    return (
        select(publications.c.id, publications.c.generation_id)
        .where(publications.c.device_key == device_key)
        .order_by(publications.c.id.desc())
        .limit(1)
    )


def _only_publisher(connection: Connection, device_key: str) -> Row[Any] | None:
    """Wait for other publishers of the device; its latest publication. SQLite has one writer."""
    if connection.dialect.name == "postgresql":
        lock = text("SELECT pg_advisory_xact_lock(:publishing, hashtext(:device))")
        connection.execute(lock, {"publishing": _ONE_PUBLISHER, "device": device_key})
    return connection.execute(_latest(device_key)).one_or_none()


def _serve(
    connection: Connection, device_key: str, id: str, by: str, reason: str, before: str | None
) -> bool:
    if id == before:
        return False
    row = {
        "device_key": device_key,
        "generation_id": id,
        "published_at": datetime.now(UTC),
        "published_by": by,
        "reason": reason,
    }
    connection.execute(publications.insert(), [row])
    return True
