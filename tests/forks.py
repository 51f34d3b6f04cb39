"""Processes for tests, forked from one that has imported what they need: quick to start.

Each is a process of its own in every respect: nothing is inherited from the tests, and it can be
stopped, killed, and limited.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path

IMPORTED = [
    "benchmarks.store_stress",
    "optuna",
    "psycopg",
    "tests.store.drivers",
    "tests.store.movers",
    "tests.store.writers",
    "tuner.cli.app",
    "tuner.cli.move",
]


def forks() -> ForkServerContext:
    """Where such processes come from."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    # Whoever starts it says what it imports.
    forkserver.ensure_running()
    return context


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it wrote."""

    returncode: int | None
    stdout: str
    stderr: str


def run_in_a_fork(folder: Path, target: Callable[..., int], *arguments: object) -> Ended:
    """Call `target` in a process that ends with its result; what it writes goes by `folder`."""
    out, err = folder / "stdout", folder / "stderr"
    child = forks().Process(target=_redirected, args=(out, err, target, arguments))
    child.start()
    child.join(120)
    code = child.exitcode
    child.kill()
    return Ended(code, out.read_text(), err.read_text())


def write_to(path: Path, descriptor: int) -> None:
    """Let what this process writes to a descriptor go to a file."""
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(opened, descriptor)
    os.close(opened)


def _redirected(
    out: Path, err: Path, target: Callable[..., int], arguments: tuple[object, ...]
) -> None:
    write_to(out, 1)
    write_to(err, 2)
    sys.exit(target(*arguments))
