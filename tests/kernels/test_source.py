"""What the compiler is given: one translation unit per variant, the same on every machine."""

import os
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.compiler.source import kernel_hash, kernel_sources, render, render_wgmma
from tuner.config import KernelVariant

KERNELS = Path(__file__).parents[2] / "kernels"
VARIANT = KernelVariant(192, 176, 4, 1, 3, "m", "cooperative", 32, 160, transposed_store=True)


def test_every_field_of_a_variant_reaches_the_kernel_under_its_own_name() -> None:
    header = render(VARIANT).headers["config.cuh"]
    renamed = {
        "split": "split_m = true",
        "schedule": "pingpong = false",
        "store": "tma_store",
        "reduction": "can_split = false",
    }
    for field in fields(VARIANT):
        value = getattr(VARIANT, field.name)
        shown = renamed.get(field.name, f"{field.name} = {str(value).lower()};")
        assert shown in header, field.name


def test_the_source_does_not_know_the_shape() -> None:
    unit = render(VARIANT)
    assert unit == render(replace(VARIANT))
    assert not re.search(r"Config::(m|n|k)\b", unit.main + "".join(unit.headers.values()))


@given(n=st.integers(1, 32).map(lambda i: 8 * i))
def test_one_wgmma_is_generated_for_the_n_in_use(n: int) -> None:
    text = render_wgmma(n)
    assert re.findall(r"m64n(\d+)k16", text).count(str(n)) == text.count("wgmma.mma_async")
    outputs = re.findall(r'"\+f"\(d\[(\d+)\]\)', text)
    assert outputs == [str(i) for i in range(n // 2)]
    assert f"float (&d)[{n // 2}]" in text


def test_every_file_of_the_kernel_is_passed_in_memory() -> None:
    on_disk = {
        str(path.relative_to(KERNELS))
        for path in KERNELS.rglob("*")
        if path.suffix in {".cu", ".cuh"}
    }
    assert set(kernel_sources()) == on_disk
    unit = render(VARIANT)
    included = set(re.findall(r'#include "([^"]+)"', unit.main + "".join(unit.headers.values())))
    assert included <= set(unit.headers)


@pytest.mark.parametrize("text", sorted(kernel_sources().values()))
def test_no_file_includes_a_cuda_header(text: str) -> None:
    assert "#include <" not in text


def test_the_kernel_hash_is_short_and_the_same_in_every_process() -> None:
    assert re.fullmatch(r"[0-9a-f]{16}", kernel_hash())
    code = "from tuner.compiler.source import kernel_hash; print(kernel_hash())"
    for seed in ("1", "2"):  # the order of sets and dictionaries of names differs between the two
        told = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        assert told.stdout.strip() == kernel_hash()


@pytest.mark.parametrize("name", sorted(kernel_sources()))
def test_a_change_to_the_code_of_any_file_is_another_kernel_and_a_comment_is_not(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = dict(kernel_sources())

    def hash_with(added: str) -> str:
        changed = {**sources, name: sources[name] + added}
        monkeypatch.setattr("tuner.compiler.source.kernel_sources", lambda: changed)
        return kernel_hash.__wrapped__()

    assert hash_with("") == kernel_hash()
    assert hash_with("// a remark\n") == kernel_hash()
    assert hash_with("constexpr int32 added = 1;\n") != kernel_hash()


def ptx_functions() -> dict[str, str]:
    """The comment above every function of `kernels/ptx` that holds an instruction.

    Functions without a blank line between them share the comment above the first.
    """
    found: dict[str, str] = {}
    for path in sorted((KERNELS / "ptx").glob("*.cuh")):
        for block in path.read_text(encoding="utf-8").split("\n\n"):
            comment = "".join(re.findall(r"^//.*\n", block, re.MULTILINE))
            for definition in re.split(r"^(?=template|DEVICE)", block, flags=re.MULTILINE):
                name = re.search(r"^DEVICE .*?(\w+)\(", definition, re.MULTILINE)
                if name and re.search(r"asm(?: volatile)?\(\s*\"[^\"]", definition):
                    found[f"{path.name}: {name[1]}"] = comment
    return found


def test_no_ptx_function_is_overlooked() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (KERNELS / "ptx").glob("*.cuh")]
    named = {name.split()[1] for name in ptx_functions()}
    defined = set(re.findall(r"^DEVICE .*?(\w+)\(", "\n".join(texts), re.MULTILINE))
    plain = {"mbarrier_wait", "pin_accumulator", "swizzled_descriptor", "descriptor_step"}
    assert named == defined - plain


@pytest.mark.parametrize("function", ptx_functions())
def test_each_ptx_function_cites_its_section(function: str) -> None:
    assert re.search(r'PTX ISA "[^"]+"', ptx_functions()[function])
