"""An answer as an entry of a snapshot: its JSON without what all entries share."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tuner.config import KernelConfig
from tuner.lookup.answer import Answer, Library, Match, Timing
from tuner.shape import GemmShape, Problem
from tuner.trial import Toolchain

Entry = Mapping[str, Any]

TOLD_ONCE = ("device", "match", "stale", "confidence")
"""Of an answer: the same for all entries, or a matter between its rows and the reader, or told by
its other fields."""


def entry_of(answer: Answer) -> dict[str, Any]:
    return {name: value for name, value in answer.to_json().items() if name not in TOLD_ONCE}


def problem_of(entry: Entry) -> Problem:
    """Raises: KeyError, TypeError or InvalidShape for an entry that has none."""
    shape = GemmShape(entry["shape"]["m"], entry["shape"]["n"], entry["shape"]["k"])
    rest = (entry["dtype"], entry["layout"], entry["d"], entry["epilogue"])
    return Problem(shape, entry["sms"], *rest)


def answer_of(entry: Entry, device_key: str, device_name: str) -> Answer:
    """The answer that `entry_of` made the entry of; an exact one.

    Raises: KeyError, TypeError, ValueError or InvalidConfig for an entry of another form.
    """
    told, shown = entry["protocols"], entry["measurement"]["protocol"]
    order = sorted(told, key=lambda protocol: (protocol != shown, protocol))
    library = entry["library"]
    return Answer(
        problem=problem_of(entry),
        device_key=device_key,
        device_name=device_name,
        match=Match(),
        config=KernelConfig.from_dict(entry["config"]),
        timings=tuple(_timing(protocol, told[protocol]) for protocol in order),
        speedup=entry["speedup"],
        use=entry["use"],
        library=Library(library["cublas_version"], library["algorithm"]) if library else None,
        ties=tuple(KernelConfig.from_dict(config) for config in entry["ties"]),
        toolchain=Toolchain(entry["kernel_hash"], entry["toolchain"].removeprefix("nvrtc ")),
        measured_at=datetime.fromisoformat(entry["measured_at"]),
        stale=False,
        source=entry["source"],
        numerics=entry["numerics"],
    )


def _timing(protocol: str, told: Mapping[str, Any]) -> Timing:
    low, high = told["ci95_us"]
    return Timing(
        protocol,
        told["median_us"],
        told["tflops"],
        (low, high),
        told["samples"],
        told["speedup"],
        told["cublas_us"],
        told["cublaslt_best_us"],
    )
