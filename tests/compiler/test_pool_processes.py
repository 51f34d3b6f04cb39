"""The processes behind a pool: they crash, hang and are killed, and none is left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.compiler.pool import CompilePool
from tuner.compiler.source import TranslationUnit
from tuner.config import KernelVariant
from tuner.errors import CompileError
from tuner.trial import CompileFailure, Cubin, TrialState

Render = Callable[[KernelVariant], TranslationUnit]
Compilers = Callable[[int], list[int]]


def wait_for(what: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def lives(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_a_compiler_that_crashes_fails_its_variant_alone_and_is_not_held_against_it_for_ever(
    compilers: Compilers, tmp_path: Path, variants: list[KernelVariant], plain: Render, slow: Render
) -> None:
    victim, *others = variants[:5]

    def render(variant: KernelVariant) -> TranslationUnit:
        return (slow if variant == victim else plain)(variant)

    with CompilePool(tmp_path, jobs=1, timeout_s=60, render_source=render) as pool:
        assert isinstance(pool.submit(others[0]).result(), Cubin)
        doomed = pool.submit(victim)
        rest = [pool.submit(variant) for variant in others]
        time.sleep(0.3)
        (pid,) = compilers(os.getpid())
        os.kill(pid, signal.SIGSEGV)
        assert doomed.result() == CompileFailure(
            victim,
            TrialState.CRASHED,
            "the compiler failed on this variant: it was killed by SIGSEGV.",
        )
        assert all(isinstance(future.result(), Cubin) for future in rest)
    with CompilePool(tmp_path, jobs=1, render_source=plain) as pool:
        retried = pool.submit(victim).result()
    assert isinstance(retried, Cubin)


def test_a_compiler_that_died_while_idle_is_replaced_without_blame(
    compilers: Compilers, tmp_path: Path, variants: list[KernelVariant], plain: Render
) -> None:
    with CompilePool(tmp_path, jobs=1, render_source=plain) as pool:
        assert isinstance(pool.submit(variants[0]).result(), Cubin)
        (pid,) = compilers(os.getpid())
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not lives(pid))
        assert isinstance(pool.submit(variants[1]).result(), Cubin)


def test_processes_start_only_as_work_arrives_and_never_more_than_the_jobs(
    compilers: Compilers, tmp_path: Path, variants: list[KernelVariant], plain: Render
) -> None:
    with CompilePool(tmp_path, jobs=3, render_source=plain) as pool:
        assert compilers(os.getpid()) == []
        pool.submit(variants[0]).result()
        assert len(compilers(os.getpid())) == 1
        pool.compile(variants[:9])
        assert len(compilers(os.getpid())) <= 3


@pytest.mark.parametrize("head_start_s", [0.0, 1.0], ids=["starting", "compiling"])
def test_leaving_the_pool_ends_work_in_hand_at_once_and_cancels_the_rest(
    compilers: Compilers,
    tmp_path: Path,
    variants: list[KernelVariant],
    slow: Render,
    head_start_s: float,
) -> None:
    with CompilePool(tmp_path, jobs=1, timeout_s=60, render_source=slow) as pool:
        running, waiting = pool.submit(variants[0]), pool.submit(variants[1])
        wait_for(lambda: compilers(os.getpid()) != [])
        time.sleep(head_start_s)
        started = time.monotonic()
    assert time.monotonic() - started < 30
    assert waiting.cancelled()
    with pytest.raises(CompileError, match="the compile pool was closed"):
        running.result()
    with pytest.raises(CompileError, match="the compile pool was closed"):
        pool.submit(variants[2])


def test_a_compiler_process_that_cannot_start_ends_the_run_with_its_last_words(
    tmp_path: Path,
    variants: list[KernelVariant],
    plain: Render,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho no such module >&2\nexit 7\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    with (
        CompilePool(tmp_path / "cache", jobs=1, render_source=plain) as pool,
        pytest.raises(CompileError, match=r"could be started: it exited with code 7 \(no such mod"),
    ):
        pool.submit(variants[0]).result()


SCRIPT = """
import sys
from pathlib import Path
from tuner.compiler.pool import CompilePool
from tuner.compiler.source import TranslationUnit
from tuner.config import KernelVariant

def render(variant):
    deep = int(sys.argv[2])
    value = "(" * deep + str(variant.block_n) + ")" * deep
    text = 'extern "C" __global__ void gemm_sm90(float* out) { *out = %s; }' % value
    return TranslationUnit(text, {})

with CompilePool(Path(sys.argv[1]), jobs=2, timeout_s=60, render_source=render) as pool:
    found = pool.compile(KernelVariant(128, n, 4) for n in range(8, 65, 8))
    print(sum(not cubin.cached for cubin in found.values()), len(found))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A program that compiles eight variants as it is imported, without an import guard."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def begin(script: Path, cache: Path, depth: int) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, script, cache, str(depth)],
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_many_processes_on_an_empty_cache_compile_each_variant_about_once(
    script: Path, tmp_path: Path
) -> None:
    running = [begin(script, tmp_path / "cache", depth=1) for _ in range(8)]
    answers = [process.communicate(timeout=120) for process in running]
    assert [errors for _, errors in answers] == [""] * 8
    compiled, asked = zip(*(map(int, text.split()) for text, _ in answers), strict=True)
    assert set(asked) == {8}
    assert sum(compiled) == 8


def test_a_killed_parent_leaves_no_compiler_behind(
    compilers: Compilers, script: Path, tmp_path: Path
) -> None:
    with begin(script, tmp_path / "cache", depth=2_000_000) as parent:
        wait_for(lambda: len(compilers(parent.pid)) == 2)
        time.sleep(0.5)
        children = compilers(parent.pid)
        parent.kill()
    wait_for(lambda: not any(map(lives, children)), seconds=5)


def test_an_interrupt_from_the_keyboard_ends_parent_and_compilers_at_once(
    compilers: Compilers, script: Path, tmp_path: Path
) -> None:
    with begin(script, tmp_path / "cache", depth=2_000_000) as parent:
        wait_for(lambda: len(compilers(parent.pid)) == 2)
        time.sleep(0.5)
        children = compilers(parent.pid)
        os.killpg(parent.pid, signal.SIGINT)
        _, errors = parent.communicate(timeout=10)
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    wait_for(lambda: not any(map(lives, children)), seconds=5)
