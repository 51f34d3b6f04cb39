"""A database, or one device of it, as a file: JSON Lines or SQLite, with a header that names it."""

import gzip
import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from alembic.script import ScriptDirectory
from sqlalchemy import Table

from tuner import __version__
from tuner.errors import StoreError
from tuner.store.content import content_hash
from tuner.store.engine import open_store
from tuner.store.intake import Intake
from tuner.store.output import OutputError, whole_file
from tuner.store.repository import Repository
from tuner.store.row_files import Refused, exportable, line_of, outcome_line, run_line
from tuner.store.schema import MIGRATIONS
from tuner.store.source import EXPORT_TABLE, Source, rows_of
from tuner.store.sqlite_file import HEADER
from tuner.store.tables import measurements, runs, shape_outcomes
from tuner.trial_json import FORMAT


@dataclass(frozen=True, slots=True)
class Exported:
    """A file that was written. left_out: rows that only another version of gemm-tuner can read."""

    path: Path
    content_hash: str
    rows: Mapping[str, int]
    left_out: int = 0


def export_lines(source: Source, path: Path, device_key: str | None = None) -> Exported:
    """Write JSON Lines, compressed if the name ends in .gz. Raises: OutputError, StoreError."""
    written: Counter[str] = Counter()
    digests: list[str] = []
    left_out = 0
    _refuse_self(source, path)
    with whole_file(path) as target:
        body = target.with_name(target.name + ".body")
        with source.moment() as connection, body.open("w", encoding="utf-8") as file:
            for table in (measurements, shape_outcomes, runs):
                for row in rows_of(connection, table, device_key):
                    line = _line(table, row)
                    if line is None:
                        left_out += 1
                        continue
                    file.write(line)
                    written[table.name] += 1
                    digests += [row["digest"]] if table is not runs else []
        told = content_hash(digests)
        header = _header(source.location, device_key, told, written)
        with _writer(path, target) as file, body.open("rb") as lines:
            file.write(line_of(header).encode())
            shutil.copyfileobj(lines, file, 2**20)
    return Exported(path, told, written, left_out)


def export_sqlite(source: Source, path: Path, device_key: str | None = None) -> Exported:
    """Write a SQLite file of the newest schema, generations included.

    A row whose content is not what its digest says is left out. Raises: OutputError, StoreError.
    """
    refused: list[Refused] = []
    _refuse_self(source, path)
    with whole_file(path) as target:
        try:
            with open_store(f"sqlite:///{target}") as into:
                with Intake(into) as intake:
                    for row in source.read(device_key):
                        if isinstance(row, Refused):
                            refused.append(row)
                        else:
                            intake.take(row)
                told = content_hash(intake.digests)
                _sign(into, _header(source.location, device_key, told, intake.seen))
            # One file, without the log that only a database in use needs.
            with closing(sqlite3.connect(target)) as connection:
                connection.execute("PRAGMA journal_mode = DELETE")
        except (StoreError, sqlite3.Error) as error:
            raise OutputError(f"{path} cannot be written: {error}") from error
    return Exported(path, told, +intake.seen, len(refused))


def is_database(path: Path) -> bool:
    """Whether the file begins as a SQLite database does. Raises: OSError if it cannot be read."""
    with path.open("rb") as file:
        return file.read(len(HEADER)) == HEADER


def read_header(text: str | None) -> Mapping[str, Any]:
    """The header in a SQLite file; empty if there is none that can be read."""
    try:
        header = json.loads(text or "{}")
    except ValueError:
        return {}
    return header if isinstance(header, dict) else {}


def _line(table: Table, row: Mapping[str, Any]) -> str | None:
    if table is measurements:
        return exportable(row)
    return outcome_line(row) if table is shape_outcomes else run_line(row)


def _header(
    location: str, device_key: str | None, told: str, written: Mapping[str, int]
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "device": None,
        "content_hash": told,
        "measurements": written.get("measurements", 0),
        "shape_outcomes": written.get("shape_outcomes", 0),
        "runs": written.get("runs", 0),
        "schema": ScriptDirectory(str(MIGRATIONS)).get_current_head(),
        "version": __version__,
        "exported_from": location,
        "only_device": device_key,
        "exported_at": datetime.now(UTC).isoformat(),
    }


@contextmanager
def _writer(path: Path, target: Path) -> Iterator[IO[bytes]]:
    with target.open("wb") as file:
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
                yield packed  # type: ignore[misc]
        else:
            yield file
        file.flush()


def _sign(into: Repository, header: Mapping[str, Any]) -> None:
    with into.transaction(writes=True) as connection:
        connection.exec_driver_sql(f"CREATE TABLE {EXPORT_TABLE} (header TEXT NOT NULL)")
        connection.exec_driver_sql(
            f"INSERT INTO {EXPORT_TABLE} VALUES (?)", (json.dumps(header, sort_keys=True),)
        )


def _refuse_self(source: Source, path: Path) -> None:
    if path.exists() and Path(source.location).exists() and path.samefile(source.location):
        raise OutputError(f"{path} is the database itself; name another file.")
