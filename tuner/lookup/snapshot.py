"""The best answers of a device as one immutable value, named by the hash of its bytes.

The store publishes snapshots, the service hands them out and the client reads them; two readers
that name one id agree on every answer.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal

from tuner.errors import TunerError
from tuner.lookup.answer import Answer
from tuner.shape import Problem

SNAPSHOT_FORMAT = "gemm-tuner-snapshot/1"
Entry = Mapping[str, Any]
Kind = Literal["added", "removed", "changed", "remeasured"]

_TOLD_ONCE = ("device", "match", "stale")
"""Of an answer: the same for all entries, or a matter between its rows and the reader."""
_PROBLEM = ("m", "n", "k", "sms", "dtype", "layout", "d", "epilogue")


class InvalidSnapshot(TunerError):
    """Bytes that are no snapshot, or not the one that was named."""


@dataclass(frozen=True)
class Snapshot:
    """`body`: canonical JSON in UTF-8; the id is its SHA-256."""

    body: bytes

    @cached_property
    def id(self) -> str:
        return sha256(self.body).hexdigest()

    @cached_property
    def _read(self) -> dict[str, Any]:
        try:
            read = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise InvalidSnapshot(f"a snapshot must be JSON ({error}).") from None
        if not isinstance(read, dict) or read.get("format") != SNAPSHOT_FORMAT:
            named = read.get("format") if isinstance(read, dict) else None
            raise InvalidSnapshot(
                f"the snapshot names the format {named!r}; this version reads {SNAPSHOT_FORMAT}."
            )
        return read

    @property
    def device_key(self) -> str:
        return str(self._read["device"]["key"])

    @property
    def device_name(self) -> str:
        return str(self._read["device"]["name"])

    @property
    def entries(self) -> list[Entry]:
        """One for each problem, in the order of problems; see `entry_of`."""
        return list(self._read["entries"])

    def find(self, problem: Problem, protocol: str | None = None) -> Entry | None:
        """The answer to `problem`, under `protocol` where that is asked for; None without one."""
        found = self._by_problem.get(_key(problem))
        if found is None or protocol is None:
            return found
        under: Entry | None = found["under"].get(protocol)
        return under

    @cached_property
    def _by_problem(self) -> dict[tuple[Any, ...], Entry]:
        return {_entry_key(entry): entry for entry in self.entries}


@dataclass(frozen=True, slots=True)
class Change:
    """What differs in one problem; `changed` is another config or routine to use."""

    kind: Kind
    problem: str
    before: Entry | None
    after: Entry | None


def build_snapshot(
    device_key: str,
    device_name: str,
    answers: Iterable[tuple[Answer, Mapping[str, Answer]]],
) -> Snapshot:
    """Each answer with what is best under single protocols. The order of answers is no matter."""
    entries = [
        {**entry_of(best), "under": {name: entry_of(one) for name, one in under.items()}}
        for best, under in answers
    ]
    body = {
        "format": SNAPSHOT_FORMAT,
        "device": {"key": device_key, "name": device_name},
        "entries": sorted(entries, key=_entry_key),
    }
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return Snapshot(text.encode())


def read_snapshot(body: bytes, id: str) -> Snapshot:
    """The snapshot of that id. Raises: InvalidSnapshot for other or damaged bytes."""
    snapshot = Snapshot(body)
    if snapshot.id != id:
        raise InvalidSnapshot(
            f"the snapshot {id} was changed: its content has the hash {snapshot.id}. Fetch it again"
            " or pin another."
        )
    try:
        for entry in snapshot.entries:
            hash(_entry_key(entry))
            dict(entry["under"]), dict(entry["config"]), entry["use"], entry["library"]
        str(snapshot.device_key + snapshot.device_name)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidSnapshot(f"the snapshot {id} is not of this form ({error}).") from None
    return snapshot


def entry_of(answer: Answer) -> dict[str, Any]:
    """The answer's JSON without what a whole snapshot shares."""
    return {name: value for name, value in answer.to_json().items() if name not in _TOLD_ONCE}


def compare(before: Snapshot, after: Snapshot) -> list[Change]:
    """What changed from one snapshot to the other, by problem."""
    old = {_entry_key(entry): entry for entry in before.entries}
    new = {_entry_key(entry): entry for entry in after.entries}
    changes = []
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        if a != b:
            changes.append(Change(_kind(a, b), _label(key), a, b))
    return changes


def _kind(before: Entry | None, after: Entry | None) -> Kind:
    if before is None:
        return "added"
    if after is None:
        return "removed"
    same = all(before[name] == after[name] for name in ("config", "use", "library"))
    return "remeasured" if same else "changed"


def _entry_key(entry: Entry) -> tuple[Any, ...]:
    values = {**entry["shape"], **entry}
    return tuple(values[name] for name in _PROBLEM)


def _key(problem: Problem) -> tuple[Any, ...]:
    shape = problem.shape
    rest = (problem.sms, problem.dtype, problem.layout, problem.d, problem.epilogue)
    return (shape.m, shape.n, shape.k, *rest)


def _label(key: tuple[Any, ...]) -> str:
    m, n, k, sms, dtype, layout, d, epilogue = key
    beside = "" if epilogue == "none" else f", {epilogue}"
    return f"{m}x{n}x{k} ({dtype} {layout}, d={d}, {sms} SMs{beside})"
