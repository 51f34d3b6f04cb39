"""An entry of a snapshot as the JSON it is: which problem it answers, and on which terms.

Programs look tuned configs up while they are imported, so nothing is imported here; the values of
`tuner.lookup` are made from entries by `tuner/lookup/entries.py`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, which takes longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    Entry = Mapping[str, Any]
    Key = tuple[int, int, int, int, str, str, str, str]

EXACT = "exact"
COMPILER = "nvrtc "
"""What stands before a version in `toolchain`."""


def key_of(entry: Entry) -> Key:
    """M, N, K, multiprocessors, dtype, layout, memory order of D and epilogue.

    Raises: KeyError or TypeError for an entry that has none.
    """
    shape = entry["shape"]
    return (
        *(shape["m"], shape["n"], shape["k"], entry["sms"]),
        *(entry["dtype"], entry["layout"], entry["d"], entry["epilogue"]),
    )


def label_of(protocol: str | None, plain: bool, invariant: bool) -> str:
    """Names terms in a snapshot; empty where nothing particular is asked for."""
    words = (protocol, "plain" * plain, "invariant" * invariant)
    return " ".join(word for word in words if word)


def on_terms(entry: Entry, label: str) -> Entry | None:
    """What an entry of the second format answers on the terms of a label; None: nothing.

    An answer that equals the one of another label is stored as that label.
    """
    told = entry["under"].get(label) if label else entry
    if isinstance(told, str):
        told = entry["under"][told] if told else entry
    if told is None:
        return None
    return {name: value for name, value in told.items() if name != "under"}


def body_of(told: Entry, device_key: str, device_name: str, stale: bool) -> dict[str, Any]:
    """The JSON of an exact answer, as `GET /best-config` sends it."""
    shown = told["measurement"]
    return {
        **told,
        "device": {"name": device_name, "key": device_key},
        "match": {"tier": EXACT, "from_shape": None},
        "stale": stale,
        "confidence": {
            "samples": shown["samples"],
            "ci95_us": shown["ci95_us"],
            "expected_regret": None,
            "distance": 0.0,
        },
    }


def newest_compiler(kernel_hash: str, found: Iterable[tuple[str, str]]) -> str:
    """Of (kernel, version of NVRTC) the latest version for that kernel, whichever came last.

    Two compilers in use would otherwise take turns in making each other's answers stale.
    """
    versions = [version for made_for, version in found if made_for == kernel_hash]
    return max(versions, key=_version, default="")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in text.split("."))
