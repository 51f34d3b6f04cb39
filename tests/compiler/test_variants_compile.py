"""The kernel itself: many of its variants, compiled for the device without one."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import combinations
from pathlib import Path
from random import Random

import pytest

from tuner.compiler.pool import CompilePool
from tuner.compiler.sass import count_opcodes, disassemble
from tuner.config import SLAB_K, KernelVariant
from tuner.legality import variant_faults
from tuner.search.space import menu
from tuner.shape import GemmShape, Problem
from tuner.trial import Cubin

SMS = 132
PROBLEMS = [
    Problem(GemmShape(4096, 4096, 4096), SMS),
    Problem(GemmShape(16, 7168, 2048), SMS),
    Problem(GemmShape(1000, 1000, 72), SMS),
    Problem(GemmShape(8192, 512, 16384), SMS, d="col"),
    Problem(GemmShape(300, 4097, 512), SMS),
]
COUNT = 32
ROOMY = 192
"""Accumulators per thread that every way of storing leaves registers for; with more, a few variants
spill and are refused, which is for the compiler to say."""


def offered() -> list[KernelVariant]:
    """What the search asks for, in a seeded order."""
    everything = {config.variant for problem in PROBLEMS for config in menu(problem)}
    found = sorted(variant for variant in everything if variant.accumulators <= ROOMY)
    Random(20).shuffle(found)
    return found


def traits(v: KernelVariant) -> frozenset[object]:
    """The width of a consumer, the cluster, and every two of what else leads to other code."""
    told = {
        "consumers": v.consumers,
        "schedule": v.schedule,
        "split": v.split,
        "store": v.store,
        "transposed_store": v.transposed_store,
        "multicast along m": v.cluster_m > 1,
        "multicast along n": v.cluster_n > 1,
        "slabs_per_stage": v.slabs_per_stage,
        "reduction": v.reduction,
    }
    cluster = (v.cluster_m, v.cluster_n)
    return frozenset([v.consumer_n, cluster, *combinations(told.items(), 2)])


@cache
def varied_variants() -> list[KernelVariant]:
    """COUNT variants: few that together have every trait there is, and others."""
    traits_of = {variant: traits(variant) for variant in offered()}
    missing = set().union(*traits_of.values())
    chosen: dict[KernelVariant, None] = {}
    while missing:
        best = max(traits_of, key=lambda variant: len(traits_of[variant] & missing))
        missing -= traits_of[best]
        chosen[best] = None
    return list(chosen | dict.fromkeys(traits_of))[:COUNT]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[KernelVariant, object]:
    with CompilePool(tmp_path_factory.mktemp("cubins"), timeout_s=60) as pool:
        return dict(pool.compile(varied_variants()))


@pytest.fixture(scope="module")
def cubins(outcomes: dict[KernelVariant, object]) -> list[Cubin]:
    return [outcome for outcome in outcomes.values() if isinstance(outcome, Cubin)]


def test_the_sample_is_legal_and_covers_every_kind_of_variant() -> None:
    variants = varied_variants()
    assert len(variants) == COUNT
    assert [fault for v in variants for fault in variant_faults(v)] == []
    assert {v.consumers for v in variants} == {1, 2, 3}
    assert {v.schedule for v in variants} == {"cooperative", "pingpong"}
    assert {v.split for v in variants} == {"m", "n"}
    assert {v.store for v in variants} == {"tma", "direct"}
    assert {v.transposed_store for v in variants} == {False, True}
    assert {v.cluster_size for v in variants} == {1, 2, 3, 4, 7, 8}
    assert {v.slabs_per_stage for v in variants} == {1, 2, 4}
    assert {v.reduction for v in variants} == {"none", "workspace"}
    of_sample: set[object] = set().union(*map(traits, variants))
    assert set().union(*map(traits, offered())) == of_sample


def test_a_variant_with_room_for_its_accumulators_neither_spills_nor_draws_a_warning(
    outcomes: dict[KernelVariant, object],
) -> None:
    failures = [outcome for outcome in outcomes.values() if not isinstance(outcome, Cubin)]
    assert failures == []
    assert all(o.spill_bytes == 0 for o in outcomes.values() if isinstance(o, Cubin))


def test_the_registers_at_launch_let_one_block_be_resident(cubins: list[Cubin]) -> None:
    over = [c for c in cubins if c.registers * c.variant.threads > 65_536]
    assert over == []


def test_every_cubin_multiplies_with_wgmma_and_moves_its_tiles_with_tma(
    cubins: list[Cubin],
) -> None:
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        texts = list(threads.map(lambda cubin: disassemble(Path(cubin.path)), cubins))
    assert len(texts) == COUNT
    for cubin, text in zip(cubins, texts, strict=True):
        counts = count_opcodes(text)
        v = cubin.variant
        steps_of_a_slab = SLAB_K // 16 * v.consumer_m // 64
        assert counts["HGMMA"] >= steps_of_a_slab, v
        assert text.count(f"HGMMA.64x{v.consumer_n}x16") == counts["HGMMA"], v
        assert counts["UTMALDG"] >= 2, v
        assert (".MULTICAST" in text) == (v.cluster_size > 1), v
        assert (counts["UTMASTG"] > 0) == (v.store == "tma"), v
        # Partial tiles are exchanged by ordinary stores.
        assert (counts["STG"] > 0) == (v.store == "direct" or v.reduction == "workspace"), v
        assert (counts["USETMAXREG"] > 0) == (v.producer_registers > 0), v
        assert counts["STL"] == counts["LDL"] == 0, v
