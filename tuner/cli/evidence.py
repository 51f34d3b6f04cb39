"""The file that a speed claim rests on."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tuner.bench import BenchState, Raced, Terms
from tuner.cli.provenance import Commit
from tuner.errors import TunerError
from tuner.hardware import DeviceIdentity
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
        "rows": [raced.to_json() for raced in results if raced.state is BenchState.RACED],
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
