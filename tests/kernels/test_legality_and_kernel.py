"""What tuner.legality allows, the kernel's own assertions allow as well."""

from functools import cache
from random import Random

from tuner.compiler.nvrtc import Compilation, compile_unit
from tuner.compiler.source import TranslationUnit, render
from tuner.config import KernelVariant
from tuner.device.cuda.tensor_map import operand_box_rows
from tuner.legality import operand_boxes, uneven, variant_faults

COUNT = 72
WHOLE = 6
ASSERTIONS = """
#include "config.cuh"
#include "config_checks.cuh"
#include "consumer.cuh"
#include "epilogue.cuh"
#include "producer.cuh"
constexpr int32 rows_a = Operand<Config::block_m, Config::cluster_n>::box_rows;
constexpr int32 rows_b = Operand<Config::block_n, Config::cluster_m>::box_rows;
"""
"""Everything that holds a static_assert, and no kernel: quick to compile."""
BOXES_DIFFER = KernelVariant(64, 264, 2, 1, 3, "n", "cooperative", 32, 160)


def drawn(random: Random) -> KernelVariant:
    """Any variant at all; most are illegal."""
    consumers = random.choice((1, 2, 3))
    registers = {1: (0, 0), 2: random.choice(((24, 240), (40, 232))), 3: (32, 160)}[consumers]
    return KernelVariant(
        block_m=random.choice((64, 128, 192, 256, 320, 384, 512, 576)),
        block_n=8 * random.randint(1, 96),
        stages=random.choice((2, 2, 3, 4, 9)),
        slabs_per_stage=random.choice((1, 1, 2, 4)),
        consumers=consumers,
        split=random.choice(("m", "n")),
        schedule=random.choice(("cooperative", "pingpong")),
        producer_registers=registers[0],
        consumer_registers=registers[1],
        cluster_m=random.choice((1, 1, 2, 3, 4)),
        cluster_n=random.choice((1, 1, 2, 3, 4)),
        transposed_store=random.random() < 0.5,
        store=random.choice(("tma", "direct")),
        reduction=random.choice(("none", "none", "workspace")),
    )


def boxes(variant: KernelVariant) -> int:
    """Loads of the operand that needs more of them."""
    return max(
        operand_boxes(variant.block_m, variant.cluster_n),
        operand_boxes(variant.block_n, variant.cluster_m),
    )


@cache
def legal_variants() -> list[KernelVariant]:
    """A seeded sample of everything legal; a quarter of it with slices of several boxes."""
    random = Random(7)
    legal = (v for v in iter(lambda: drawn(random), None) if not list(variant_faults(v)))
    one, several = dict[KernelVariant, None](), dict[KernelVariant, None]()
    while len(one) < COUNT - COUNT // 4 or len(several) < COUNT // 4:
        variant = next(legal)
        (several if boxes(variant) > 1 else one)[variant] = None
    return [*list(one)[: COUNT - COUNT // 4], *list(several)[: COUNT // 4]]


def asserted(variant: KernelVariant) -> Compilation:
    same_boxes = (
        f"static_assert(rows_a == {operand_box_rows(variant.block_m, variant.cluster_n)});"
        f"static_assert(rows_b == {operand_box_rows(variant.block_n, variant.cluster_m)});"
    )
    return compile_unit(TranslationUnit(ASSERTIONS + same_boxes, render(variant).headers))


def test_the_sample_holds_every_kind() -> None:
    variants = legal_variants()
    assert {v.consumers for v in variants} == {1, 2, 3}
    assert {v.schedule for v in variants} == {"cooperative", "pingpong"}
    assert {v.split for v in variants} == {"m", "n"}
    assert {v.cluster_m for v in variants} == {1, 2, 3, 4}
    assert {v.store for v in variants} == {"tma", "direct"}
    assert {v.reduction for v in variants} == {"none", "workspace"}
    assert any(uneven(v.block_m, v.cluster_n) for v in variants)
    assert any(uneven(v.block_n, v.cluster_m) for v in variants)
    assert sum(boxes(v) > 1 for v in variants) == COUNT // 4
    assert len(variants) == COUNT


def test_no_assertion_of_the_kernel_refuses_a_legal_variant_or_loads_other_boxes() -> None:
    refused = {v: log for v in legal_variants() for cubin, log in [asserted(v)] if cubin is None}
    assert refused == {}


def test_a_slice_in_unequal_boxes_is_refused_by_both() -> None:
    (fault,) = variant_faults(BOXES_DIFFER)
    assert "block_n=264 needs 2 loads" in fault
    compiled = asserted(BOXES_DIFFER)
    assert compiled.cubin is None
    assert "equal boxes of 8-row groups" in compiled.log


def test_legal_variants_compile_whole() -> None:
    for variant in legal_variants()[:: COUNT // WHOLE]:
        compiled = compile_unit(render(variant))
        assert compiled.cubin is not None, (variant, compiled.log)
