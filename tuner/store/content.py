"""What names the content of a database: a hash over the digests of its rows, in any order."""

from collections.abc import Iterable
from hashlib import sha256

from sqlalchemy import Connection, select

from tuner.store.tables import measurements, shape_outcomes

SHOWN_DIGITS = 16
"""Of a hash, where a person reads it."""


def content_hash(digests: Iterable[str]) -> str:
    """SHA-256 over the distinct digests in ascending order: the same for the same set of rows."""
    told = sha256()
    for digest in sorted(set(digests)):
        told.update(bytes.fromhex(digest))
    return told.hexdigest()


def digests(connection: Connection, device_key: str | None = None) -> Iterable[str]:
    """Of every measurement and outcome, or of those of one device."""
    for table in (measurements, shape_outcomes):
        query = select(table.c.digest)
        if device_key is not None:
            query = query.where(table.c.device_key == device_key)
        yield from connection.execute(query.execution_options(yield_per=10_000)).scalars()


def database_hash(connection: Connection, device_key: str | None = None) -> str:
    """The content hash of what is stored, or of what is stored of one device."""
    return content_hash(digests(connection, device_key))
