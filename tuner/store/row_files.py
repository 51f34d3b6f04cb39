"""Rows as JSON Lines, in the one format of `tuner.trial_json`, between files and tables.

The header names the format, the schema, what was exported and the hash of its content. Lines that
tell how a shape or a run ended hold one object under `outcome` or `run`.
"""

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tuner.errors import TunerError
from tuner.shape import GemmShape
from tuner.store.rows import Row, measurement_row, outcome_of, outcome_row, readable
from tuner.store.tables import MAX_INT64, runs, shape_outcomes
from tuner.store.trust import refusal
from tuner.trial import TrialState
from tuner.trial_json import FORMAT, InvalidRow, from_json, header_device, to_json

GZIP = b"\x1f\x8b"
LONGEST_LINE_BYTES = 16 * 2**20
"""A race of 100,000 rounds is 2 MB; what is longer is no row."""
PATIENCE_LINES = 50
"""A file without a header, none of whose first lines is a row, is something else."""
_MOMENTS = ("measured_at", "started_at", "finished_at")


@dataclass(frozen=True, slots=True)
class Told:
    """A row for a table."""

    table: str
    row: Row


@dataclass(frozen=True, slots=True)
class Refused:
    """What was skipped: where it stood, and why it cannot be used."""

    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


@dataclass
class RowFile:
    """A file being read; `header` is known once the first line was."""

    path: Path
    header: Mapping[str, Any] = field(default_factory=dict)

    def read(self) -> Iterator[Told | Refused]:
        """Every line as a row or as the reason why it is none. A file cut off ends with one.

        Raises: InvalidRow for a file of another format; OSError if it cannot be read.
        """
        number = rows = 0
        try:
            with _opened(self.path) as file:
                while line := file.readline(LONGEST_LINE_BYTES):
                    number += 1
                    if number == 1:
                        yield from self._first(line)
                    elif line.strip():
                        found = self._understood(number, line)
                        rows += isinstance(found, Told)
                        yield found
                    if number > PATIENCE_LINES and not rows and not self.header:
                        raise InvalidRow(f"{self.path} is no file of rows; nothing was imported.")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            if not number:
                raise InvalidRow(f"{self.path} is damaged: {error}.") from error
            yield Refused(f"{self.path}:{number + 1}", f"the compressed file is damaged ({error}).")
        if not number:
            raise InvalidRow(f"{self.path} is empty; a file of rows begins with a header.")

    def _first(self, line: bytes) -> Iterator[Refused]:
        where = f"{self.path}:1"
        try:
            header = _object_of(line)
        except InvalidRow as error:
            yield Refused(where, f"the header cannot be read: {error}")
            return
        if "format" not in header:
            yield Refused(where, "this is not the header of a file of rows.")
            return
        try:
            header_device(header)
        except InvalidRow as error:
            if header["format"] != FORMAT:
                raise InvalidRow(f"{where}: {error} Nothing of the file was read.") from error
            yield Refused(where, str(error))
        self.header = header

    def _understood(self, number: int, line: bytes) -> Told | Refused:
        try:
            return _told(_object_of(line))
        except RecursionError:
            reason = "it is nested too deep to be a row."
        except (TunerError, OverflowError, ValueError, TypeError, KeyError) as error:
            reason = str(error) or type(error).__name__
        return Refused(f"{self.path}:{number}", reason)


def exportable(row: Mapping[str, Any]) -> str | None:
    """The line of a stored measurement; None for one that only another version can tell."""
    value = readable(row)
    if value is None or (value.state is TrialState.OK) != bool(value.samples_us):
        return None
    return line_of(to_json(value))


def line_of(values: Mapping[str, Any]) -> str:
    return json.dumps(values, allow_nan=False, separators=(",", ":")) + "\n"


def outcome_line(row: Mapping[str, Any]) -> str:
    told = {n: v for n, v in row.items() if n not in ("id", "digest")}
    return line_of({"outcome": _plain({**told, "counts": json.loads(row["counts"])})})


def run_line(row: Mapping[str, Any]) -> str:
    return line_of({"run": _plain(row)})


def _opened(path: Path) -> Any:
    with path.open("rb") as file:
        compressed = file.read(2) == GZIP
    return gzip.open(path, "rb") if compressed else path.open("rb")


def _object_of(line: bytes) -> dict[str, Any]:
    if not line.endswith(b"\n") and len(line) == LONGEST_LINE_BYTES:
        raise InvalidRow(f"the line is longer than {LONGEST_LINE_BYTES} bytes.")
    try:
        values = json.loads(line.decode("utf-8-sig"), parse_constant=_no_number)
    except UnicodeDecodeError:
        raise InvalidRow("this is not UTF-8.") from None
    except ValueError as error:
        cut = "" if line.endswith(b"\n") else "; the file seems to be cut off"
        raise InvalidRow(f"this is not JSON ({error}){cut}.") from None
    if not isinstance(values, dict):
        raise InvalidRow("a line must be one JSON object.")
    return values


def _told(values: Mapping[str, Any]) -> Told:
    if set(values) == {"outcome"}:
        return Told("shape_outcomes", _outcome(values["outcome"]))
    if set(values) == {"run"}:
        return Told("runs", _typed(values["run"], {c.name for c in runs.columns}))
    if "format" in values:
        raise InvalidRow("a second header; import such files one by one.")
    measurement = from_json(values)
    if reason := refusal(measurement):
        raise InvalidRow(reason)
    return Told("measurements", measurement_row(measurement))


def _outcome(values: Any) -> Row:
    names = {c.name for c in shape_outcomes.columns} - {"id", "digest"}
    row = _typed(values, names)
    GemmShape(row["m"], row["n"], row["k"])
    counts = row["counts"]
    if not isinstance(counts, dict) or not all(isinstance(n, int) for n in counts.values()):
        raise InvalidRow("counts must be numbers by state.")
    return outcome_row(outcome_of({**row, "counts": json.dumps(counts)}))


_KINDS: dict[str, Any] = {
    **dict.fromkeys(("m", "n", "k", "sms", "trials", "compiled", "exit_code"), int),
    **dict.fromkeys(("seconds", "verify_seconds", "measure_seconds"), (int, float)),
    "counts": dict,
}
_MAY_LACK = ("finished_at", "exit_code")


def _typed(values: Any, names: set[str]) -> Row:
    """The columns `names` with their types. Raises: InvalidRow naming the field."""
    if not isinstance(values, dict) or set(values) != names:
        raise InvalidRow(f"the object must have the fields {sorted(names)}.")
    row: Row = {}
    for name, value in values.items():
        if value is None and name in _MAY_LACK and "exit_code" in names:
            row[name] = None
        elif not isinstance(value, _KINDS.get(name, str)) or isinstance(value, bool):
            raise InvalidRow(f"{name} cannot be {str(value)[:40]!r}.")
        elif name in _MOMENTS:
            row[name] = _moment(name, value)
        elif isinstance(value, int) and abs(value) > MAX_INT64:
            raise InvalidRow(f"{name} is beyond 64 bits.")
        else:
            row[name] = value
    return row


def _moment(name: str, text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise InvalidRow(f"{name} names no time zone.")
    return moment


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {n: v.isoformat() if isinstance(v, datetime) else v for n, v in row.items()}


def _no_number(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")
