"""The kernel, damaged: sources in which one line does what must be noticed."""

from tuner.compiler.source import MAIN, TranslationUnit, render
from tuner.config import KernelVariant

FAULTS = {
    "drops the last K step": (
        "consumer.cuh",
        "multiply_stage(accumulators, a0 + stage, b0 + stage, accumulate);",
        "if (step + 1 < steps) multiply_stage(accumulators, a0 + stage, b0 + stage, accumulate);",
    ),
    "writes nothing": ("epilogue.cuh", "ptx::tma_store(map, buffer, inner, outer);", ";"),
    "never ends": (
        "producer.cuh",
        "ptx::mbarrier_arrive_expect_tx(full, stage_bytes);",
        "ptx::mbarrier_arrive_expect_tx(full, stage_bytes + 16);",
    ),
    "traps": ("epilogue.cuh", "ptx::tma_store(map, buffer, inner, outer);", "__trap();"),
    "writes out of bounds": (
        "epilogue.cuh",
        "ptx::tma_store(map, buffer, inner, outer);",
        "*reinterpret_cast<volatile int*>(16) = inner;",
    ),
}
"""By what they do: the file, its sound line, and what stands there instead."""


def broken(variant: KernelVariant, file: str, sound: str, fault: str) -> TranslationUnit:
    """The source of `variant` with one line replaced, which must be there once."""
    unit = render(variant)
    if file == MAIN:
        assert unit.main.count(sound) == 1
        return TranslationUnit(unit.main.replace(sound, fault), unit.headers)
    text = unit.headers[file]
    assert text.count(sound) == 1
    return TranslationUnit(unit.main, {**unit.headers, file: text.replace(sound, fault)})


def broken_alone(
    variant: KernelVariant, victim: KernelVariant, file: str, sound: str, fault: str
) -> TranslationUnit:
    """As `broken` for `victim`; every other variant is sound."""
    return broken(variant, file, sound, fault) if variant == victim else render(variant)
