"""Small kernels with known faults, and variants to name them by."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tuner.compiler.source import TranslationUnit
from tuner.config import KernelVariant

Render = Callable[[KernelVariant], TranslationUnit]


@pytest.fixture
def variants() -> list[KernelVariant]:
    """Different variants; what they mean is up to the test's `render`."""
    return [KernelVariant(128, n, 4) for n in range(8, 257, 8)]


@pytest.fixture
def plain() -> Render:
    """A kernel that compiles in 50 ms, different for each variant."""
    return lambda variant: _storing(str(variant.block_n))


@pytest.fixture
def slow() -> Render:
    """A kernel whose single expression takes NVRTC several seconds."""
    return lambda variant: _storing("(" * 1_000_000 + str(variant.block_n) + ")" * 1_000_000)


@pytest.fixture
def broken() -> Render:
    """A source that NVRTC refuses."""
    return lambda variant: _storing(f"undeclared_{variant.block_n}")


def _storing(expression: str) -> TranslationUnit:
    text = f'extern "C" __global__ void gemm_sm90(float* out) {{ *out = {expression}; }}'
    return TranslationUnit(text, {})


@pytest.fixture(name="compilers")
def _compilers() -> Callable[[int], list[int]]:
    return compilers_of


@pytest.fixture(autouse=True)
def leave_no_compiler_behind() -> Iterator[None]:
    """Every test fails that leaves a compiler process of its own running."""
    yield
    assert compilers_of(os.getpid()) == []


def compilers_of(parent: int) -> list[int]:
    """The compiler processes that `parent` has started and that live."""
    found: list[int] = []
    for task in Path(f"/proc/{parent}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread may end, a child may be reaped
            for child in (task / "children").read_text().split():
                if b"tuner.compiler.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
    return found
