"""A copy of a database that is in use."""

import sqlite3
from contextlib import closing
from pathlib import Path

from tuner.errors import StoreError
from tuner.store import sqlite_file
from tuner.store.engine import locate
from tuner.store.exports import export_sqlite
from tuner.store.output import OutputError, whole_file
from tuner.store.source import opened_source


def back_up(url: str, path: Path) -> bool:
    """Copy the database to a SQLite file; True if every table is in it.

    SQLite copies its pages as they are at one moment, while others write. Of Postgres the copy is
    an export: measurements, outcomes, runs and generations, which is False; leases, misses and
    publications are not in it, and the server's own backups are the better ones.
    Raises: OutputError, StoreError.
    """
    location = locate(url)
    if location.path is None:
        with opened_source(url) as source:
            export_sqlite(source, path)
        return False
    sqlite_file.require_usable(location.path, create=False)
    if path.exists() and path.samefile(location.path):
        raise OutputError(f"{path} is the database itself; name another file.")
    with whole_file(path) as target:
        try:
            with (
                closing(sqlite3.connect(location.path, timeout=30)) as original,
                closing(sqlite3.connect(target)) as copy,
            ):
                original.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.Error as error:
            raise OutputError(f"{path} cannot be written: {error}. Free some space.") from error
        if found := sqlite_file.faults(target):
            raise StoreError(f"the copy of {location} is damaged ({found[0]}); it was removed.")
    return True
