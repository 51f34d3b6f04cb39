"""The best answers of a device as one immutable value, named by the hash of its bytes.

The store publishes snapshots, the service hands them out and the client reads them; two readers
that name one id agree on every answer.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal, get_args

from tuner.config import KernelConfig
from tuner.entry import on_terms
from tuner.errors import InvalidConfig, TunerError
from tuner.lookup.answer import Answer
from tuner.lookup.entries import Entry, entry_of, problem_of
from tuner.lookup.layer import Layer
from tuner.lookup.miss import Miss, MissState
from tuner.lookup.numerics import Numerics
from tuner.lookup.terms import ALL_TERMS, Terms
from tuner.shape import Problem

SNAPSHOT_FORMAT = "gemm-tuner-snapshot/2"
"""Under each entry an answer for all terms, and layers."""
FIRST_FORMAT = "gemm-tuner-snapshot/1"
"""Under each entry an answer for each protocol, and no layers; still read."""
_PROTOCOLS = frozenset(terms.protocol for terms in ALL_TERMS)
Kind = Literal["added", "removed", "changed", "remeasured"]


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
        named = read.get("format") if isinstance(read, dict) else None
        if named not in (SNAPSHOT_FORMAT, FIRST_FORMAT):
            raise InvalidSnapshot(
                f"the snapshot names the format {named!r}; this version reads {SNAPSHOT_FORMAT} "
                f"and {FIRST_FORMAT}."
            )
        return dict(read)

    @property
    def format(self) -> str:
        return str(self._read["format"])

    @property
    def device_key(self) -> str:
        return str(self._read["device"]["key"])

    @property
    def device_name(self) -> str:
        return str(self._read["device"]["name"])

    @cached_property
    def entries(self) -> list[Entry]:
        """One for each problem, in the order of problems; see `entry_of`.

        `under` holds the answer for every other label of terms that has one.
        """
        complete = _with_all_terms if self.format == FIRST_FORMAT else _with_repeats
        return [complete(entry) for entry in self._read["entries"]]

    @cached_property
    def refused(self) -> Mapping[Problem, Miss]:
        """Why problems that were tuned have no entry."""
        return {problem_of(told): _miss(told) for told in self._read.get("refused", ())}

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        return tuple(Layer.from_json(layer) for layer in self._read.get("layers", ()))

    def find(
        self,
        problem: Problem,
        protocol: str | None = None,
        *,
        plain: bool = False,
        numerics: Numerics | None = None,
    ) -> Entry | None:
        """The answer to `problem` on the terms asked for; None without one."""
        found = self._by_problem.get(problem)
        label = Terms(protocol, plain, numerics == "invariant").label
        if found is None or not label:
            return found
        under: Entry | None = found["under"].get(label)
        return under

    @cached_property
    def _by_problem(self) -> dict[Problem, Entry]:
        return {problem_of(entry): entry for entry in self.entries}


@dataclass(frozen=True, slots=True)
class Change:
    """What differs in one problem or layer; `changed` is another config or routine to use."""

    kind: Kind
    problem: str
    before: Entry | None
    after: Entry | None


def build_snapshot(
    device_key: str,
    device_name: str,
    answers: Iterable[tuple[Answer, Mapping[str, Answer]]],
    layers: Iterable[Layer] = (),
    refused: Mapping[Problem, Miss] | None = None,
) -> Snapshot:
    """Each answer with what is best on other terms, by label. The order of answers is no matter.

    refused: why problems without an answer have none.
    """
    entries = {best.problem: _entry(best, under) for best, under in answers}
    body: dict[str, Any] = {
        "format": SNAPSHOT_FORMAT,
        "device": {"key": device_key, "name": device_name},
        "entries": [entries[problem] for problem in sorted(entries)],
        "layers": [layer.to_json() for layer in sorted(layers, key=_layer_order)],
    }
    if refused:
        body["refused"] = [_refusal(problem, refused[problem]) for problem in sorted(refused)]
    return Snapshot(_canonical(body).encode())


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
            problem_of(entry)
            for told in (entry, *entry["under"].values()):
                dict(told["config"]), told["use"], told["library"]
        str(snapshot.device_key + snapshot.device_name), len(snapshot.layers), len(snapshot.refused)
    except (AttributeError, KeyError, TypeError, ValueError, TunerError) as error:
        raise InvalidSnapshot(f"the snapshot {id} is not of this form ({error}).") from None
    return snapshot


def compare(before: Snapshot, after: Snapshot) -> list[Change]:
    """What changed from one snapshot to the other, by problem and then by interval of a layer.

    Where one is of the first format, only what that tells is compared.
    """
    everything = FIRST_FORMAT not in (before.format, after.format)
    old, new = _comparable(before, everything), _comparable(after, everything)
    changes = []
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        if a != b:
            changes.append(Change(_kind(a, b), key[-1], a, b))
    return changes


def _comparable(snapshot: Snapshot, everything: bool) -> dict[tuple[Any, ...], Entry]:
    """Entries, and intervals as entries, by a key that ends with how to call them."""
    found: dict[tuple[Any, ...], Entry] = {}
    for entry in snapshot.entries:
        problem = problem_of(entry)
        under = {
            label: told
            for label, told in entry["under"].items()
            if everything or label in _PROTOCOLS
        }
        found[0, problem, "", 0, _called(problem, str(problem.shape))] = {**entry, "under": under}
    for layer in snapshot.layers:
        for told in layer.to_json()["intervals"]:
            low, high = told["m"]
            extents = f"{low}..{high}x{layer.n}x{layer.k}"
            name = " ".join((_called(layer.key, extents), layer.terms.label)).strip()
            interval = {"library": None, "speedup": None, "under": {}, **told}
            found[1, layer.key, layer.terms.label, low, name] = interval
    return found


def _kind(before: Entry | None, after: Entry | None) -> Kind:
    if before is None:
        return "added"
    if after is None:
        return "removed"
    same = all(before[name] == after[name] for name in ("config", "use", "library"))
    return "remeasured" if same else "changed"


def _entry(best: Answer, under: Mapping[str, Answer]) -> dict[str, Any]:
    """An answer that equals the one of another label is that label's name instead."""
    found = entry_of(best)
    labels = {_canonical(found): ""}
    told: dict[str, Any] = {}
    for label in sorted(under):
        entry = entry_of(under[label])
        first = labels.setdefault(_canonical(entry), label)
        told[label] = entry if first == label else first
    return {**found, "under": told}


def _refusal(problem: Problem, miss: Miss) -> dict[str, Any]:
    told = {"state": miss.state, "detail": miss.detail, "counts": miss.counts}
    return {**asdict(problem), **told}


def _miss(told: Mapping[str, Any]) -> Miss:
    """The inverse of `_refusal`. Raises: KeyError, ValueError or TypeError for another form."""
    if told["state"] not in get_args(MissState):
        raise ValueError(f"{told['state']!r} is no state of a miss")
    counts = told["counts"]
    return Miss(told["state"], str(told["detail"]), dict(counts) if counts is not None else None)


def _with_repeats(entry: Entry) -> Entry:
    """The inverse of what `_entry` leaves out."""
    return {**entry, "under": {label: on_terms(entry, label) for label in entry["under"]}}


def _with_all_terms(entry: Entry) -> Entry:
    """An entry of the first format, whose best answers also serve on terms that they meet."""
    under = dict(entry["under"])
    alone = {name: value for name, value in entry.items() if name != "under"}
    for terms in ALL_TERMS:
        best = under.get(terms.protocol) if terms.protocol else alone
        if best is not None and (terms.plain or terms.invariant) and _admits(terms, best["config"]):
            under[terms.label] = {
                **best,
                "ties": [config for config in best["ties"] if _admits(terms, config)],
                **({"use": "kernel", "library": None} if terms.invariant else {}),
            }
    return {**alone, "under": under}


def _admits(terms: Terms, config: Mapping[str, Any]) -> bool:
    try:
        return terms.admit(KernelConfig.from_dict(config))
    except InvalidConfig:
        return False


def _layer_order(layer: Layer) -> tuple[Problem, str]:
    return layer.key, layer.terms.label


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _called(problem: Problem, extents: str) -> str:
    beside = "" if problem.epilogue == "none" else f", {problem.epilogue}"
    rest = f"{problem.dtype} {problem.layout}, d={problem.d}, {problem.sms} SMs{beside}"
    return f"{extents} ({rest})"
