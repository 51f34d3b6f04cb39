"""What is wrong with the rows themselves: changed, orphaned, impossible, or of another version."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Table, func, select

from tuner.errors import StoreError, TunerError
from tuner.lookup.snapshot import InvalidSnapshot
from tuner.store.generation_rows import snapshot_of
from tuner.store.rows import digest_of, readable
from tuner.store.source import rows_of
from tuner.store.tables import (
    APPEND_ONLY,
    devices,
    generations,
    measurements,
    publications,
    runs,
    shape_outcomes,
)
from tuner.store.trust import impossible_moment, refusal

SHOWN = 5
"""Rows of one fault that are named; the rest is counted."""


@dataclass
class Soundness:
    """problems: what ought not to be, as sentences. notes: what is odd and does no harm."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def examine(connection: Connection, location: str) -> Soundness:
    """Read every row, changing nothing."""
    found = Soundness()
    faults: dict[str, list[int]] = {}
    for table in APPEND_ONLY:
        for row in rows_of(connection, table):
            for fault in _row_faults(table, row):
                faults.setdefault(f"{table.name}|{fault}", []).append(row["id"])
    for key, ids in faults.items():
        name, _, fault = key.partition("|")
        sentence = f"{location}: {_rows(name, ids)} {_SENTENCES[fault]}"
        (found.notes if fault in _HARMLESS else found.problems).append(sentence)
    found.problems += [f"{location}: {said}" for said in _orphans(connection)]
    found.problems += [f"{location}: {said}" for said in _bad_generations(connection)]
    found.notes += [f"{location}: {said}" for said in _without_run(connection)]
    return found


_LEAVES_OUT = "a copy made by `tuner export --format sqlite` leaves them out."
_SENTENCES = {
    "changed": f"are not what their digest says; somebody changed them; {_LEAVES_OUT}",
    "impossible": f"tell of something no device can have done, and never win; {_LEAVES_OUT}",
    "moment": "have a time that cannot be; a clock was wrong.",
    "version": "can only be read by another version of gemm-tuner; they are kept.",
}
_HARMLESS = ("version", "moment")


def _row_faults(table: Table, row: Mapping[str, Any]) -> Iterator[str]:
    try:
        if digest_of(row) != row["digest"]:
            yield "changed"
            return
        at = row["measured_at" if table is measurements else "finished_at"]
        if impossible_moment(at, datetime.now(UTC)):
            yield "moment"
        if table is shape_outcomes:
            if min(row["seconds"], row["verify_seconds"], row["measure_seconds"]) < 0:
                yield "impossible"
            return
        value = readable(row)
        if value is None:
            yield "version"
        elif refusal(value):
            yield "impossible"
    except (TypeError, ValueError, TunerError):
        yield "changed"


def _rows(table: str, ids: list[int]) -> str:
    shown = ", ".join(map(str, ids[:SHOWN]))
    more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    return f"rows {shown}{more} of {table}"


def _orphans(connection: Connection) -> Iterator[str]:
    known = select(devices.c.key)
    for table in APPEND_ONLY:
        query = select(table.c.device_key).where(table.c.device_key.not_in(known)).distinct()
        for key in connection.execute(query).scalars():
            yield (
                f"{table.name} has rows of the device {key}, which devices does not know; "
                "`tuner merge` into a new database adds it."
            )
    missing = (
        select(publications.c.device_key, publications.c.generation_id)
        .where(publications.c.generation_id.not_in(select(generations.c.id)))
        .distinct()
    )
    for row in connection.execute(missing):
        yield (
            f"{row.device_key} was to serve the generation {row.generation_id}, which is gone; "
            "`tuner publish` makes a new one."
        )


def _without_run(connection: Connection) -> Iterator[str]:
    for table in APPEND_ONLY:
        known = select(runs.c.id)
        query = (
            select(func.count())
            .select_from(table)
            .where(table.c.run_id != "", table.c.run_id.not_in(known))
        )
        if count := connection.execute(query).scalar_one():
            yield f"{count} rows of {table.name} name a run that was not brought with them."


def _bad_generations(connection: Connection) -> Iterator[str]:
    query = select(generations.c.id, generations.c.body, generations.c.entries)
    for row in connection.execute(query).mappings():
        try:
            if len(snapshot_of(dict(row)).entries) != row["entries"]:
                yield f"the generation {row['id']} has another number of entries than it says."
        except (InvalidSnapshot, StoreError) as error:
            yield f"{error} Roll back to another with `tuner generations rollback`."
