"""A file for what the database cannot take at the moment: JSON Lines, on disk before it counts.

Each process has a file of its own and holds a lock on it, which the operating system frees when
the process dies, however it dies. So what a dead process left can be told from what a living one
still writes. Writing a line to the database twice makes one row.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from sqlalchemy import make_url

from tuner.errors import TunerError
from tuner.store.rows import Row, measurement_of, measurement_row, outcome_of, outcome_row
from tuner.trial import Measurement, ShapeOutcome


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended."""

    run_id: str
    exit_code: int


Entry = Measurement | ShapeOutcome | RunEnd


class Spool:
    """The file of this process for one database; made with the first entry."""

    def __init__(self, folder: Path, location: str) -> None:
        self._folder, self._name = folder, _name_of(location)
        self._descriptor: int | None = None
        self.path = folder / f"{self._name}-{uuid4().hex}.jsonl"

    @property
    def is_empty(self) -> bool:
        return self._descriptor is None

    def append(self, entries: Sequence[Entry]) -> None:
        """Keep all entries or none. Raises: OSError if the file cannot be written either."""
        text = "".join(_line(entry) for entry in entries).encode()
        if self._descriptor is None:
            self._descriptor = self._made()
        size = os.fstat(self._descriptor).st_size
        try:
            _write_all(self._descriptor, text)
            os.fsync(self._descriptor)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._descriptor, size)
            raise

    def entries(self) -> list[Entry]:
        """What is kept, in order."""
        return [] if self._descriptor is None else read(self.path)[0]

    def clear(self) -> None:
        """Forget everything: the database has it."""
        if self._descriptor is not None:
            self.path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None

    def close(self) -> None:
        """Leave what is kept to the next run."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def left_behind(self) -> Iterator[Path]:
        """Files of processes that died, each locked for as long as the loop looks at it."""
        for path in sorted(self._folder.glob(f"{self._name}-*.jsonl")):
            if path == self.path:
                continue
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except OSError:
                continue  # another process has just written it to the database
            try:
                if _locked(descriptor) and path.exists():
                    yield path
            finally:
                os.close(descriptor)

    def _made(self) -> int:
        self._folder.mkdir(parents=True, exist_ok=True)
        # Locked before it has the name by which others find it.
        unnamed = self.path.with_suffix(".new")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(unnamed, flags, 0o600)
        _locked(descriptor)
        unnamed.rename(self.path)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return descriptor


def read(path: Path) -> tuple[list[Entry], list[str]]:
    """The entries of a file, and a sentence for every line that is none.

    A process that was killed while it wrote leaves half a last line.
    """
    found: list[Entry] = []
    faults = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line:
            continue
        try:
            found.append(_entry(json.loads(line)))
        except (ValueError, LookupError, TypeError, AttributeError, TunerError) as error:
            faults.append(f"{path}:{number}: this line cannot be read ({error}).")
    return found, faults


def set_aside(path: Path) -> Path:
    """Rename a file with unreadable lines, so that it is kept and not read again."""
    return path.rename(path.with_suffix(".unreadable"))


def _name_of(location: str) -> str:
    """One name for one database, whoever asks and from whichever folder."""
    if "://" not in location:
        return sha256(os.fsencode(Path(location).resolve())).hexdigest()[:16]
    url = make_url(location)
    place = [url.query.get("host") or url.host, url.port or 5432, url.database]
    return sha256(json.dumps(place).encode()).hexdigest()[:16]


def _line(entry: Entry) -> str:
    match entry:
        case Measurement():
            told: Row = {"measurement": measurement_row(entry)}
        case ShapeOutcome():
            told = {"outcome": outcome_row(entry)}
        case RunEnd():
            told = {"run_end": asdict(entry)}
    return json.dumps(told, allow_nan=False, default=datetime.isoformat) + "\n"


def _entry(told: Mapping[str, Row]) -> Entry:
    ((kind, row),) = told.items()
    match kind:
        case "measurement":
            measured_at = datetime.fromisoformat(row["measured_at"])
            measurement = measurement_of({**row, "measured_at": measured_at})
            return _unharmed(row, measurement_row(measurement), measurement)
        case "outcome":
            outcome = outcome_of({**row, "finished_at": datetime.fromisoformat(row["finished_at"])})
            return _unharmed(row, outcome_row(outcome), outcome)
        case "run_end":
            return RunEnd(**row)
    raise ValueError(f"{kind} is no kind of entry")


def _unharmed(row: Row, again: Row, entry: Entry) -> Entry:
    if row["digest"] != again["digest"]:
        raise ValueError("its digest differs")
    return entry


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_all(descriptor: int, text: bytes) -> None:
    while text:
        text = text[os.write(descriptor, text) :]
