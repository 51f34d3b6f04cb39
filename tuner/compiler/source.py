"""Turns a variant into the one translation unit NVRTC compiles.

The kernel's own files are passed in memory next to two generated headers: the variant as a struct
of constants, and the WGMMA instruction for the N in use.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from tuner.compiler.options import OPTIONS
from tuner.config import KernelVariant

ENTRY = "gemm_sm90"
MAIN = "gemm_sm90.cu"


@dataclass(frozen=True, slots=True)
class TranslationUnit:
    """What NVRTC is given: the main file's text, and the headers it can include by name."""

    main: str
    headers: Mapping[str, str]


def render(variant: KernelVariant) -> TranslationUnit:
    """The source of one variant; the same variant gives the same text on every machine."""
    sources = kernel_sources()
    headers = {name: text for name, text in sources.items() if name != MAIN}
    headers["config.cuh"] = render_config(variant)
    headers["wgmma_instruction.cuh"] = render_wgmma(variant.consumer_n)
    return TranslationUnit(sources[MAIN], headers)


def render_config(variant: KernelVariant) -> str:
    """CUDA `struct Config`: the variant's fields, and what follows from them."""
    size = variant.cluster_size
    constants = {
        "block_m": variant.block_m,
        "block_n": variant.block_n,
        "stages": variant.stages,
        "slabs_per_stage": variant.slabs_per_stage,
        "consumers": variant.consumers,
        "split_m": variant.split == "m",
        "pingpong": variant.schedule == "pingpong",
        "producer_registers": variant.producer_registers,
        "consumer_registers": variant.consumer_registers,
        "cluster_m": variant.cluster_m,
        "cluster_n": variant.cluster_n,
        "transposed_store": variant.transposed_store,
        "tma_store": variant.store == "tma",
        "can_split": variant.reduction != "none",
        "consumer_m": variant.consumer_m,
        "consumer_n": variant.consumer_n,
        "store_buffers": variant.store_buffers,
    }
    lines = [
        f"    static constexpr {'bool' if isinstance(value, bool) else 'int'} {name} = "
        f"{str(value).lower()};"
        for name, value in constants.items()
    ]
    # A kernel without the attribute starts a little faster than one with clusters of one.
    dimensions = f"__cluster_dims__({size}, 1, 1)" if size > 1 else ""
    return "\n".join(
        [
            "#pragma once",
            f"#define CLUSTER_DIMENSIONS {dimensions}",
            "struct Config {",
            *lines,
            "};",
            "",
        ]
    )


def render_wgmma(n: int) -> str:
    """One m64n{n}k16 bf16 WGMMA with fp32 accumulation; a thread holds n / 2 accumulators.

    PTX ISA "wgmma.mma_async"; sm_90a. Both operands K-major in shared memory, by descriptor.
    """
    count = n // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    return f"""#pragma once
#include "types.cuh"

namespace ptx {{

DEVICE void wgmma_multiply(float (&d)[{count}], uint64 a, uint64 b, bool accumulate) {{
    asm volatile(
        "{{\\n"
        ".reg .pred p;\\n"
        "setp.ne.b32 p, %{count + 2}, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {{{registers}}}, "
        "%{count}, %{count + 1}, p, 1, 1, 0, 0;\\n"
        "}}"
        : {outputs}
        : "l"(a), "l"(b), "r"(static_cast<int32>(accumulate)));
}}

}}  // namespace ptx
"""


@cache
def kernel_sources() -> Mapping[str, str]:
    """Every file of `kernels/`, by its path below that folder."""
    found: dict[str, str] = {}

    def visit(folder: Traversable, prefix: str) -> None:
        for entry in sorted(folder.iterdir(), key=lambda e: e.name):
            if entry.is_dir():
                visit(entry, f"{prefix}{entry.name}/")
            elif entry.name.endswith((".cu", ".cuh")):
                found[prefix + entry.name] = entry.read_text(encoding="utf-8")

    visit(files("tuner") / "kernels", "")
    return found


@cache
def kernel_hash() -> str:
    """Names the kernel that measurements belong to.

    Over the code of `kernels/`, comments apart, what the generator makes of variants of each kind,
    and the compiler options. The host's side of a launch is not in it.
    """
    digest = hashlib.sha256()
    for name, text in kernel_sources().items():
        digest.update(f"{name}\0{without_comments(text)}\0".encode())
    for variant in _KINDS:
        generated = render_config(variant) + render_wgmma(variant.consumer_n)
        digest.update(without_comments(generated).encode())
    digest.update("\0".join(OPTIONS).encode())
    return digest.hexdigest()[:16]


def without_comments(code: str) -> str:
    """Code without `//` comments, trailing blanks and empty lines; no string of ours has `//`."""
    lines = (line.partition("//")[0].rstrip() for line in code.splitlines())
    return "\n".join(line for line in lines if line)


_KINDS = (
    KernelVariant(128, 256, 4, cluster_m=2),
    KernelVariant(64, 8, 8, 4, 1, "m", "cooperative", 0, 0, transposed_store=True),
    KernelVariant(192, 192, 4, split="n", store="direct", cluster_n=2),
    KernelVariant(128, 128, 6, schedule="pingpong"),
    KernelVariant(128, 128, 4, reduction="workspace"),
)
