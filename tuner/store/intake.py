"""Rows from elsewhere on their way into a database: in batches, each fact once."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, Table, update
from sqlalchemy.dialects import postgresql, sqlite

from tuner.store.repository import Repository, see_device
from tuner.store.row_files import Told
from tuner.store.tables import generations, measurements, runs, shape_outcomes

BATCH_ROWS = 2000
"""In one transaction: other writers wait for less than a second."""
TABLES: Mapping[str, Table] = {
    table.name: table for table in (measurements, shape_outcomes, runs, generations)
}


class Intake:
    """Collects rows and stores them; use as a context manager, whose end stores the rest.

    added: new rows by table. digests: of every measurement and outcome seen, new or not.
    device_keys: of every row seen.
    """

    def __init__(self, into: Repository) -> None:
        self._into = into
        self._waiting: list[Told] = []
        self.added: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        self.digests: set[str] = set()
        self.device_keys: set[str] = set()

    def __enter__(self) -> "Intake":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.flush()

    def take(self, told: Told) -> None:
        """Store a row now or with the next batch; one that is stored already stays one row."""
        self.seen[told.table] += 1
        if digest := told.row.get("digest"):
            self.digests.add(digest)
            self.device_keys.add(told.row["device_key"])
        self._waiting.append(told)
        if len(self._waiting) >= BATCH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Store what waits, in one transaction."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        with self._into.transaction(writes=True) as connection:
            _see_devices(connection, (told.row for told in waiting if "device_name" in told.row))
            for name, table in TABLES.items():
                rows = [told.row for told in waiting if told.table == name]
                self.added[name] += _insert(connection, table, rows)
                if table is runs:
                    _end_runs(connection, rows)


def _insert(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> int:
    if not rows:
        return 0
    key = "digest" if "digest" in table.c else "id"
    # Two processes that bring the same rows wait for each other in one order, never in a ring.
    rows.sort(key=lambda row: str(row[key]))
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    # Only the new ones are returned; a driver's count of many rows cannot be relied on.
    new = dialect.insert(table).on_conflict_do_nothing().returning(table.c[key])
    return len(connection.execute(new, rows).all())


def _end_runs(connection: Connection, rows: list[dict[str, Any]]) -> None:
    """A run that one database saw end has ended, whichever of two told of it first."""
    for row in rows:
        if row["finished_at"] is not None:
            connection.execute(
                update(runs)
                .where(runs.c.id == row["id"], runs.c.finished_at.is_(None))
                .values(finished_at=row["finished_at"], exit_code=row["exit_code"])
            )


def _see_devices(connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
    # A run names no SM budget; its device is seen with its first row.
    seen = {row["device_key"]: (row["device_name"], row["sms"]) for row in rows if "sms" in row}
    for key, (name, sms) in sorted(seen.items()):
        see_device(connection, key, name, sms)
