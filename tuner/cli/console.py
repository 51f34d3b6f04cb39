"""Where output goes: results to stdout, progress and refusals to stderr."""

import json
import os
import sys
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

UNSEEN_WIDTH = 160
"""Columns where nobody looks at a terminal; a file's lines need not be cut to 80."""


def stdout() -> "Console":
    return _console(sys.stdout)


def stderr() -> "Console":
    return _console(sys.stderr)


def _console(stream: IO[str]) -> "Console":
    from rich.console import Console  # a tenth of a second, which `tuner --version` need not wait

    # Made for each use, so that a redirected stream is the one written to.
    told = stream.isatty() or "COLUMNS" in os.environ
    return Console(file=stream, width=None if told else UNSEEN_WIDTH, highlight=False)


def print_json(body: Any) -> None:
    """Raises: ValueError for numbers that JSON has no form for."""
    sys.stdout.write(json.dumps(body, indent=2, allow_nan=False) + "\n")
