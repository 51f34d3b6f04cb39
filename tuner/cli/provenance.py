"""Which commit a measurement was made from."""

import subprocess
from pathlib import Path

import tuner

UNKNOWN = "unknown"


def commit_of_package() -> str:
    """The commit of the checkout this package runs from, `-dirty` if files differ from it.

    `unknown` where the package is installed without its history.
    """
    checkout = Path(tuner.__file__).resolve().parent.parent
    commit = _git(checkout, "rev-parse", "HEAD")
    if not commit or _git(checkout, "ls-files", "--", "tuner/__init__.py") is None:
        return UNKNOWN
    return f"{commit}-dirty" if _git(checkout, "status", "--porcelain") else commit


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
