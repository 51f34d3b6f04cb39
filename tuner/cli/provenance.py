"""Which commit a measurement was made from, and by which process."""

import os
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

import tuner

UNKNOWN = "unknown"
DIRTY = "-dirty"


@dataclass(frozen=True, slots=True)
class Commit:
    """`stated`: somebody says so, and git cannot confirm it."""

    name: str
    stated: bool = False


def commit_measured(stated: str | None = None) -> Commit:
    """What git says of this package or, where that is something else, what is stated.

    Files that differ from their commit are never lost: a stated commit is then `-dirty` too.
    """
    found = commit_of_package()
    if stated is None or found.startswith(stated):
        return Commit(found)
    dirty = found.endswith(DIRTY) and not stated.endswith(DIRTY)
    return Commit(stated + DIRTY * dirty, stated=True)


def commit_of_package() -> str:
    """The commit of the checkout this package runs from, `-dirty` if files differ from it.

    `unknown` where the package is installed without its history.
    """
    checkout = Path(tuner.__file__).resolve().parent.parent
    commit = _git(checkout, "rev-parse", "HEAD")
    if not commit or _git(checkout, "ls-files", "--", "tuner/__init__.py") is None:
        return UNKNOWN
    return commit + DIRTY if _git(checkout, "status", "--porcelain") else commit


def this_worker() -> str:
    """The machine and the process, as rows name who measured them."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _git(checkout: Path, *arguments: str) -> str | None:
    """What git prints, or None if it cannot say."""
    if not (checkout / ".git").exists():
        return None
    try:
        told = subprocess.run(
            ["git", "-C", str(checkout), *arguments],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip()
