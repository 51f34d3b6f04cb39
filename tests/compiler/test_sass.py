import shutil
from pathlib import Path

import cuda.pathfinder
import pytest

from tuner.compiler.nvrtc import compile_unit
from tuner.compiler.sass import count_opcodes, disassemble, find_disassembler
from tuner.compiler.source import TranslationUnit
from tuner.errors import CompileError


def test_instructions_of_a_cubin_are_counted_by_name(tmp_path: Path) -> None:
    source = (
        'extern "C" __global__ void gemm_sm90(float* out, int n) '
        "{ if (n > 3) { out[0] = 1; __syncthreads(); out[1] = out[2]; } }"
    )
    compiled = compile_unit(TranslationUnit(source, {}))
    assert compiled.cubin is not None
    (tmp_path / "small.cubin").write_bytes(compiled.cubin)
    counts = count_opcodes(disassemble(tmp_path / "small.cubin"))
    assert {name: counts[name] for name in ("STG", "LDG", "BAR", "HGMMA")} == {
        "STG": 2,
        "LDG": 1,
        "BAR": 1,
        "HGMMA": 0,
    }
    assert counts["EXIT"] == 2, "instructions under a predicate count too"


def test_without_a_disassembler_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda.pathfinder, "find_nvidia_binary_utility", lambda _: None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert find_disassembler() is None
    with pytest.raises(CompileError, match="pip install nvidia-cuda-nvdisasm"):
        disassemble(tmp_path / "any.cubin")


def test_a_file_that_is_no_cubin_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "no.cubin").write_bytes(b"not a cubin")
    with pytest.raises(CompileError, match=r"no\.cubin cannot be disassembled: .+\.$"):
        disassemble(tmp_path / "no.cubin")
