"""Logs of the real compiler, from sources made to deserve each refusal."""

import pytest

from tuner.compiler.nvrtc import compile_unit
from tuner.compiler.report import Report, read_log, source_error
from tuner.compiler.source import TranslationUnit

FENCE = 'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");'
COMMIT = 'asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");'
WAIT = 'asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");'
MULTIPLY = (
    'asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 '
    '{%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;" '
    ': "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));'
)
STORE = "for (int i = 0; i < 4; i++) out[threadIdx.x * 4 + i] = d[i];"


def log_of(body: str, bounds: str = "__launch_bounds__(384, 1)", before: str = "") -> str:
    """The log of a kernel of this body."""
    signature = "(float* out, unsigned long long a, unsigned long long b, int n)"
    entry = f'extern "C" __global__ void {bounds} gemm_sm90{signature} {{ {body} }}'
    compiled = compile_unit(TranslationUnit(before + entry, {}))
    assert compiled.cubin is not None
    return compiled.log


def test_a_clean_pipeline_is_fit_and_its_registers_are_read() -> None:
    report = read_log(log_of(f"float d[4] = {{}}; {FENCE} {MULTIPLY} {COMMIT} {WAIT} {STORE}"))
    assert report == Report(registers=30, spill_bytes=0, warnings=())
    assert report.refusal() is None


def test_setmaxnreg_with_stated_launch_bounds_starts_from_the_registers_of_the_launch() -> None:
    body = (
        'if (threadIdx.x < 128) { asm volatile("setmaxnreg.dec.sync.aligned.u32 24;"); } else { '
        f'asm volatile("setmaxnreg.inc.sync.aligned.u32 240;"); float d[4] = {{}}; '
        f"{FENCE} {MULTIPLY} {COMMIT} {WAIT} {STORE} }}"
    )
    report = read_log(log_of(body))
    assert report.registers == 168
    assert report.refusal() is None


def test_setmaxnreg_that_the_compiler_ignores_is_refused() -> None:
    body = 'asm volatile("setmaxnreg.inc.sync.aligned.u32 240;"); *out = 1;'
    refusal = read_log(log_of(body, bounds="")).refusal()
    assert refusal is not None
    assert "setmaxnreg is ignored" in refusal
    assert "__launch_bounds__" in refusal
    assert "C7508" in refusal


def test_wgmma_serialised_by_a_call_is_refused() -> None:
    body = (
        "float d[4] = {}; auto f = reinterpret_cast<void (*)(float*)>(a);"
        f"{FENCE} {MULTIPLY} {COMMIT} f(out); {WAIT} {STORE}"
    )
    refusal = read_log(log_of(body)).refusal()
    assert refusal is not None
    assert "serialised where the pipeline crosses a function call" in refusal
    assert "C7510" in refusal


def test_wgmma_serialised_for_want_of_registers_is_refused_naming_the_cause_not_the_symptom() -> (
    None
):
    body = (
        f"float d[4] = {{}}; {FENCE} for (int i = 0; i < n; i++) {{ {MULTIPLY} {COMMIT}"
        f"if (i == out[5]) d[1] *= 2; }} {WAIT} {STORE}"
    )
    report = read_log(log_of(body))
    assert {code for code, _ in report.warnings} == {"C7511", "C7517", "C7519"}
    refusal = report.refusal()
    assert refusal is not None
    assert "serialised for want of registers" in refusal
    assert "C7511" in refusal


def test_a_wait_that_the_compiler_adds_is_refused() -> None:
    log = log_of(f"float d[4] = {{}}; {FENCE} {MULTIPLY} {COMMIT} {STORE}")
    refusal = read_log(log).refusal()
    assert refusal is not None
    assert "the compiler waits for WGMMAs where the source does not" in refusal
    assert "C7517" in refusal


def test_a_fence_that_the_compiler_adds_is_seen_but_is_no_reason_to_refuse() -> None:
    report = read_log(log_of(f"float d[4] = {{}}; {MULTIPLY} {COMMIT} {WAIT} {STORE}"))
    assert [code for code, _ in report.warnings] == ["C7519"]
    assert report.refusal() is None


def test_spills_are_refused_with_their_size() -> None:
    body = (
        "float v[128]; for (int i = 0; i < 128; i++) v[i] = out[i * 1024 + threadIdx.x];"
        "__syncthreads(); for (int k = 0; k < n; k++) for (int i = 0; i < 128; i++) "
        "v[i] = v[i] * v[(i * 7 + 1) % 128] + out[k];"
        "for (int i = 0; i < 128; i++) out[i * 1024 + threadIdx.x] = v[i];"
    )
    report = read_log(log_of(body, bounds="__launch_bounds__(1024, 1)"))
    assert report.registers == 64
    assert report.spill_bytes > 1000
    refusal = report.refusal()
    assert refusal is not None
    assert f"spills {report.spill_bytes} B to local memory with 64 registers" in refusal


def test_a_spill_in_a_function_that_the_kernel_calls_counts() -> None:
    log = (
        "ptxas info    : Compiling entry function 'gemm_sm90' for 'sm_90a'\n"
        "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 40 registers, used 0 barriers\n"
        "ptxas info    : Function properties for helper\n"
        "ptxas         .     8 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n"
    )
    assert read_log(log) == Report(registers=40, spill_bytes=12)


def test_registers_are_those_of_the_entry_among_other_kernels() -> None:
    other = 'extern "C" __global__ void gemm_sm90_other(float* p) { *p = sinf(*p); }\n'
    alone = read_log(log_of("*out = 1;"))
    assert read_log(log_of("*out = 1;", before=other)) == alone


@pytest.mark.parametrize("code", ["C7504", "C7509", "C7512", "C7513", "C7515", "C7599"])
def test_a_performance_warning_without_an_explanation_of_ours_is_refused_in_the_compilers_words(
    code: str,
) -> None:
    log = (
        f"ptxas info    : ({code}) Potential Performance Loss: something is slow.\n"
        "ptxas info    : Compiling entry function 'gemm_sm90' for 'sm_90a'\n"
        "ptxas info    : Used 168 registers, used 3 barriers\n"
    )
    assert read_log(log).refusal() == (
        "the kernel is not what was written: the compiler warns that it is slow "
        f"(ptxas {code}: Potential Performance Loss: something is slow)."
    )


def test_a_source_without_the_entry_function_is_refused() -> None:
    compiled = compile_unit(TranslationUnit("__device__ int x;", {}))
    assert read_log(compiled.log).refusal() == "the compiler reports no entry function gemm_sm90."


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("__device__ int f() { return y; }", 'gemm_sm90.cu(1): error: identifier "y" is undefined'),
        ('#include "absent.cuh"', "gemm_sm90.cu(1): catastrophic error: cannot open source file"),
        ('static_assert(1 > 2, "no");', 'error: static assertion failed with "no"'),
        ('extern "C" __global__ void k() { asm volatile("bogus;"); }', "instruction: 'bogus'"),
    ],
)
def test_a_refused_source_is_reported_by_its_first_error(source: str, expected: str) -> None:
    compiled = compile_unit(TranslationUnit(source, {}))
    assert compiled.cubin is None
    reported = source_error(compiled.log)
    assert reported.startswith("NVRTC refused the source: ")
    assert expected in reported
    assert "\n" not in reported
