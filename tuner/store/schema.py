"""The revision of a database, and the way to the newest one."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from tuner import __version__, migrations
from tuner.errors import StoreError
from tuner.store.tables import metadata

VERSION_TABLE = "tuner_alembic_version"
MIGRATIONS = Path(migrations.__file__).parent
_ONE_AT_A_TIME = Lock()
"""Alembic keeps the running migration in module globals."""
_POSTGRES_LOCK = 0x67656D6D
"""Any constant number: the advisory lock that two processes upgrading at once agree on."""


@dataclass(frozen=True, slots=True)
class Revision:
    """Where a database stands; `current` is None before the first migration."""

    current: str | None
    head: str

    @property
    def is_head(self) -> bool:
        return self.current == self.head


def is_ours(name: str | None, kind: str, parents: Any) -> bool:
    """Alembic's `include_name`: whether to look at a table at all."""
    del parents
    return kind != "table" or name in metadata.tables


def revision(connection: Connection, location: str, scripts: Path = MIGRATIONS) -> Revision:
    """Read the revision, writing nothing.

    Raises: StoreError for a database of a newer gemm-tuner, and for tables of somebody else's
    that carry our names.
    """
    script = ScriptDirectory(str(scripts))
    head = script.get_current_head()
    assert head is not None
    known = {r.revision for r in script.walk_revisions()}
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    found = context.get_current_heads()
    foreign: set[str] = set()
    if not found:
        foreign = set(inspect(connection).get_table_names()) & set(metadata.tables)
        # Another process may have made them since the first look, and has then said so.
        found = context.get_current_heads() if foreign else ()
    if unknown := [r for r in found if r not in known]:
        raise StoreError(
            f"the database {location} has schema {unknown[0]}, made by a newer gemm-tuner; this "
            f"one, {__version__}, knows schemas up to {head}. Upgrade gemm-tuner, or name another "
            "database; nothing was changed."
        )
    if foreign and not found:
        raise StoreError(
            f"the database {location} has a table {sorted(foreign)[0]} that gemm-tuner did not "
            "make. Name another database; nothing was changed."
        )
    return Revision(found[0] if found else None, head)


def upgrade(
    connection: Connection,
    location: str,
    before: Callable[[str], object],
    scripts: Path = MIGRATIONS,
) -> Revision:
    """Bring the database to the newest revision inside the caller's transaction.

    `connection` must hold the write lock of a SQLite file, so that of two processes the second
    finds the work done. `before` is called with the old revision of a database that has one.
    Returns where it stood. Raises: StoreError as `revision` does.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _POSTGRES_LOCK})
    stood = revision(connection, location, scripts)
    if not stood.is_head:
        if stood.current is not None:
            before(stood.current)
        _run(command.upgrade, connection, "head", scripts)
    return stood


def downgrade(connection: Connection, target: str, scripts: Path = MIGRATIONS) -> None:
    """Take the database back to `target`; `base` removes every table of ours, data included."""
    _run(command.downgrade, connection, target, scripts)


def _run(
    step: Callable[[Config, str], None], connection: Connection, target: str, scripts: Path
) -> None:
    config = Config()
    # ConfigParser would take a percent sign in the path for a substitution.
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    with _ONE_AT_A_TIME:
        step(config, target)
