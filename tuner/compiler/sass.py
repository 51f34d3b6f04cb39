"""Reads the machine code of a cubin with NVIDIA's disassembler; for tests and for `doctor`."""

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

from tuner.errors import CompileError

TOOL = "nvdisasm"
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")


def find_disassembler() -> Path | None:
    """Where nvdisasm is: in its wheel, in a CUDA toolkit, or on PATH; None if nowhere."""
    try:
        from cuda.pathfinder import find_nvidia_binary_utility
    except ImportError:
        found = None
    else:
        found = find_nvidia_binary_utility(TOOL)
    found = found or shutil.which(TOOL)
    return Path(found) if found else None


def disassemble(cubin: Path) -> str:
    """The SASS of every function in `cubin`.

    Raises: CompileError if there is no disassembler, or it does not understand the file.
    """
    tool = find_disassembler()
    if tool is None:
        raise CompileError(
            f"SASS cannot be read: there is no {TOOL}. Install it with: "
            "pip install nvidia-cuda-nvdisasm."
        )
    command = [
        str(tool),
        "-c",
        "-ndf",
        str(cubin),
    ]  # no data-flow analysis: it takes half of the time
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise CompileError(f"{cubin} cannot be disassembled: {reason}.")
    return done.stdout


def count_opcodes(sass: str) -> Counter[str]:
    """How often each instruction occurs, by its name without modifiers, such as `HGMMA`."""
    return Counter(name.split(".")[0] for name in _INSTRUCTION.findall(sass))
