"""What is wrong with a database, for `tuner db check`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import SQLAlchemyError

from tuner.errors import StoreError
from tuner.store import schema, sqlite_file
from tuner.store.engine import Location, locate
from tuner.store.faults import store_error
from tuner.store.soundness import Soundness, examine
from tuner.store.source import reading_engine
from tuner.store.tables import metadata


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """A database as it was found.

    revision: None if it has none of our tables, or could not be read. rows: by table.
    problems: sentences, the gravest first; empty if the database is sound and up to date. notes:
    what is odd and does no harm.
    """

    location: str
    revision: str | None = None
    head: str | None = None
    rows: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems


def check_store(url: str) -> StoreHealth:
    """Read every page and every row of the database, changing nothing.

    Raises: StoreError for a URL that names no database; all else is a problem in the result.
    """
    location = locate(url)
    try:
        if location.path:
            sqlite_file.require_usable(location.path, create=False)
            if found := sqlite_file.faults(location.path):
                raise StoreError(f"the database {location} is damaged: {'; '.join(found)}.")
        return _looked_at(location)
    except StoreError as error:
        return StoreHealth(str(location), problems=(str(error),))


def _looked_at(location: Location) -> StoreHealth:
    engine = reading_engine(location)
    told = Soundness()
    try:
        with engine.connect() as connection:
            found = schema.revision(connection, str(location))
            rows = _count(connection) if found.is_head else {}
            if found.is_head:
                told = examine(connection, str(location))
    except SQLAlchemyError as error:
        raise store_error(str(location), error) from error
    finally:
        engine.dispose()
    problems = tuple(told.problems)
    if not found.is_head:
        stands = f"stands at schema {found.current}" if found.current else "has no tables yet"
        problems = (
            f"the database {location} {stands}; `tuner db upgrade` brings it to {found.head}.",
        )
    return StoreHealth(str(location), found.current, found.head, rows, problems, tuple(told.notes))


def _count(connection: Connection) -> Mapping[str, int]:
    return {
        name: connection.execute(select(func.count()).select_from(table)).scalar_one()
        for name, table in metadata.tables.items()
    }
