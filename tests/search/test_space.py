"""The menu: legal everywhere, rich where it matters, and without what would be a waste."""

from collections import Counter
from functools import cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.config import KernelConfig, KernelVariant
from tuner.legality import faults
from tuner.lookup.launches import resident_sms, sms_choices
from tuner.search.launches import knob_menu, knob_neighbours
from tuner.search.space import (
    article_config,
    menu,
    sample,
    trusted_config,
)
from tuner.shape import GemmShape, Problem
from tuner.tiling import tile_grid


def problem(m: int, n: int, k: int, sms: int = 132) -> Problem:
    return Problem(GemmShape(m, n, k), sms)


@cache
def menu_of(asked: Problem) -> tuple[KernelConfig, ...]:
    """Its menu, worked out once for all tests."""
    return tuple(menu(asked))


SQUARE = problem(4096, 4096, 4096)
SHAPES = [
    problem(512, 512, 512),
    problem(1024, 1024, 1024),
    SQUARE,
    problem(16384, 16384, 16384),
    problem(1, 8192, 8192),
    problem(16, 4096, 14336),
    problem(128, 7168, 16384),
    problem(256, 256, 16384),
    problem(1000, 1000, 1000),
    problem(1003, 777, 1032),
    problem(1, 1, 8),
    problem(2**31 - 1, 8, 8),
    Problem(GemmShape(4096, 2112, 7168), 132, d="col"),
    problem(4096, 4096, 4096, sms=20),
]


@pytest.mark.parametrize("asked", SHAPES, ids=str)
def test_every_config_of_a_menu_is_legal_and_offered_once(asked: Problem) -> None:
    entries = menu_of(asked)
    assert len(entries) > 10
    assert all(not faults(c, asked) for c in entries)
    assert max(Counter(c.variant for c in entries).values()) == 1


@given(
    st.builds(
        GemmShape,
        st.integers(1, 20_000),
        st.integers(1, 20_000),
        st.integers(1, 2000).map(lambda k: 8 * k),
    ),
    st.sampled_from([132, 114, 78, 8]),
)
@settings(max_examples=15, deadline=None)
def test_any_supported_shape_has_a_legal_menu_and_legal_fixed_configs(
    shape: GemmShape, sms: int
) -> None:
    asked = Problem(shape, sms)
    entries = menu(asked)
    assert entries
    some = Random(0).sample(entries, min(5, len(entries)))
    for config in (article_config(asked), trusted_config(asked), *some):
        assert not faults(config, asked)


TILES_THAT_WON = [
    # shape, block_m, block_n, schedule, exchanged, consumers
    ((512, 512, 512), 64, 32, "cooperative", False, 1),
    ((1024, 1024, 1024), 64, 128, "pingpong", False, 2),
    ((2048, 2048, 2048), 128, 128, "pingpong", False, 2),
    ((8192, 8192, 8192), 128, 192, "pingpong", True, 2),
    ((5120, 5120, 5120), 128, 144, "pingpong", False, 2),
    ((128, 10240, 8192), 64, 160, "cooperative", True, 1),
    ((256, 28672, 4096), 128, 224, "cooperative", True, 2),
    ((4096, 2112, 7168), 192, 176, "cooperative", True, 3),
    ((128, 7168, 16384), 64, 112, "cooperative", True, 1),
    ((64, 2112, 7168), 64, 32, "cooperative", True, 1),
    ((16, 4096, 14336), 64, 16, "cooperative", True, 1),
    ((4096, 4096, 4096), 128, 256, "cooperative", False, 2),
    ((8192, 8192, 8192), 320, 128, "cooperative", False, 2),
    ((6144, 6144, 6144), 192, 192, "cooperative", False, 2),
]


@pytest.mark.parametrize("won", TILES_THAT_WON, ids=str)
def test_tiles_known_to_win_somewhere_are_on_the_menu_there(
    won: tuple[tuple[int, int, int], int, int, str, bool, int],
) -> None:
    extents, *wanted = won
    tiles = {
        (v.block_m, v.block_n, v.schedule, v.transposed_store, v.consumers)
        for v in (c.variant for c in menu_of(problem(*extents)))
    }
    assert tuple(wanted) in tiles


def test_small_tiles_come_with_deep_rings_and_several_slabs_per_stage() -> None:
    variants = [c.variant for c in menu_of(problem(512, 512, 512))]
    small = [v for v in variants if (v.block_m, v.block_n) == (64, 32)]
    assert {v.slabs_per_stage for v in small} == {1, 2, 4}
    assert {8, 15, 16} <= {v.stages for v in small}


def test_large_tiles_come_with_clusters_both_ways_and_both_register_splits() -> None:
    variants = [c.variant for c in menu_of(SQUARE)]
    large = [v for v in variants if (v.block_m, v.block_n, v.split) == (128, 256, "m")]
    clusters = {(v.cluster_m, v.cluster_n) for v in large}
    assert clusters == {(1, 1), (2, 1), (1, 2), (4, 1), (1, 4), (2, 2)}
    assert {(v.producer_registers, v.consumer_registers) for v in large} == {(24, 240), (40, 232)}
    assert {v.stages for v in large} == {3, 4}


def test_a_pitch_that_tma_cannot_store_gets_direct_stores_and_any_other_never() -> None:
    assert {c.variant.store for c in menu_of(problem(1003, 777, 1032))} == {"direct"}
    assert {c.variant.store for c in menu(problem(1003, 776, 1032))} == {"tma"}
    column_major = Problem(GemmShape(777, 776, 1032), 132, d="col")
    assert {c.variant.store for c in menu(column_major)} == {"direct"}
    assert trusted_config(problem(8, 1, 4096)).variant.store == "direct"


def test_tiles_that_would_mostly_compute_padding_are_left_out() -> None:
    for config in menu(problem(16, 8192, 8192)):
        assert config.variant.transposed_store
        assert config.variant.block_n <= 32


def test_the_published_config_is_kept_as_published() -> None:
    config = article_config(SQUARE)
    v = config.variant
    assert (v.block_m, v.block_n, v.stages, v.cluster_m, v.cluster_n) == (128, 256, 3, 2, 1)
    assert (v.consumers, v.split, v.producer_registers, v.consumer_registers) == (2, "m", 24, 240)
    assert (config.knobs.num_sms, config.knobs.raster) == (128, "hilbert")
    assert not v.transposed_store
    assert article_config(problem(4096, 4096, 4096, sms=101)).knobs.num_sms == 100


def test_exchanged_operands_and_column_major_outputs_turn_the_tile_around() -> None:
    straight = KernelVariant(128, 64, 4)
    exchanged = KernelVariant(128, 64, 4, transposed_store=True)
    row, col = problem(1024, 512, 64), Problem(GemmShape(1024, 512, 64), 132, d="col")
    assert tile_grid(row, straight) == tile_grid(col, exchanged) == (8, 8)
    assert tile_grid(row, exchanged) == tile_grid(col, straight) == (4, 16)


def test_thread_blocks_are_whole_clusters_that_fit_at_once() -> None:
    assert [resident_sms(132, size) for size in (1, 2, 4, 8)] == [132, 132, 120, 120]
    assert resident_sms(3, 4) == 4
    variant = KernelVariant(128, 256, 3, cluster_m=2)
    # 5120 cubed: 40 x 20 tiles in 7 waves of 132, which 116 do as well.
    assert sms_choices(problem(5120, 5120, 5120), variant) == [132, 128, 116]


def test_run_time_knobs_cover_every_kind_and_neighbours_change_one_of_them() -> None:
    variant = KernelVariant(128, 256, 3, cluster_m=2)
    launches = knob_menu(SQUARE, variant)
    assert len(set(launches)) == len(launches)
    assert {k.raster for k in launches} == {"along_m", "along_n", "hilbert"}
    assert {k.promotion for k in launches} == {0, 64, 128, 256}
    assert {k.group for k in launches if k.raster == "along_m"} == {1, 2, 4, 8, 16}
    assert all(not faults(KernelConfig(variant, k), SQUARE) for k in launches)
    start = KernelConfig(variant, launches[0])
    near = knob_neighbours(start, SQUARE)
    assert start not in near
    assert len(set(near)) == len(near)
    for config in near:
        a, b = start.knobs, config.knobs
        changed = [
            a.num_sms != b.num_sms,
            (a.raster, a.group) != (b.raster, b.group),
            a.promotion != b.promotion,
            (a.evict_a, a.evict_b) != (b.evict_a, b.evict_b),
        ]
        assert sum(changed) == 1


def test_a_sample_is_reproducible_legal_and_without_repeats() -> None:
    first = sample(SQUARE, 40, seed=7)
    assert first == sample(SQUARE, 40, seed=7)
    assert first != sample(SQUARE, 40, seed=8)
    assert len(set(first)) == 40
    assert set(first) <= set(menu_of(SQUARE))
    knobs = {c.knobs for c in sample(SQUARE, 40, seed=7, any_knobs=True)}
    assert len(knobs) > 20
    assert len(sample(problem(1, 1, 8), 10_000, seed=0)) == len(menu(problem(1, 1, 8)))


@pytest.mark.parametrize("rows", [1, 8, 12, 16])
def test_few_rows_and_a_deep_k_are_offered_kernels_that_split_k(rows: int) -> None:
    found = [c for c in menu(problem(rows, 512, 65536)) if c.variant.reduction != "none"]
    assert found
    assert max(c.knobs.split_k for c in found) >= 16


def test_a_last_wave_after_many_is_not_split() -> None:
    assert not [c for c in menu_of(problem(8192, 8192, 8192)) if c.knobs.split_tail]
    tail = [c for c in menu_of(problem(5120, 5120, 5120)) if c.knobs.split_tail]
    assert any(c.variant.block_n == 256 for c in tail)
