"""Another database to read from, which is never written to."""

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Select, Table, Text, event, select, type_coerce
from sqlalchemy.exc import SQLAlchemyError

from tuner.errors import InvalidShape, StoreError
from tuner.lookup.snapshot import InvalidSnapshot
from tuner.store import schema, sqlite_file
from tuner.store.engine import Location, locate, make_engine, upgrade
from tuner.store.faults import store_error
from tuner.store.generation_rows import snapshot_of
from tuner.store.queries import ENDINGS
from tuner.store.row_files import Refused, Told
from tuner.store.rows import digest_of, measurement_row, outcome_of, readable
from tuner.store.tables import UtcTime, generations, measurements, runs, shape_outcomes
from tuner.store.trust import refusal

EXPORT_TABLE = "tuner_export"
"""In a file made by `tuner export --format sqlite`: one row, the header."""

_MISTYPED = (AttributeError, TypeError, ValueError, OverflowError, InvalidShape, StoreError)
"""What the values of a row raise that nobody of ours wrote."""


class SourceUnusable(StoreError):
    """A database that cannot be read from, as opposed to the one that is written to."""


@dataclass(frozen=True, slots=True)
class Source:
    """An open database at this version's schema."""

    location: str
    engine: Engine

    @contextmanager
    def moment(self) -> Iterator[Connection]:
        """A transaction in which every statement sees the same rows. Raises: SourceUnusable."""
        options = {"isolation_level": "REPEATABLE READ"}
        postgres = self.engine.dialect.name == "postgresql"
        try:
            with (
                self.engine.connect().execution_options(**(options if postgres else {})) as opened,
                opened.begin(),
            ):
                yield opened
        except SQLAlchemyError as error:
            raise SourceUnusable(str(store_error(self.location, error))) from error

    def read(self, device_key: str | None = None) -> Iterator[Told | Refused]:
        """Every row, or those of one device; one that is not what its digest says is refused."""
        with self.moment() as connection:
            for table in (measurements, shape_outcomes, runs, generations):
                for row in rows_of(connection, table, device_key):
                    yield self._checked(table, row)

    def _checked(self, table: Table, row: Mapping[str, Any]) -> Told | Refused:
        where = f"{self.location}: {table.name} {row['id']}"
        try:
            value = readable(row) if table is measurements else None
            if value is None:
                reason = _fault(table, row)
            else:
                made = measurement_row(value)
                reason = _changed(made["digest"], row) or refusal(value)
                row = {**row, **made}
            if reason:
                return Refused(where, reason)
        except _MISTYPED as error:
            return Refused(where, f"a value of another type: {error}")
        # Row numbers are each database's own; names of runs and generations are not.
        kept = {n: v for n, v in row.items() if n != "id" or "digest" not in table.c}
        return Told(table.name, kept)


def rows_of(
    connection: Connection, table: Table, device_key: str | None = None
) -> Iterator[dict[str, Any]]:
    """The rows of a table, oldest first, times as UTC; few at a time in memory."""
    lenient = connection.dialect.name == "sqlite"
    query: Select[Any] = select(
        *(
            # SQLite would let one time that is none end the whole query.
            type_coerce(c, Text).label(c.name) if lenient and isinstance(c.type, UtcTime) else c
            for c in table.columns
        )
    ).order_by(table.c.id)
    if device_key is not None:
        query = query.where(table.c.device_key == device_key)
    times = [c.name for c in table.columns if isinstance(c.type, UtcTime)] if lenient else []
    for row in connection.execute(query.execution_options(yield_per=2000)).mappings():
        yield {**row, **{name: _moment(row[name]) for name in times}}


@contextmanager
def opened_source(url: str) -> Iterator[Source]:
    """Open a database for reading. A SQLite file of an older schema is read from an upgraded copy.

    Raises: SourceUnusable for one that is newer, damaged, empty, not there, or not gemm-tuner's.
    """
    with tempfile.TemporaryDirectory(prefix="tuner-source-") as folder:
        try:
            location = locate(url)
            engine = _ready(location, Path(folder))
        except StoreError as error:
            raise SourceUnusable(str(error)) from error
        try:
            yield Source(str(location), engine)
        finally:
            engine.dispose()


def export_header(source: Source) -> str | None:
    """What `tuner export` wrote about the file; None for a database that it did not make."""
    with source.moment() as connection:
        if not connection.dialect.has_table(connection, EXPORT_TABLE):
            return None
        found = connection.exec_driver_sql(f"SELECT header FROM {EXPORT_TABLE}").scalar()
    return found if isinstance(found, str) else None


def _ready(location: Location, folder: Path) -> Engine:
    if location.path:
        _require_whole(location.path)
    engine = reading_engine(location)
    try:
        stood = _revision(engine, location)
        if stood.is_head:
            return engine
    except BaseException:
        engine.dispose()
        raise
    engine.dispose()
    return reading_engine(_upgraded(location, stood, folder))


def _require_whole(path: Path) -> None:
    if not path.is_file():
        raise StoreError(f"there is no database at {path}; name a file that is there.")
    try:
        with path.open("rb") as file:
            ours = file.read(16) == sqlite_file.HEADER
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}.") from None
    if not ours:
        raise StoreError(f"{path} is not a SQLite database; it was left as it is.")
    if found := sqlite_file.faults(path):
        raise StoreError(
            f"the database {path} is damaged ({found[0]}); it was left as it is. Save what can be "
            f"read with `sqlite3 {path} .recover`, or take a copy."
        )


def reading_engine(location: Location) -> Engine:
    """An engine that text which is no UTF-8 does not stop."""
    engine = make_engine(location)
    if location.path:

        @event.listens_for(engine, "connect")
        def _lenient(connection: Any, record: Any) -> None:
            del record
            connection.text_factory = lambda text: text.decode(errors="replace")

    return engine


def _revision(engine: Engine, location: Location) -> schema.Revision:
    try:
        with engine.connect() as connection:
            return schema.revision(connection, str(location))
    except SQLAlchemyError as error:
        raise store_error(str(location), error) from error


def _upgraded(location: Location, stood: schema.Revision, folder: Path) -> Location:
    if stood.current is None:
        raise StoreError(f"{location} holds no tables of gemm-tuner; nothing was read from it.")
    if location.path is None:
        raise StoreError(
            f"{location} stands at schema {stood.current}; bring it to {stood.head} with "
            "`tuner db upgrade` first."
        )
    copy = locate(f"sqlite:///{folder / 'copy.db'}")
    assert copy.path is not None
    try:
        with (
            closing(sqlite3.connect(location.path)) as original,
            closing(sqlite3.connect(copy.path)) as target,
        ):
            original.backup(target)
        engine = make_engine(copy)
        try:
            upgrade(engine, copy)
        finally:
            engine.dispose()
            for made in folder.glob("*.backup"):
                made.unlink()
    except (OSError, sqlite3.Error) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise StoreError(f"{location} could not be copied to be upgraded: {error}.") from error
    return copy


def _fault(table: Table, row: Mapping[str, Any]) -> str | None:
    if table is generations:
        try:
            snapshot_of(row)
        except InvalidSnapshot as error:
            return str(error)
        return None
    if "digest" not in table.c:
        return None
    if reason := _changed(digest_of(row), row):
        return reason
    if table is shape_outcomes and row["state"] in ENDINGS:
        outcome_of(row)
    return None


def _changed(found: str, row: Mapping[str, Any]) -> str | None:
    if found == row["digest"]:
        return None
    return f"the row was changed: its content has the digest {found[:16]}."


def _moment(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
