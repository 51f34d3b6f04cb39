"""Rows from one database to another: a set union over digests, through files or directly.

A row stays what it was, its source, worker and run included, so that a fact that travels by two
ways is one row. That rows came from elsewhere is told by a run of source `import`, which names
where from and the hash of what was brought.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from tuner import __version__
from tuner.store.content import SHOWN_DIGITS, content_hash, database_hash
from tuner.store.exports import is_database, read_header
from tuner.store.intake import Intake
from tuner.store.repository import Repository
from tuner.store.row_files import Refused, RowFile, Told
from tuner.store.source import export_header, opened_source
from tuner.store.tables import runs
from tuner.trial_json import InvalidRow


@dataclass(frozen=True, slots=True)
class Moved:
    """What came out of one file or database.

    seen, added: rows by table, those read and those that were new. refused: what was skipped and
    why. content_hash: of the measurements and outcomes read. changed: how they differ from what
    the header says; None if they agree or there is nothing to compare with.
    """

    origin: str
    seen: Mapping[str, int] = field(default_factory=dict)
    added: Mapping[str, int] = field(default_factory=dict)
    refused: tuple[Refused, ...] = ()
    content_hash: str = ""
    changed: str | None = None

    @property
    def whole(self) -> bool:
        return not self.refused and self.changed is None


def import_file(into: Repository, path: Path) -> Moved:
    """Bring the rows of a file of rows, plain or compressed, or of a SQLite file.

    Raises: StoreError or InvalidRow for a file none of which can be used; OSError if it cannot be
    read.
    """
    if is_database(path):
        return merge(into, f"sqlite:///{path.absolute()}", "import")
    file = RowFile(path)
    moved = _brought(into, str(path), file.read(), file)
    if not moved.seen and moved.refused and not file.header:
        raise InvalidRow(
            f"{path} is no file of rows: {moved.refused[0].reason} Nothing was imported from it."
        )
    return moved


def merge(into: Repository, url: str, command: str = "merge") -> Moved:
    """Bring every row of another database. Raises: StoreError if it cannot be read."""
    with opened_source(url) as source:
        header = export_header(source) if command == "import" else None
        file = RowFile(Path(source.location), read_header(header))
        return _brought(into, source.location, source.read(), file, command)


def stored_hash(repository: Repository, device_key: str | None = None) -> str:
    """The content hash of a database as it is now."""
    with repository.transaction(writes=False, moment=True) as connection:
        return database_hash(connection, device_key)


def _brought(
    into: Repository,
    origin: str,
    rows: Iterable[Told | Refused],
    file: RowFile,
    command: str = "import",
) -> Moved:
    began = datetime.now(UTC)
    refused: list[Refused] = []
    with Intake(into) as intake:
        for row in rows:
            if isinstance(row, Refused):
                refused.append(row)
            else:
                intake.take(row)
    found = content_hash(intake.digests)
    if sum(intake.added.values()):
        _note(into, _run(f"{command} {origin}", found, intake.device_keys, began))
    return Moved(
        origin,
        +intake.seen,
        +intake.added,
        tuple(refused),
        found,
        _difference(file.header, found, len(intake.digests)),
    )


def _difference(header: Mapping[str, Any], found: str, rows: int) -> str | None:
    told = header.get("content_hash")
    if told is None or told == found:
        return None
    counts = [header.get(name) for name in ("measurements", "shape_outcomes")]
    written = sum(n for n in counts if isinstance(n, int))
    return (
        f"it was changed since it was exported: {rows} of {written} rows could be used, and their "
        f"content hash is {found[:SHOWN_DIGITS]}, not {str(told)[:SHOWN_DIGITS]}."
    )


def _run(what: str, found: str, device_keys: set[str], began: datetime) -> dict[str, Any]:
    return {
        "id": f"import-{uuid4().hex[:12]}",
        "command": f"tuner {what} (content {found})",
        "version": __version__,
        "source": "import",
        "device_key": next(iter(device_keys)) if len(device_keys) == 1 else "",
        "device_name": "",
        "gpu_uuid": "",
        "driver": "",
        "cublas_version": "",
        "started_at": began,
        "finished_at": datetime.now(UTC),
        "exit_code": 0,
    }


def _note(into: Repository, run: dict[str, Any]) -> None:
    with into.transaction(writes=True) as connection:
        connection.execute(runs.insert(), [run])
