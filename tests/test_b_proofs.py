"""What the sanitizer and the proofs over many shapes look at: launches that really take a path."""

import struct
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness import SHAPES
from benchmarks.sanitize import KINDS, SMS, TAKEN_OUT, bf16_bits, bf16_value, damaged
from benchmarks.verify_shapes import (
    DIRECT_SOURCES,
    SOURCES,
    SPLIT_SHARE,
    SPLIT_SOURCES,
    configs_for,
    varied,
)
from tuner.compiler.source import render
from tuner.config import KernelVariant
from tuner.legality import faults, uneven
from tuner.shape import GemmShape, Problem
from tuner.shape_files import read_shape_files
from tuner.tiling import k_steps, tiling_of


@pytest.mark.parametrize("name", KINDS)
def test_every_sanitized_launch_is_legal(name: str) -> None:
    kind = KINDS[name]
    assert faults(kind.config, kind.problem) == []
    if kind.chained:
        assert faults(kind.config, kind.next_problem) == []


@pytest.mark.parametrize("name", [name for name in KINDS if "split K" in name])
def test_a_sanitized_split_exchanges_partial_tiles_of_several_steps(name: str) -> None:
    kind = KINDS[name]
    tiling = tiling_of(kind.config, kind.problem)
    assert tiling.split_tiles > 0
    assert k_steps(kind.problem.shape.k, kind.variant) // tiling.split_k >= 4
    # Tails along every side, and more work than thread blocks.
    shape = kind.problem.shape
    assert (shape.m % 64, shape.n % 64, shape.k % 64) > (0, 0, 0)
    assert tiling.units > SMS // kind.variant.cluster_size


def test_new_paths_are_sanitized_in_every_schedule() -> None:
    splitting = [kind for kind in KINDS.values() if kind.split_k > 1]
    assert {kind.variant.schedule for kind in splitting} == {"cooperative", "pingpong"}
    assert {kind.variant.store for kind in splitting} == {"tma", "direct"}
    assert {kind.split_tail for kind in splitting} == {True, False}
    assert any(uneven(kind.variant.block_n, kind.variant.cluster_m) for kind in KINDS.values())


def test_in_a_sanitized_chain_the_second_product_reads_the_first() -> None:
    chains = [kind for kind in KINDS.values() if kind.chained]
    assert len(chains) >= 2
    for kind in chains:
        first, second = kind.problem.shape, kind.next_problem.shape
        assert (second.m, second.k) == (first.m, first.n)
        assert kind.config.knobs.dependent_launch


@pytest.mark.parametrize("what", TAKEN_OUT)
def test_every_fence_that_is_taken_out_stands_in_the_source_once(what: str) -> None:
    variant = KINDS["direct store" if "copying" in what else "ping-pong"].variant
    assert damaged(what, variant).headers != render(variant).headers


@given(st.floats(width=32, min_value=2.0**-100, max_value=2.0**100))
def test_bits_are_rounded_to_the_nearest_of_bf16(value: float) -> None:
    bits = bf16_bits(value)
    (exact,) = struct.unpack("<I", struct.pack("<f", value))
    nearest = min((exact >> 16, (exact >> 16) + 1), key=lambda b: abs(bf16_value(b) - value))
    assert abs(bf16_value(bits) - value) == abs(bf16_value(nearest) - value)


@pytest.mark.parametrize(("value", "bits"), [(1.0, 0x3F80), (328.0, 0x43A4), (1032.0, 0x4481)])
def test_sums_of_ones_have_the_bits_of_their_count(value: float, bits: int) -> None:
    assert bf16_bits(value) == bits
    assert bf16_value(bits) == value


@pytest.fixture(scope="module")
def variants() -> list[KernelVariant]:
    return [
        *varied(SOURCES, 14, 7),
        *varied(DIRECT_SOURCES, 20, 7),
        *varied(SPLIT_SOURCES, 8, 7, splitting=True),
    ]


def test_variants_that_split_k_are_drawn_in_every_schedule_and_store(
    variants: list[KernelVariant],
) -> None:
    splitting = [v for v in variants if v.reduction != "none"]
    assert len(splitting) >= 30
    assert {v.schedule for v in splitting} == {"cooperative", "pingpong"}
    assert {v.store for v in splitting} == {"tma", "direct"}
    assert {v.transposed_store for v in splitting} == {True, False}


@pytest.mark.parametrize("extents", [(256, 256, 16384), (65, 1001, 7168), (16, 4096, 14336)])
def test_a_quarter_of_the_configs_of_a_deep_shape_split_k(
    variants: list[KernelVariant], extents: tuple[int, int, int]
) -> None:
    problem = Problem(GemmShape(*extents), 132)
    tried = configs_for(problem, variants, 24, Random(1))
    assert len(tried) == len({config.variant for config in tried}) == 24
    splitting = [config for config in tried if config.knobs.split_k > 1]
    assert len(splitting) == 24 * SPLIT_SHARE
    assert all(tiling_of(config, problem).split_tiles > 0 for config in splitting)


def test_every_shape_of_the_list_has_enough_legal_configs_and_some_depend(
    variants: list[KernelVariant],
) -> None:
    listed = read_shape_files([SHAPES / "squares-and-odd.txt"]).shapes
    dependent = 0
    for shape in [shape for shape in listed if shape.unsupported_reason() is None][::10]:
        problem = Problem(shape, 132)
        tried = configs_for(problem, variants, 24, Random(f"7{shape}"))
        assert len(tried) == 24
        assert [faults(config, problem) for config in tried] == [[]] * 24
        dependent += sum(config.knobs.dependent_launch for config in tried)
    assert dependent > 0
