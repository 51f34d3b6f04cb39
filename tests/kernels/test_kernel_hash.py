"""Measurements belong to the kernel's code: not to its comments, but to all of its code."""

from collections.abc import Iterator

import pytest

from tuner.compiler import source


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    source.kernel_hash.cache_clear()
    yield
    source.kernel_hash.cache_clear()


def hash_of(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> str:
    before = source.kernel_sources()
    changed = {name: text.replace(old, new) for name, text in before.items()}
    assert changed != before
    monkeypatch.setattr(source, "kernel_sources", lambda: changed)
    source.kernel_hash.cache_clear()
    return source.kernel_hash()


def test_another_comment_is_the_same_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    was = source.kernel_hash()
    assert hash_of(monkeypatch, "// One thread that keeps the ring full", "// Loads") == was


def test_another_instruction_is_another_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    was = source.kernel_hash()
    assert hash_of(monkeypatch, "fence.proxy.async.shared::cta;", "fence.proxy.async;") != was


def test_another_generated_instruction_is_another_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    was = source.kernel_hash()
    rendered = source.render_wgmma
    monkeypatch.setattr(
        source, "render_wgmma", lambda n: rendered(n).replace("p, 1, 1", "p, 1, -1")
    )
    source.kernel_hash.cache_clear()
    assert source.kernel_hash() != was


def test_other_compiler_options_are_another_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    was = source.kernel_hash()
    monkeypatch.setattr(source, "OPTIONS", ("--gpu-architecture=sm_90a",))
    source.kernel_hash.cache_clear()
    assert source.kernel_hash() != was


def test_comments_are_all_that_is_taken_out() -> None:
    code = "int a = 1;  // one\n\n    // alone\nint b; \n"
    assert source.without_comments(code) == "int a = 1;\nint b;"
