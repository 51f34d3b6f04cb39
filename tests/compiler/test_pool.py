from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from tuner.compiler.pool import CompilePool
from tuner.compiler.process import CompilerProcess
from tuner.compiler.source import TranslationUnit, kernel_hash
from tuner.config import KernelVariant
from tuner.errors import CompileError, InvalidConfig
from tuner.trial import CompileFailure, Cubin, Toolchain, TrialState

Render = Callable[[KernelVariant], TranslationUnit]


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every attempt to start a compiler process fail the test."""

    def start(_: CompilerProcess) -> None:
        raise AssertionError("a compiler process was started")

    monkeypatch.setattr(CompilerProcess, "start", start)


def compile_all(
    folder: Path, variants: list[KernelVariant], render: Render, timeout_s: float = 60.0
) -> dict[KernelVariant, Cubin | CompileFailure]:
    with CompilePool(folder, jobs=2, timeout_s=timeout_s, render_source=render) as pool:
        return pool.compile(variants)


def test_variants_become_cubins_in_the_order_given(
    tmp_path: Path, variants: list[KernelVariant], plain: Render
) -> None:
    asked = variants[:12]
    found = compile_all(tmp_path, asked, plain)
    assert list(found) == asked
    for variant, cubin in found.items():
        assert isinstance(cubin, Cubin)
        assert cubin.variant == variant
        assert Path(cubin.path).is_absolute()
        assert Path(cubin.path).read_bytes()[:4] == b"\x7fELF"
        assert (cubin.registers, cubin.spill_bytes, cubin.cached) == (8, 0, False)
        assert 0.01 < cubin.seconds < 10
    assert len({cubin.path for cubin in found.values() if isinstance(cubin, Cubin)}) == len(found)


@pytest.mark.usefixtures("no_compiler")
def test_asking_for_the_toolchain_starts_no_compiler(tmp_path: Path) -> None:
    with CompilePool(tmp_path) as pool:
        version = metadata.version("nvidia-cuda-nvrtc")
        assert pool.toolchain() == Toolchain(kernel_hash(), version)


def test_what_is_in_the_cache_is_not_compiled_again_and_keeps_the_time_it_took(
    tmp_path: Path,
    variants: list[KernelVariant],
    plain: Render,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    first = compile_all(Path("cache"), variants[:4], plain)
    request.getfixturevalue("no_compiler")
    second = compile_all(tmp_path / "cache", variants[:4], plain)
    for variant, cubin in second.items():
        before = first[variant]
        assert isinstance(cubin, Cubin)
        assert isinstance(before, Cubin)
        assert (cubin.path, cubin.seconds) == (before.path, before.seconds)
        assert (before.cached, cubin.cached) == (False, True)


def test_a_cubin_that_was_cut_off_is_compiled_again(
    tmp_path: Path, variants: list[KernelVariant], plain: Render
) -> None:
    before = compile_all(tmp_path, variants[:1], plain)[variants[0]]
    assert isinstance(before, Cubin)
    intact = Path(before.path).read_bytes()
    Path(before.path).write_bytes(b"")
    after = compile_all(tmp_path, variants[:1], plain)[variants[0]]
    assert isinstance(after, Cubin)
    assert not after.cached
    assert Path(after.path).read_bytes() == intact


def test_a_refused_source_is_a_failure_of_its_variant_and_is_not_compiled_again(
    tmp_path: Path,
    variants: list[KernelVariant],
    broken: Render,
    request: pytest.FixtureRequest,
) -> None:
    found = compile_all(tmp_path, variants[:2], broken)
    variant = variants[1]
    assert found[variant] == CompileFailure(
        variant,
        TrialState.COMPILE_REFUSED,
        'NVRTC refused the source: gemm_sm90.cu(1): error: identifier "undeclared_16" is '
        "undefined.",
    )
    request.getfixturevalue("no_compiler")
    assert compile_all(tmp_path, variants[:2], broken) == found


def test_a_kernel_that_spills_is_refused_with_the_size_and_not_compiled_again(
    tmp_path: Path, variants: list[KernelVariant], request: pytest.FixtureRequest
) -> None:
    def render(_: KernelVariant) -> TranslationUnit:
        body = (
            "float v[64]; for (int i = 0; i < 64; i++) v[i] = out[i * 1024 + threadIdx.x];"
            "__syncthreads(); for (int i = 0; i < 64; i++) v[i] *= v[(i * 7 + 1) % 64];"
            "for (int i = 0; i < 64; i++) out[i * 1024 + threadIdx.x] = v[i];"
        )
        head = 'extern "C" __global__ void __launch_bounds__(1024, 2) gemm_sm90(float* out)'
        return TranslationUnit(f"{head} {{ {body} }}", {})

    found = compile_all(tmp_path, variants[:1], render)
    failure = found[variants[0]]
    assert isinstance(failure, CompileFailure)
    assert failure.state is TrialState.COMPILE_REFUSED
    assert "B to local memory with 32 registers per thread" in failure.detail
    request.getfixturevalue("no_compiler")
    assert compile_all(tmp_path, variants[:1], render) == found


def test_variants_too_slow_to_compile_are_killed_remembered_and_hold_up_nobody(
    tmp_path: Path,
    variants: list[KernelVariant],
    plain: Render,
    slow: Render,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow_ones = variants[::16]

    def render(variant: KernelVariant) -> TranslationUnit:
        return (slow if variant in slow_ones else plain)(variant)

    found = compile_all(tmp_path, variants, render, timeout_s=1.0)
    assert {v for v, outcome in found.items() if isinstance(outcome, Cubin)} == set(variants) - set(
        slow_ones
    )
    assert found[slow_ones[0]] == CompileFailure(
        slow_ones[0],
        TrialState.COMPILE_TIMEOUT,
        "too slow to compile: not done within 1 s.",
    )
    with monkeypatch.context() as patched:
        patched.setattr(CompilerProcess, "start", lambda _: pytest.fail("compiled again"))
        again = compile_all(tmp_path, slow_ones, render, timeout_s=1.0)
    assert again == {variant: found[variant] for variant in slow_ones}


def test_a_longer_deadline_tries_what_a_shorter_one_gave_up(
    tmp_path: Path, variants: list[KernelVariant]
) -> None:
    def render(_: KernelVariant) -> TranslationUnit:
        value = "(" * 200_000 + "1" + ")" * 200_000
        text = f'extern "C" __global__ void gemm_sm90(float* out) {{ *out = {value}; }}'
        return TranslationUnit(text, {})

    (short,) = compile_all(tmp_path, variants[:1], render, timeout_s=0.1).values()
    assert isinstance(short, CompileFailure)
    (long,) = compile_all(tmp_path, variants[:1], render, timeout_s=60).values()
    assert isinstance(long, Cubin)
    (now_known,) = compile_all(tmp_path, variants[:1], render, timeout_s=0.1).values()
    assert isinstance(now_known, Cubin)


def test_a_python_error_while_rendering_fails_its_variant_alone_naming_the_class(
    tmp_path: Path, variants: list[KernelVariant], plain: Render
) -> None:
    def render(variant: KernelVariant) -> TranslationUnit:
        if variant == variants[0]:
            raise KeyError("stages")
        if variant == variants[1]:
            raise InvalidConfig("block_n must be a multiple of 16.")
        return plain(variant)

    found = compile_all(tmp_path, variants[:3], render)
    assert found[variants[0]] == CompileFailure(
        variants[0],
        TrialState.CRASHED,
        "its source could not be rendered: KeyError: 'stages'.",
    )
    assert found[variants[1]] == CompileFailure(
        variants[1], TrialState.COMPILE_REFUSED, "block_n must be a multiple of 16."
    )
    assert isinstance(found[variants[2]], Cubin)


def test_an_error_inside_the_compiler_process_is_contained_and_named_by_its_class(
    tmp_path: Path, variants: list[KernelVariant], plain: Render
) -> None:
    def render(variant: KernelVariant) -> TranslationUnit:
        text = plain(variant).main
        return TranslationUnit("\ud800" if variant == variants[0] else text, {})

    found = compile_all(tmp_path, variants[:2], render)
    failure = found[variants[0]]
    assert isinstance(failure, CompileFailure)
    assert failure.state is TrialState.CRASHED
    assert failure.detail.startswith(
        "the compiler failed on this variant: UnicodeEncodeError: 'utf-8' codec can't encode"
    )
    assert isinstance(found[variants[1]], Cubin)


def test_a_variant_asked_for_twice_at_once_is_compiled_once(
    tmp_path: Path, variants: list[KernelVariant], plain: Render
) -> None:
    with CompilePool(tmp_path, jobs=2, render_source=plain) as pool:
        futures = [pool.submit(variants[0]) for _ in range(4)]
        paths = {outcome.path for f in futures if isinstance(outcome := f.result(), Cubin)}
        assert len(paths) == 1
        assert len(set(map(id, futures))) == 1
        again = pool.submit(variants[0]).result()
        assert isinstance(again, Cubin)
        assert again.cached


def test_variants_with_the_same_source_share_one_cubin_under_their_own_names(
    tmp_path: Path, variants: list[KernelVariant], plain: Render
) -> None:
    found = compile_all(tmp_path, variants[:3], lambda _: plain(variants[0]))
    cubins = [outcome for outcome in found.values() if isinstance(outcome, Cubin)]
    assert [cubin.variant for cubin in cubins] == variants[:3]
    assert len({cubin.path for cubin in cubins}) == 1
    assert sorted(cubin.cached for cubin in cubins) == [False, True, True]


def test_an_unusable_cache_folder_ends_the_run_with_a_sentence(
    tmp_path: Path, variants: list[KernelVariant], plain: Render
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CompileError, match=r"file/cubins: Not a directory\. Set TUNER_CACHE_DIR"):
        compile_all(tmp_path / "file", variants[:2], plain)
