"""One set of rules decides what a configuration may be; each refusal says what would be legal."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.config import KernelConfig, KernelVariant, LaunchKnobs
from tuner.errors import InvalidConfig
from tuner.hardware import MAX_TMA_BOX_ROWS, REGISTERS_PER_SM, SMEM_BYTES_PER_BLOCK
from tuner.legality import (
    BUSY_PRODUCER_REGISTERS,
    faults,
    knob_faults,
    launch_registers,
    operand_boxes,
    problem_faults,
    uneven,
    variant_faults,
)
from tuner.shape import GemmShape, Problem
from tuner.tiling import k_steps

ARTICLE = KernelVariant(128, 256, stages=3, cluster_m=2)
ONE_CONSUMER = KernelVariant(64, 32, 4, 4, 1, "m", "cooperative", 0, 0)
THREE_CONSUMERS = KernelVariant(192, 176, 4, 1, 3, "m", "cooperative", 32, 160)
SQUARE = Problem(GemmShape(4096, 4096, 4096), sms=132)

variants = st.builds(
    KernelVariant,
    block_m=st.sampled_from([0, 32, 64, 128, 192, 256, 320, 384]),
    block_n=st.integers(0, 80).map(lambda n: 8 * n),
    stages=st.integers(0, 20),
    slabs_per_stage=st.sampled_from([0, 1, 2, 3, 4]),
    consumers=st.integers(0, 4),
    split=st.sampled_from(["m", "n"]),
    schedule=st.sampled_from(["cooperative", "pingpong"]),
    producer_registers=st.sampled_from([0, 24, 32, 40]),
    consumer_registers=st.sampled_from([0, 160, 232, 240]),
    cluster_m=st.integers(0, 5),
    cluster_n=st.integers(0, 5),
    transposed_store=st.booleans(),
    store=st.sampled_from(["tma", "direct"]),
    reduction=st.sampled_from(["none", "workspace"]),
)


def only_fault(variant: KernelVariant) -> str:
    (fault,) = variant_faults(variant)
    return fault


def test_the_article_s_configuration_is_legal() -> None:
    knobs = LaunchKnobs(num_sms=128, raster="hilbert")
    assert faults(KernelConfig(ARTICLE, knobs), SQUARE) == []


@given(variants)
def test_what_is_called_legal_fits_the_hardware(variant: KernelVariant) -> None:
    if list(variant_faults(variant)):
        return
    registers = variant.producer_registers + variant.consumers * variant.consumer_registers
    assert registers * 128 <= REGISTERS_PER_SM
    assert variant.smem_bytes <= SMEM_BYTES_PER_BLOCK
    assert variant.consumer_m % 64 == 0
    assert variant.consumer_n % 8 == 0
    assert 8 <= variant.consumer_n <= 256
    for extent, sharers in (
        (variant.block_m, variant.cluster_n),
        (variant.block_n, variant.cluster_m),
    ):
        assert extent % 8 == 0
        assert extent >= 8 * sharers  # each loads a group of rows at least
        if uneven(extent, sharers):  # group by group, with the registers that takes
            assert not 0 < variant.producer_registers < BUSY_PRODUCER_REGISTERS
            continue
        boxes = operand_boxes(extent, sharers)
        assert extent % (8 * sharers * boxes) == 0
        assert extent // (sharers * boxes) <= MAX_TMA_BOX_ROWS
    shares = 1 if variant.schedule == "pingpong" else variant.consumers
    assert variant.consumer_m * variant.consumer_n * shares == variant.block_m * variant.block_n


def test_a_ring_too_deep_for_shared_memory_names_the_deepest_legal_ring() -> None:
    fault = only_fault(replace(ARTICLE, stages=5))
    assert "Use stages <= 4" in fault
    assert not list(variant_faults(replace(ARTICLE, stages=4)))


@pytest.mark.parametrize(
    ("variant", "reason"),
    [
        (replace(ARTICLE, block_m=192), "takes whole 64-row WGMMA blocks"),
        (replace(ARTICLE, block_n=264, stages=3, cluster_m=1), "multiple of 8 up to 256"),
        (replace(ARTICLE, block_n=252, cluster_m=1), "gives each consumer 252"),
        (replace(ARTICLE, cluster_m=3, cluster_n=3), "not between 1 and 8"),
        (replace(ARTICLE, block_n=8, cluster_m=2), "fewer groups of 8 rows than the 2"),
        (replace(ARTICLE, block_n=72), "slices of unequal size, needs 40 registers, not 24"),
        (replace(ARTICLE, reduction="workspace"), "splits K, or slices of unequal size, needs 40"),
        (replace(THREE_CONSUMERS, reduction="workspace"), "at most 2 consumers"),
        (replace(ARTICLE, reduction="workspace", cluster_n=4), "at most 4 thread blocks"),
        (replace(ONE_CONSUMER, schedule="pingpong"), "alternates between two"),
        (replace(ONE_CONSUMER, split="n"), "nothing to split"),
        (replace(ONE_CONSUMER, stages=1), "stages must be 2 to 16"),
        (replace(ONE_CONSUMER, slabs_per_stage=3), "must be 1, 2 or 4"),
        (replace(ONE_CONSUMER, producer_registers=24, consumer_registers=240), "both register"),
        (replace(ARTICLE, consumer_registers=248), "registers per lane"),
        (replace(ARTICLE, consumer_registers=250), "multiple of 8"),
        (replace(ARTICLE, consumers=4), "consumers must be 1 to 3"),
        (
            KernelVariant(64, 264, 2, 1, 3, "n", "cooperative", 32, 160),
            "block_n=264 needs 2 loads of at most 256 rows for each of 1 thread blocks; make it a "
            "multiple of 16",
        ),
        (KernelVariant(256, 256, 2), "256 accumulators per thread exceed 208"),
    ],
)
def test_every_rule_says_what_is_wrong(variant: KernelVariant, reason: str) -> None:
    assert any(reason in fault for fault in variant_faults(variant))


def test_knobs_hold_at_least_one_cluster_and_stay_within_the_sm_budget() -> None:
    four = replace(ARTICLE, cluster_m=2, cluster_n=2)
    assert list(knob_faults(LaunchKnobs(num_sms=132), four, 132)) == []
    assert "not a multiple" in next(iter(knob_faults(LaunchKnobs(num_sms=130), four, 132)))
    assert "within 66" in next(iter(knob_faults(LaunchKnobs(num_sms=132), four, 66)))
    assert "hold one cluster" in next(iter(knob_faults(LaunchKnobs(num_sms=2), four, 132)))
    assert "group must be" in next(iter(knob_faults(LaunchKnobs(132, group=0), four, 132)))
    assert "promotion" in next(iter(knob_faults(LaunchKnobs(132, promotion=32), four, 132)))


@pytest.mark.parametrize("k", [133, 103, 20, 1, 7])
def test_k_off_a_multiple_of_8_is_unsupported_with_the_one_true_rule(k: int) -> None:
    (fault,) = problem_faults(ARTICLE, Problem(GemmShape(128, 128, k), sms=132))
    assert "K to be a multiple of 8" in fault
    assert f"K is {k}" in fault
    padded = int(fault.rsplit(" ", 1)[1].rstrip("."))
    assert padded % 8 == 0
    assert k < padded < k + 8


@pytest.mark.parametrize("k", [8, 24, 576, 4096])
def test_k_on_a_multiple_of_8_is_supported(k: int) -> None:
    assert list(problem_faults(ARTICLE, Problem(GemmShape(128, 128, k), sms=132))) == []


@pytest.mark.parametrize(
    ("m", "n", "d", "direct"),
    [(5, 7, "row", True), (7, 8, "row", False), (7, 8, "col", True), (8, 7, "col", False)],
)
def test_an_output_tma_cannot_address_needs_the_direct_store(
    m: int, n: int, d: str, direct: bool
) -> None:
    problem = Problem(GemmShape(m, n, 64), sms=132, d=d)  # type: ignore[arg-type]
    assert bool(list(problem_faults(ARTICLE, problem))) is direct
    assert list(problem_faults(replace(ARTICLE, store="direct"), problem)) == []


def test_registers_at_launch_are_what_one_resident_block_can_have() -> None:
    assert [launch_registers(threads) for threads in (256, 384, 512)] == [255, 168, 128]


@given(k=st.integers(1, 2**31 - 1), slabs=st.sampled_from([1, 2, 4]))
def test_steps_cover_k_and_no_step_lies_beyond_it(k: int, slabs: int) -> None:
    steps = k_steps(k, replace(ARTICLE, slabs_per_stage=slabs))
    assert (steps - 1) * 64 * slabs < k <= steps * 64 * slabs


@given(variants, st.integers(1, 200))
def test_a_configuration_survives_its_flat_form(variant: KernelVariant, sms: int) -> None:
    config = KernelConfig(variant, LaunchKnobs(num_sms=sms))
    assert KernelConfig.from_dict(config.to_dict()) == config
    assert KernelConfig.from_dict(config.to_stored()) == config


def test_a_config_that_uses_no_later_field_is_stored_as_before_there_were_any() -> None:
    config = KernelConfig(ARTICLE, LaunchKnobs(num_sms=132))
    later = {"reduction", "split_k", "split_tail", "dependent_launch"}
    assert config.to_dict().keys() - config.to_stored().keys() == later
    split = replace(config.knobs, split_k=4, dependent_launch=True)
    stored = KernelConfig(replace(ARTICLE, reduction="workspace"), split).to_stored()
    assert stored.keys() & later == later - {"split_tail"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"block_m": "128"}, "block_m cannot be '128'"),
        ({"block_m": True}, "block_m cannot be True"),
        ({"raster": "spiral"}, "raster cannot be 'spiral'"),
        ({"transposed_store": 1}, "transposed_store cannot be 1"),
        ({"stages": -1}, "stages cannot be -1"),
        ({"stages": 2**40}, "stages cannot be"),
        ({"colour": 1}, r"unknown fields \['colour'\]"),
    ],
)
def test_a_flat_form_that_is_off_is_refused_by_field(
    change: dict[str, object], reason: str
) -> None:
    flat = KernelConfig(ARTICLE, LaunchKnobs(num_sms=132)).to_dict() | change
    with pytest.raises(InvalidConfig, match=reason):
        KernelConfig.from_dict(flat)


def test_a_flat_form_that_lacks_fields_names_them() -> None:
    with pytest.raises(InvalidConfig, match=r"lacks the fields .*'block_n'"):
        KernelConfig.from_dict({"block_m": 128})


SPLITTING = KernelConfig(
    KernelVariant(
        128, 128, 5, reduction="workspace", producer_registers=40, consumer_registers=232
    ),
    LaunchKnobs(num_sms=132, split_k=4),
)
DEEP = Problem(GemmShape(512, 512, 32768), sms=132)


@pytest.mark.parametrize(
    ("problem", "knobs", "reason"),
    [
        (DEEP, {"split_k": 1}, "split_k must be 2 to 64 here, not 1"),
        (DEEP, {"split_k": 65}, "split_k must be 2 to 64 here, not 65"),
        (DEEP, {"num_sms": 3}, "split_k must be 2 to 3 here, not 4"),
        (replace(DEEP, shape=GemmShape(512, 512, 192)), {}, "split_k must be 2 to 3 here, not 4"),
        (DEEP, {"split_tail": True}, "split_tail needs full waves of tiles"),
        (
            replace(DEEP, shape=GemmShape(1536, 1408, 4096)),
            {"split_tail": True, "num_sms": 66},
            "split_tail needs full waves of tiles and a last one that is not full",
        ),
        (
            replace(DEEP, shape=GemmShape(8192, 8192, 8192)),
            {},
            "partial tiles would take 1073741824 B; at most 67108864 B",
        ),
    ],
)
def test_k_is_split_only_as_the_problem_and_the_device_allow(
    problem: Problem, knobs: dict[str, int], reason: str
) -> None:
    assert faults(SPLITTING, DEEP) == []
    changed = replace(SPLITTING, knobs=replace(SPLITTING.knobs, **knobs))  # type: ignore[arg-type]
    assert reason in " ".join(faults(changed, problem))


def test_a_kernel_that_cannot_split_k_is_not_asked_to() -> None:
    plain = KernelConfig(ARTICLE, LaunchKnobs(num_sms=132, split_k=2))
    assert "this variant cannot split K" in " ".join(faults(plain, SQUARE))
