"""Processes that look a config up while they start, as a library that is imported does."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DEADLINE_S = 120.0
PROGRAM = """
{before}
import time
began = time.perf_counter()
import tuner.client
imported = time.perf_counter()
best = tuner.client.best_config({asked})
answered = time.perf_counter()
import json
print(json.dumps({{
    "import_ms": (imported - began) * 1e3, "answer_ms": (answered - imported) * 1e3,
    "source": best.source, "tier": best.tier, "generation": best.generation,
}}))
"""
DEAF = "import socket, time; socket.getaddrinfo = lambda *_, **__: time.sleep(60)"
"""Names are never resolved."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What one process found: times in ms of the import and of the first answer after it.

    warnings: lines on its standard error.
    """

    import_ms: float
    answer_ms: float
    source: str
    tier: str
    generation: str | None
    warnings: int

    @property
    def all_ms(self) -> float:
        return self.import_ms + self.answer_ms


def start(
    variables: Mapping[str, str | None],
    asked: str = "4096, 4096, 4096",
    before: str = "",
    options: Sequence[str] = ("-S",),
) -> "subprocess.Popen[str]":
    """A bare interpreter: without site packages nothing that it needs is loaded yet.

    variables: changes of the environment; None takes one away.
    """
    environment = {n: v for n, v in os.environ.items() if not n.startswith("TUNER_")}
    environment |= {"PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    for name, value in variables.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    code = PROGRAM.format(before=before, asked=asked)
    command = [sys.executable, *options, "-c", code]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)


def ended(process: "subprocess.Popen[str]") -> Looked:
    """Raises: RuntimeError for a process that failed, which none may."""
    out, err = process.communicate(timeout=DEADLINE_S)
    if process.returncode:
        raise RuntimeError(f"a program ended with {process.returncode}: {err}")
    told: dict[str, Any] = json.loads(out)
    return Looked(**told, warnings=len(err.splitlines()))
