"""What the compiler's log says of a kernel, and whether it is fit to run."""

import re
from dataclasses import dataclass

from tuner.compiler.source import ENTRY

_ENTRY_SECTION = re.compile(r"Compiling entry function '(?P<name>[^']+)'")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_WARNING = re.compile(r"\((?P<code>C75\d\d)\) (?P<text>.+)")
_ERROR = re.compile(r"^.*\b(?:catastrophic error|error|fatal)\s*:\s*.*$", re.MULTILINE)

_HARMLESS = frozenset({"C7519"})
"""C7519: ptxas adds a `wgmma.fence` of its own, which waits for nothing that is in flight."""
_MEANINGS = {
    "C7508": "its setmaxnreg is ignored, so consumers lack registers; state __launch_bounds__",
    "C7510": "its WGMMAs are serialised where the pipeline crosses a function call",
    "C7511": "its WGMMAs are serialised for want of registers; use a smaller tile",
    "C7514": "its WGMMAs are serialised because accumulators are read while in flight",
    "C7517": "the compiler waits for WGMMAs where the source does not, which drains the pipeline",
}


@dataclass(frozen=True, slots=True)
class Report:
    """The log in numbers.

    registers: per thread of the entry function at launch; None if the log has no such function.
    spill_bytes: stored to and loaded from local memory, over all functions.
    warnings: C75xx code and text of each performance warning, once.
    """

    registers: int | None
    spill_bytes: int
    warnings: tuple[tuple[str, str], ...] = ()

    def refusal(self) -> str | None:
        """Why the kernel must not be measured, as a sentence; None if it is fit."""
        if self.registers is None:
            return f"the compiler reports no entry function {ENTRY}."
        if self.spill_bytes:
            return (
                f"the kernel spills {self.spill_bytes} B to local memory with {self.registers} "
                "registers per thread; use more consumers or a smaller tile."
            )
        for code, text in sorted(self.warnings, key=_is_only_a_consequence):
            if code not in _HARMLESS:
                meaning = _MEANINGS.get(code, "the compiler warns that it is slow")
                return f"the kernel is not what was written: {meaning} (ptxas {code}: {text})."
        return None


def read_log(log: str) -> Report:
    """Read the program log of a source that compiled."""
    spills = sum(int(stores) + int(loads) for stores, loads in _SPILLS.findall(log))
    warnings = {
        (found["code"], found["text"].strip().rstrip(".")): None for found in _WARNING.finditer(log)
    }
    return Report(_entry_registers(log), spills, tuple(warnings))


def source_error(log: str) -> str:
    """The first error in the log of a source that did not compile, as a sentence."""
    found = _ERROR.search(log)
    reason = found[0] if found else log[:200]
    return f"NVRTC refused the source: {reason.strip().rstrip('.')}."


def _is_only_a_consequence(warning: tuple[str, str]) -> bool:
    """Whether a warning tells what ptxas did, and another may tell why."""
    return not warning[1].startswith("Potential Performance Loss")


def _entry_registers(log: str) -> int | None:
    # Text between two entries belongs to the first, and begins with its name.
    _, *sections = _ENTRY_SECTION.split(log)
    for name, section in zip(sections[::2], sections[1::2], strict=True):
        if name == ENTRY and (used := _REGISTERS.search(section)):
            return int(used[1])
    return None
