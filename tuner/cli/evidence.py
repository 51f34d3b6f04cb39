"""The file that a speed claim rests on."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tuner.bench import ARTICLE, PLAIN, TUNED, BenchState, Raced, Terms
from tuner.cli.provenance import Commit
from tuner.errors import TunerError
from tuner.hardware import DeviceIdentity
from tuner.lookup.intervals import median_interval
from tuner.trial import Toolchain


class CannotWrite(TunerError):
    """The evidence has nowhere to go."""


def origin(
    command: str, commit: Commit, device: DeviceIdentity, toolchain: Toolchain
) -> dict[str, Any]:
    """What every file of evidence says of where it comes from.

    commit_from: `git`, or `stated` where only a person says so.
    """
    return {
        "command": command,
        "commit": commit.name,
        "commit_from": "stated" if commit.stated else "git",
        "device": {"name": device.name, "key": device.key, "sms": device.sms, "uuid": device.uuid},
        "driver": device.driver,
        "toolchain": {
            "kernel_hash": toolchain.kernel_hash,
            "nvrtc": toolchain.nvrtc_version,
            "cublas": device.cublas_version,
        },
    }


def document(origin: dict[str, Any], results: Sequence[Raced], terms: Terms) -> dict[str, Any]:
    """Everything needed to judge the rows, and the rows with every round."""
    return {
        **origin,
        "protocol": terms.protocol,
        "ranked_by": terms.ranked_by or "hot and cool",
        "source": terms.source,
        "rounds": terms.rounds,
        "rows": [row(raced) for raced in results if raced.state is BenchState.RACED],
        "not_raced": [
            {
                "m": raced.problem.shape.m,
                "n": raced.problem.shape.n,
                "k": raced.problem.shape.k,
                "state": raced.state.value,
                "detail": raced.detail,
            }
            for raced in results
            if raced.state is not BenchState.RACED
        ],
    }


def row(raced: Raced) -> dict[str, Any]:
    """One shape. `tuned_plain` is `tuned`, and has no rounds of its own, where they are one config.

    Ratios: the baseline's time over ours in the same round, median over rounds.
    """
    assert raced.config is not None
    assert raced.plain_config is not None
    shape, ours = raced.problem.shape, raced.rounds[TUNED]
    return {
        "m": shape.m,
        "n": shape.n,
        "k": shape.k,
        "d": raced.problem.d,
        "sms": raced.problem.sms,
        "trials": raced.trials,
        "tuned_us": raced.median_us(TUNED),
        "tuned_plain_us": raced.median_us(PLAIN),
        "cublas_us": raced.median_us("cublas"),
        "cublaslt_best_us": raced.median_us("cublaslt_best"),
        "article_us": raced.median_us(ARTICLE),
        "tuned_ci95_us": list(median_interval(ours)),
        "tuned_tflops": shape.flops / median(ours) / 1e6,
        "ratio_cublas": raced.ratio("cublas"),
        "ratio_cublaslt_best": raced.ratio("cublaslt_best"),
        "ratio_article": raced.ratio(ARTICLE),
        "ratio_plain_cublas": raced.ratio("cublas", PLAIN),
        "ratio_plain_cublaslt_best": raced.ratio("cublaslt_best", PLAIN),
        "noise": raced.noise,
        "config": raced.config.to_dict(),
        "plain_config": raced.plain_config.to_dict(),
        "cublaslt_algorithm": raced.algorithm,
        "conditions": dict(raced.conditions),
        "rounds": {name: list(samples) for name, samples in raced.rounds.items()},
    }


def require_writable(path: Path) -> None:
    """Raises: CannotWrite, before hours are spent on what could not be kept."""
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise CannotWrite(f"{path} cannot be written. Name another file with --json.")


def write(path: Path, body: dict[str, Any]) -> None:
    """Replace `path` at once, so that a reader never sees half a file.

    Raises: CannotWrite; ValueError for a number that JSON has no form for.
    """
    text = json.dumps(body, indent=1, allow_nan=False) + "\n"
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise CannotWrite(f"{path} cannot be written: {error.strerror}.") from None
