"""Files of evidence: how they are read, and where each comes from."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path("benchmarks/results")
NO_FILES = "No evidence has been written yet."


class BadEvidence(Exception):
    """The evidence, or a document it is written to, is not of the form that is read."""


def read_evidence(root: Path, file: Path) -> Mapping[str, Any] | None:
    """None if there is no such file. Raises: BadEvidence if it cannot be read."""
    path = root / file
    if not path.exists():
        return None
    try:
        evidence = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadEvidence(f"{file} is not JSON ({error}).") from None
    if not isinstance(evidence, dict):
        raise BadEvidence(f"{file} is not a JSON object.")
    return evidence


def commands_of(root: Path) -> str:
    """Every file of RESULTS and the command that wrote it.

    Raises: BadEvidence if a file cannot be read.
    """
    files = sorted(path.relative_to(root) for path in (root / RESULTS).glob("*.json"))
    read = [(file, read_evidence(root, file)) for file in files]
    return "\n".join(described(file, found) for file, found in read if found) or NO_FILES


def described(file: Path, evidence: Mapping[str, Any]) -> str:
    """Where one file comes from, and which of that it does not hold."""
    found = {
        "device": told(evidence.get("device") or ""),
        "driver": told(evidence.get("driver") or ""),
        "kernel": kernel_of(evidence) or "",
        "commit": commit_of(evidence) if evidence.get("commit") else "",
        "command": evidence.get("command") or "",
    }
    parts = [f"{name} {value}" for name, value in found.items() if value and name != "command"]
    command = f"`{found['command']}`" if found["command"] else "a command that it does not name"
    lines = [f"- `{file}`, written by", f"  {command}"]
    lines += [f"  ({'; '.join(parts)})."] if parts else []
    # What measured a database ran without a GPU, and names the database's version instead.
    of_database = "postgres" in evidence.get("environment", evidence)
    needed = found.keys() - ({"device", "driver", "kernel"} if of_database else set())
    if lacking := [name for name, value in found.items() if name in needed and not value]:
        lines.append(f"  The file lacks {', '.join(lacking)}, until it is written again.")
    return "\n".join(lines)


def told(value: object) -> str:
    """A string, or the members of an object, on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {member}" for key, member in value.items())
    return str(value)


def device_of(evidence: Mapping[str, Any]) -> str:
    device = evidence["device"]
    if not isinstance(device, Mapping):
        return told(device)
    return f"{device.get('name')} (`{device.get('key')}`)"


def kernel_of(evidence: Mapping[str, Any]) -> str | None:
    """The hash of the kernel that was measured; None if the file does not say."""
    toolchain = evidence.get("toolchain")
    held = toolchain if isinstance(toolchain, Mapping) else evidence
    named = held.get("kernel_hash")
    return str(named) if named else None


def commit_of(evidence: Mapping[str, Any]) -> str:
    """The commit, marked where a person stated it and git did not confirm it."""
    by_hand = "stated" if "--commit" in str(evidence.get("command")).split() else "git"
    stated = evidence.get("commit_from", by_hand) == "stated"
    return f"`{evidence['commit']}`{' (as stated on the command line)' if stated else ''}"
