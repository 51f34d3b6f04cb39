"""The best answers of a device for other programs: CSV, and JSON files named as vLLM names its own.

vLLM keeps one file for each weight and device, `N=..,K=..,device_name=..,dtype=...json`, whose keys
are the tuned M. The files here have those names and keys; what stands under a key are the fields
of `tuner.config.KernelConfig`, which vLLM's own kernels cannot use.
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tuner.config import KernelVariant, LaunchKnobs
from tuner.errors import StoreError
from tuner.lookup import Answer
from tuner.store.best_answers import best_answers, device_name
from tuner.store.output import cannot_write, whole_file
from tuner.store.repository import Repository

_CONFIG = [f.name for part in (KernelVariant, LaunchKnobs) for f in fields(part)]
_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")
CSV_COLUMNS = (
    *("device_key", "device_name", "m", "n", "k", "dtype", "layout", "d", "epilogue", "sms"),
    *("use", "speedup", "protocol", "median_us", "tflops", "ci95_low_us", "ci95_high_us"),
    *("samples", "cublas_us", "cublaslt_best_us", "kernel_hash", "nvrtc_version"),
    *("measured_at", "source", *_CONFIG),
)


@dataclass(frozen=True, slots=True)
class Written:
    """Files for others: how many answers are in them."""

    paths: tuple[Path, ...]
    answers: int


def export_csv(repository: Repository, path: Path, device_keys: Sequence[str]) -> Written:
    """One line for each best answer. Raises: OutputError, StoreError."""
    count = 0
    with whole_file(path) as target, target.open("w", newline="", encoding="utf-8") as file:
        lines = csv.DictWriter(file, CSV_COLUMNS)
        lines.writeheader()
        for key in device_keys:
            for answer in _answers(repository, key):
                lines.writerow(_csv_line(answer))
                count += 1
    return Written((path,), count)


def export_vllm(repository: Repository, folder: Path, device_keys: Sequence[str]) -> Written:
    """One file in `folder` for each device name, N and K. Raises: OutputError, StoreError."""
    files: dict[str, dict[int, Any]] = {}
    for key in device_keys:
        for answer in _answers(repository, key):
            by_m = files.setdefault(_vllm_name(answer), {})
            by_m[answer.problem.shape.m] = answer.config.to_dict()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error
    paths = [folder / name for name in sorted(files)]
    for path in paths:
        by_m = files[path.name]
        with whole_file(path) as target:
            ordered = {str(m): by_m[m] for m in sorted(by_m)}
            target.write_text(json.dumps(ordered, indent=4) + "\n", encoding="utf-8")
    return Written(tuple(paths), sum(map(len, files.values())))


def _answers(repository: Repository, device_key: str) -> Iterator[Answer]:
    with repository.transaction(writes=False, moment=True) as connection:
        if device_name(connection, device_key) is None:
            raise StoreError(f"nothing is stored for the device {device_key!a}.")
        for best, _ in best_answers(connection, device_key):
            yield best


def _vllm_name(answer: Answer) -> str:
    p = answer.problem
    name = "".join(c if c in _SAFE else "_" for c in answer.device_name)
    parts = [f"N={p.shape.n}", f"K={p.shape.k}", f"device_name={name}", f"dtype={p.dtype}"]
    # vLLM has none of these; a file of theirs means row-major output on the whole device.
    parts += [f"d={p.d}"] * (p.d != "row")
    parts += [f"epilogue={p.epilogue}"] * (p.epilogue != "none")
    parts += [f"sms={p.sms}"] * (f"-{p.sms}sm-" not in answer.device_key)
    return ",".join(parts) + ".json"


def _csv_line(answer: Answer) -> Mapping[str, Any]:
    told = answer.to_json()
    shown = told["measurement"] or {}
    low, high = shown.get("ci95_us", (None, None))
    return {
        "device_key": answer.device_key,
        "device_name": answer.device_name,
        **told["shape"],
        **{name: told[name] for name in ("dtype", "layout", "d", "epilogue", "sms", "use")},
        "speedup": told["speedup"],
        **{name: shown.get(name) for name in ("protocol", "median_us", "tflops", "samples")},
        "ci95_low_us": low,
        "ci95_high_us": high,
        **(told["baseline"] or {}),
        "kernel_hash": answer.toolchain.kernel_hash,
        "nvrtc_version": answer.toolchain.nvrtc_version,
        "measured_at": told["measured_at"],
        "source": answer.source,
        **answer.config.to_dict(),
    }
