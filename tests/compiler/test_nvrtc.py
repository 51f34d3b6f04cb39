import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from uuid import uuid4

import pytest

from tuner.compiler import nvrtc
from tuner.compiler.nvrtc import compile_unit, nvrtc_version
from tuner.compiler.report import read_log
from tuner.compiler.source import TranslationUnit
from tuner.errors import CompileError

STORE_ONE = 'extern "C" __global__ void gemm_sm90(float* out) { *out = 1; }'
EM_CUDA = 190


def test_the_version_is_that_of_the_installed_wheel_to_the_last_digit() -> None:
    assert nvrtc_version() == metadata.version("nvidia-cuda-nvrtc")


def test_without_a_wheel_the_version_is_what_the_library_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = nvrtc_version()

    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    assert nvrtc_version.__wrapped__() == ".".join(full.split(".")[:2])


def test_a_wheel_of_another_release_than_the_loaded_library_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    release = ".".join(nvrtc_version().split(".")[:2])
    monkeypatch.setattr(metadata, "version", lambda _: "12.8.93")
    assert nvrtc_version.__wrapped__() == release


def test_a_source_becomes_a_cubin_for_the_device_the_same_each_time_and_without_a_gpu() -> None:
    cubin, log = compile_unit(TranslationUnit(STORE_ONE, {}))
    assert cubin is not None
    assert cubin[:4] == b"\x7fELF"
    assert int.from_bytes(cubin[18:20], "little") == EM_CUDA
    section_headers = int.from_bytes(cubin[40:48], "little")
    size, count = (int.from_bytes(cubin[i : i + 2], "little") for i in (58, 60))
    assert section_headers + size * count <= len(cubin), "the cubin is cut off"
    assert "Compiling entry function 'gemm_sm90' for 'sm_90a'" in log
    assert compile_unit(TranslationUnit(STORE_ONE, {})).cubin == cubin


def test_a_source_that_the_compiler_has_seen_before_is_reported_on_like_a_new_one() -> None:
    source = f"{STORE_ONE} // {uuid4()}"
    logs = [compile_unit(TranslationUnit(source, {})).log for _ in range(2)]
    assert [read_log(log).registers for log in logs] == [8, 8]


def test_headers_are_found_by_name_in_memory_and_in_folders_of_their_own() -> None:
    unit = TranslationUnit(
        '#include "ptx/one.cuh"\n'
        'extern "C" __global__ void gemm_sm90(int* out) { *out = one() + two(); }',
        {
            "ptx/one.cuh": '#include "two.cuh"\n__device__ int one() { return 1; }',
            "two.cuh": "__device__ int two() { return 2; }",
        },
    )
    assert compile_unit(unit).cubin is not None


def test_a_source_with_an_error_gives_no_cubin_and_a_log_that_names_the_line() -> None:
    compiled = compile_unit(TranslationUnit("\nint x = y;", {}))
    assert compiled.cubin is None
    assert 'gemm_sm90.cu(2): error: identifier "y" is undefined' in compiled.log


def test_a_failure_that_is_not_the_sources_fault_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nvrtc, "OPTIONS", ("--no-such-option",))
    with pytest.raises(CompileError, match="NVRTC failed with NVRTC_ERROR_INVALID_OPTION"):
        compile_unit(TranslationUnit(STORE_ONE, {}))


def test_without_the_bindings_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(CompileError, match=r"NVRTC.*pip install 'gemm-tuner\[compile\]'\.$"):
        compile_unit(TranslationUnit(STORE_ONE, {}))


def test_importing_the_compiler_stage_loads_nothing_of_cuda() -> None:
    script = "import sys, tuner.compiler.pool; print([n for n in sys.modules if n[:4] == 'cuda'])"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
