"""Snapshots as rows of `generations`: the body is kept compressed."""

import zlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tuner.lookup.snapshot import InvalidSnapshot, Snapshot, read_snapshot


def generation_row(
    snapshot: Snapshot, at: datetime, by: str, note: str, parent: str | None
) -> dict[str, Any]:
    return {
        "id": snapshot.id,
        "device_key": snapshot.device_key,
        "created_at": at,
        "created_by": by,
        "parent": parent,
        "note": note,
        "entries": len(snapshot.entries),
        "body": zlib.compress(snapshot.body, 9),
    }


def snapshot_of(row: Mapping[str, Any]) -> Snapshot:
    """Raises: InvalidSnapshot for a row whose body is not what its id says."""
    try:
        body = zlib.decompress(row["body"])
    except (zlib.error, TypeError) as error:
        raise InvalidSnapshot(f"the generation {row['id']} is damaged ({error}).") from None
    return read_snapshot(body, row["id"])
