"""What a soak launches: legal launches on every path, that really take it, in every batch."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.kinds import KINDS
from benchmarks.soak import PATHS, Path, described, drawn_config, failed, groups, pool
from benchmarks.soak_on_device import TURNS, Link, Soaked, counted, orders
from tuner.errors import DeviceCrashed, DeviceTimeout
from tuner.legality import faults, uneven, variant_faults
from tuner.lookup.launches import resident_sms
from tuner.shape import GemmShape, Problem
from tuner.tiling import tiling_of

SMS = 132
NAMED = {path.name: path for path in PATHS}


def links(path: Path) -> list[Link]:
    return [link for group in groups(path, SMS) for link in group]


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_legal(name: str) -> None:
    assert list(variant_faults(KINDS[name])) == []


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_every_launch_of_a_path_is_legal_and_many_shapes_are_launched(path: Path) -> None:
    launched = links(path)
    assert len({link.problem.shape for link in launched}) >= 30
    for link in launched:
        assert len(link.configs) == TURNS
        for config in link.configs:
            assert faults(config, link.problem) == []


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_every_launch_takes_its_path(path: Path) -> None:
    own = [link for link in links(path) if not link.reads_previous]
    for config, tiling in ((c, tiling_of(c, link.problem)) for link in own for c in link.configs):
        assert config.variant in [KINDS[kind] for kind in path.kinds]
        assert config.knobs.dependent_launch == path.dependent
        if path.split == "none":
            assert tiling.split_k == 1
            continue
        assert tiling.split_k > 1
        assert tiling.split_tiles > 0
        assert (tiling.whole > 0) == (path.split == "tail")
        # Thread blocks that wait for each other are all there.
        assert config.knobs.num_sms <= resident_sms(SMS, config.variant.cluster_size)


def test_the_paths_of_the_kernel_are_all_there() -> None:
    variants = {path.name: [KINDS[kind] for kind in path.kinds] for path in PATHS}
    assert {v.schedule for v in variants["ping-pong"]} == {"pingpong"}
    assert {v.consumers for v in variants["one consumer"]} == {1}
    assert {v.consumers for v in variants["three consumers"]} == {3}
    for m, n in ((2, 1), (2, 2), (4, 2)):
        found = {(v.cluster_m, v.cluster_n) for v in variants[f"cluster {m}x{n}"]}
        assert found == {(m, n)}
    for v in variants["uneven slices"]:
        assert uneven(v.block_n, v.cluster_m) or uneven(v.block_m, v.cluster_n)
    assert {v.store for v in variants["direct store"]} == {"direct"}
    assert all(v.transposed_store for v in variants["exchanged"])
    splits = {path.split for path in PATHS}
    assert splits == {"none", "all", "tail"}


def test_launched_dependently_every_second_product_reads_what_the_one_before_wrote() -> None:
    for name in ("dependent launch", "dependent launch, split K"):
        pairs = [group for group in groups(NAMED[name], SMS) if len(group) == 2]
        assert len(pairs) >= 30
        for first, reader in pairs:
            assert (first.reads_previous, reader.reads_previous) == (False, True)
            before, after = first.problem.shape, reader.problem.shape
            assert (after.m, after.k) == (before.m, before.n)
            # Its bits are the trusted ones, whatever it reads.
            assert all(config.knobs.split_k == 1 for config in reader.configs)


def test_direct_stores_meet_outputs_that_tma_cannot_address() -> None:
    odd = [shape for shape in pool(NAMED["direct store"]) if shape.n % 8]
    assert len(odd) >= 20
    assert not [shape for shape in pool(NAMED["cooperative"]) if shape.n % 8]


def test_shapes_have_tails_along_every_side() -> None:
    shapes = pool(NAMED["cooperative"])
    for tails in (
        [s for s in shapes if s.m % 64],
        [s for s in shapes if s.n % 64],
        [s for s in shapes if s.k % 64],
    ):
        assert len(tails) >= 20


def test_a_split_that_a_shape_cannot_have_is_not_launched() -> None:
    from random import Random

    one_tile = Problem(GemmShape(64, 64, 64), SMS)
    assert drawn_config(one_tile, KINDS["split K"], "all", Random(1)) is None
    assert drawn_config(one_tile, KINDS["split K"], "tail", Random(1)) is None


@given(st.lists(st.integers(1, 3), min_size=1, max_size=8), st.integers(1, 20))
def test_every_batch_launches_everything_once_with_groups_kept_together(
    sizes: list[int], batches: int
) -> None:
    found = orders(sizes, batches, seed=1)
    assert len(found) == batches
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    for order in found:
        assert sorted(order) == list(range(sum(sizes)))
        for start, size in zip(starts, sizes, strict=True):
            place = order.index(start)
            assert order[place : place + size] == list(range(start, start + size))


def test_batches_differ_in_their_order_and_a_seed_repeats_them() -> None:
    found = orders([1] * 40, 50, seed=1)
    assert len(set(map(tuple, found))) == 50
    assert found == orders([1] * 40, 50, seed=1)


@pytest.mark.parametrize(
    ("wrong", "launches", "elements"),
    [([[0, 0], [0, 0]], 0, 0), ([[0, 7], [0, 0], [1, 0]], 2, 8)],
)
def test_wrong_launches_and_elements_are_counted(
    wrong: Sequence[Sequence[int]], launches: int, elements: int
) -> None:
    found = counted(wrong, seconds=1.0)
    assert found.launches == sum(map(len, wrong))
    assert (found.wrong_launches, found.wrong_elements) == (launches, elements)


def test_a_wrong_launch_is_named_with_its_shape_and_config() -> None:
    work = groups(NAMED["ping-pong"], SMS)
    row = described(NAMED["ping-pong"], work, Soaked(400, 1, 9, 0.5, ((3, 2, 6, 9),)))
    (example,) = row["examples"]
    link = work[3][0]
    assert row["state"] == "wrong"
    assert (example["m"], example["n"]) == (link.problem.shape.m, link.problem.shape.n)
    assert example["config"] == link.configs[2].to_dict()


def test_a_path_without_an_answer_hangs_and_one_that_breaks_the_device_failed() -> None:
    path = NAMED["ping-pong"]
    assert failed(path, 10, DeviceTimeout("no answer"))["state"] == "hangs"
    assert failed(path, 10, DeviceCrashed("an illegal address"))["state"] == "failed"
    assert described(path, groups(path, SMS), Soaked(40, 0, 0, 0.1, ()))["state"] == "right"
