"""The tile order is the kernel's own code (kernels/tile_scheduler.cuh), compiled for the CPU."""

import ctypes
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.config import KernelConfig, KernelVariant, LaunchKnobs, Raster
from tuner.device.cuda.arguments import RASTERS
from tuner.shape import GemmShape, Problem
from tuner.tiling import tiling_of

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "kernels"
Walk = Callable[[int, int, Raster, int, int, int], list[tuple[int, int]]]

extents = st.integers(1, 40)
groups = st.integers(1, 50)
rasters = st.sampled_from(sorted(RASTERS))


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    built = tmp_path_factory.mktemp("tile_order") / "tile_order.so"
    command = ["g++", "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command += [f"-I{KERNELS}", str(HERE / "tile_order.cpp"), "-o", str(built)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(built))


@pytest.fixture(scope="session")
def walk(library: ctypes.CDLL) -> Walk:
    def call(
        m: int, n: int, raster: Raster, group: int, first: int = 0, stride: int = 1
    ) -> list[tuple[int, int]]:
        ms, ns = (ctypes.c_int * (m * n))(), (ctypes.c_int * (m * n))()
        count = library.walk(m, n, RASTERS[raster], group, first, stride, ms, ns)
        return list(zip(ms[:count], ns[:count], strict=True))

    return call


def every_tile(m: int, n: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(m) for j in range(n)]


@given(m=extents, n=extents, raster=rasters, group=groups)
def test_every_tile_is_handed_out_exactly_once(
    walk: Walk, m: int, n: int, raster: Raster, group: int
) -> None:
    assert sorted(walk(m, n, raster, group, 0, 1)) == every_tile(m, n)


@given(
    shape=st.builds(GemmShape, st.integers(1, 5000), st.integers(1, 5000), st.just(64)),
    block_m=st.sampled_from([64, 128, 192, 256]),
    block_n=st.sampled_from([16, 32, 72, 128, 256]),
    cluster=st.sampled_from([(1, 1), (2, 1), (1, 2), (4, 1), (1, 4), (2, 2), (4, 2), (2, 4)]),
    sms=st.integers(8, 200),
    raster=rasters,
    group=groups,
)
def test_the_persistent_clusters_of_any_device_cover_the_output_once(
    walk: Walk,
    shape: GemmShape,
    block_m: int,
    block_n: int,
    cluster: tuple[int, int],
    sms: int,
    raster: Raster,
    group: int,
) -> None:
    variant = KernelVariant(block_m, block_n, 4, cluster_m=cluster[0], cluster_n=cluster[1])
    knobs = LaunchKnobs(sms // variant.cluster_size * variant.cluster_size, raster, group)
    grid = tiling_of(KernelConfig(variant, knobs), Problem(shape, sms))
    clusters = grid.blocks // variant.cluster_size
    taken = [
        tile
        for first in range(clusters)
        for tile in walk(grid.clusters_m, grid.clusters_n, raster, group, first, clusters)
    ]
    assert sorted(taken) == every_tile(grid.clusters_m, grid.clusters_n)
    assert 1 <= grid.blocks <= sms
    assert grid.clusters_m * block_m * cluster[0] >= shape.m
    assert grid.clusters_n * block_n * cluster[1] >= shape.n
    assert (grid.clusters_m - 1) * block_m * cluster[0] < shape.m
    assert (grid.clusters_n - 1) * block_n * cluster[1] < shape.n


Unit = tuple[int, int, int, int]
"""Position, share, first step, steps."""


def units(library: ctypes.CDLL, positions: int, whole: int, split: int, k_steps: int) -> list[Unit]:
    filled = (ctypes.c_int * (4 * (whole + (positions - whole) * split)))()
    count = library.units(positions, whole, split, k_steps, filled)
    numbers = list(filled)
    return [(*numbers[4 * i : 4 * i + 4],) for i in range(count)]


splits = st.integers(2, 64).flatmap(lambda s: st.tuples(st.just(s), st.integers(s, s + 300)))
"""(split_k, k_steps): no share is empty."""


@given(positions=st.integers(1, 60), share=st.floats(0, 1), split=splits)
def test_the_shares_of_a_split_position_are_its_steps_once_and_in_order(
    library: ctypes.CDLL, positions: int, share: float, split: tuple[int, int]
) -> None:
    split_k, k_steps = split
    whole = int(positions * share)
    taken: dict[int, list[int]] = {}
    shares: dict[int, list[int]] = {}
    for position, index, first, steps in units(library, positions, whole, split_k, k_steps):
        assert steps >= 1
        shares.setdefault(position, []).append(index)
        taken.setdefault(position, []).extend(range(first, first + steps))
    assert taken == {p: list(range(k_steps)) for p in range(positions)}
    whole_shares = {p: [0] for p in range(whole)}
    assert shares == whole_shares | {p: list(range(split_k)) for p in range(whole, positions)}


@given(positions=st.integers(1, 40), share=st.floats(0, 1), split=splits, more=st.integers(0, 40))
def test_no_thread_blocks_wait_for_each_other_for_ever(
    library: ctypes.CDLL, positions: int, share: float, split: tuple[int, int], more: int
) -> None:
    split_k, k_steps = split
    clusters = split_k + more  # all resident, and at least one for each share
    order = units(library, positions, int(positions * share), split_k, k_steps)
    queues = [order[first::clusters] for first in range(clusters)]
    expected = {p: sum(unit[0] == p for unit in order) for p in range(positions)}
    arrived = dict.fromkeys(range(positions), 0)
    waiting: list[int | None] = [None] * clusters
    moved = True
    while moved:
        moved = False
        for cluster, queue in enumerate(queues):
            position = waiting[cluster]
            if position is not None and arrived[position] == expected[position]:
                waiting[cluster], moved = None, True
            elif position is None and queue:
                waiting[cluster] = queue.pop(0)[0]
                arrived[waiting[cluster] or 0] += 1
                moved = True
    assert arrived == expected
    assert waiting == [None] * clusters


@given(
    shape=st.builds(GemmShape, st.integers(1, 3000), st.integers(1, 3000), st.just(4096)),
    sms=st.integers(64, 200),
    split_k=st.integers(2, 32),
    tail=st.booleans(),
)
def test_host_and_kernel_count_the_same_work(
    library: ctypes.CDLL, shape: GemmShape, sms: int, split_k: int, tail: bool
) -> None:
    variant = KernelVariant(128, 128, 4, reduction="workspace")
    knobs = LaunchKnobs(sms, split_k=split_k, split_tail=tail)
    tiling = tiling_of(KernelConfig(variant, knobs), Problem(shape, sms))
    positions = tiling.clusters_m * tiling.clusters_n
    assert tiling.units == len(units(library, positions, tiling.whole, split_k, 64))
    assert tiling.whole == (positions // sms * sms if tail else 0)
    assert tiling.split_tiles == positions - tiling.whole
    assert tiling.partials_bytes == tiling.split_tiles * split_k * 128 * 128 * 4
    assert tiling.arrival_counters == 2 * tiling.split_tiles


@given(m=extents, n=extents)
def test_a_hilbert_walk_never_jumps(walk: Walk, m: int, n: int) -> None:
    steps = pairwise(walk(m, n, "hilbert", 1, 0, 1))
    assert all(max(abs(a[0] - b[0]), abs(a[1] - b[1])) == 1 for a, b in steps)


def test_along_m_walks_down_bands_of_the_group_s_width(walk: Walk) -> None:
    assert walk(2, 3, "along_m", 2, 0, 1) == [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2)]


def test_along_n_walks_across_bands_of_the_group_s_height(walk: Walk) -> None:
    assert walk(3, 2, "along_n", 2, 0, 1) == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]


@pytest.mark.parametrize("raster", sorted(RASTERS))
@pytest.mark.parametrize(("m", "n"), [(1, 2**27), (2**27, 1), (2**13, 2**14), (3, 40_000_001)])
def test_grids_of_a_hundred_million_tiles_overflow_nothing(
    library: ctypes.CDLL, raster: Raster, m: int, n: int
) -> None:
    seen = set()
    x, y = ctypes.c_int(), ctypes.c_int()
    positions = [0, 1, m * n // 3, m * n // 2, m * n - 2, m * n - 1]
    for position in positions:
        library.at(m, n, RASTERS[raster], 8, position, ctypes.byref(x), ctypes.byref(y))
        assert 0 <= x.value < m
        assert 0 <= y.value < n
        seen.add((x.value, y.value))
    assert len(seen) == len(positions)
