"""Which Ms of a layer are tuned: few, with both ends, and where answers would lose most without."""

from itertools import pairwise
from math import log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lookup.measured import NARROW, SPLIT, SQUARE, launched
from tuner.config import KernelConfig
from tuner.legality import faults
from tuner.lookup.adapt import adapted
from tuner.lookup.cost_model import H200, estimate_us
from tuner.lookup.layer import InvalidLayer, at_m
from tuner.lookup.layer_plan import FIRST_MS, LINK, MOST_MS, TILE_STEP, WIDE, first_ms, next_m
from tuner.lookup.sound import sound_configs
from tuner.shape import GemmShape, Problem

QKV = Problem(GemmShape(1, 6144, 4096), 132)
DOWN = Problem(GemmShape(1, 4096, 14336), 132)
extents = st.sampled_from([64, 512, 2112, 6144, 28672])
layers = st.builds(
    lambda n, k, sms, d: Problem(GemmShape(1, n, k), sms, d=d),
    extents,
    extents,
    st.sampled_from([132, 66]),
    st.sampled_from(["row", "col"]),
)


@settings(max_examples=30, deadline=None)
@given(layers, st.integers(1, 10_000), st.integers(0, 10_000), st.integers(8, MOST_MS))
def test_a_plan_has_both_ends_few_ms_and_no_gap_that_is_not_linked(
    layer: Problem, low: int, width: int, most: int
) -> None:
    ms = first_ms(layer, low, low + width, most)
    assert (ms[0], ms[-1]) == (low, low + width)
    assert list(ms) == sorted(set(ms))
    assert len(ms) <= most
    assert all(log2(b / a) <= LINK for a, b in pairwise(ms))


@settings(max_examples=30, deadline=None)
@given(layers, st.integers(FIRST_MS + 1, 4096))
def test_a_plan_names_ends_powers_of_two_and_ends_of_tiles(layer: Problem, high: int) -> None:
    between = first_ms(layer, 1, high)[1:-1]
    assert all(m.bit_count() == 1 or m % TILE_STEP == 0 for m in between)


@given(st.integers(1, 2**31 - 1), st.integers(0, FIRST_MS - 1))
def test_a_range_of_few_ms_is_tuned_whole(low: int, width: int) -> None:
    high = min(low + width, 2**31 - 1)
    assert first_ms(QKV, low, high) == tuple(range(low, high + 1))


@pytest.mark.parametrize(("low", "high"), [(0, 8), (9, 8), (1, 2**22)])
def test_a_range_that_cannot_be_covered_is_refused_in_a_sentence(low: int, high: int) -> None:
    with pytest.raises(InvalidLayer, match=r"^M from .* (first, from 1|narrower range)\.$"):
        first_ms(QKV, low, high)


@pytest.mark.parametrize("layer", [QKV, DOWN], ids=["qkv", "down"])
def test_between_a_dozen_planned_ms_the_model_expects_hardly_any_loss(layer: Problem) -> None:
    ms = first_ms(layer, 1, 512, MOST_MS)
    assert len(ms) == MOST_MS
    best = {m: min(modelled(layer, m)) for m in ms}
    lost = []
    for a, b in pairwise(ms):
        for m in range(a, b):
            here = at_m(layer, m)
            lent = (adapted(best[of][1], at_m(layer, of), here) for of in (a, b))
            us = min(estimate_us(here, c) for c in lent if c and not faults(c, here))
            lost.append(us / min(modelled(layer, m))[0] - 1)
    assert max(lost) < 0.1
    assert sum(lost) / len(lost) < 0.01


def modelled(layer: Problem, m: int) -> list[tuple[float, KernelConfig]]:
    here = at_m(layer, m)
    legal = [c for c in sound_configs(here, H200) if not faults(c, here)]
    return [(estimate_us(here, c), c) for c in legal]


def test_the_next_m_is_the_last_that_a_tile_covers_which_neither_neighbour_suits() -> None:
    ends = {m: min(modelled(QKV, m))[1] for m in (256, 512)}
    m = next_m(QKV, ends)
    assert m is not None
    assert 256 < m < 512
    here = at_m(QKV, m)
    lent = [adapted(config, at_m(QKV, of), here) for of, config in ends.items()]
    lost = min(estimate_us(here, c) for c in lent if c) / min(modelled(QKV, m))[0] - 1
    assert lost > 0.1
    assert m % 64 == 0


def test_a_config_that_is_as_good_everywhere_needs_no_further_m() -> None:
    everywhere = launched(NARROW, at_m(QKV, 1))
    assert next_m(QKV, {1: everywhere, 2: everywhere}) is None
    assert next_m(QKV, {16: everywhere}) is None
    assert next_m(QKV, {}) is None


def test_gaps_without_an_expected_loss_are_halved_while_they_are_wide() -> None:
    everywhere = launched(NARROW, at_m(QKV, 1))
    small = Problem(GemmShape(1, 64, 64), 132)
    assert next_m(small, {16: everywhere, 64: everywhere}) == 32
    assert next_m(small, {1: everywhere, 16: everywhere}) is None
    assert log2(80 / 64) < WIDE
    assert next_m(small, {64: everywhere, 80: everywhere}) is None


@settings(max_examples=30, deadline=None)
@given(layers, st.lists(st.integers(1, 8192), max_size=MOST_MS, unique=True))
def test_the_next_m_lies_between_two_and_is_new(layer: Problem, ms: list[int]) -> None:
    variants = [NARROW, SQUARE, SPLIT]
    won = {m: launched(variants[m % 3], at_m(layer, m)) for m in ms}
    m = next_m(layer, won)
    assert m is None or (min(won) < m < max(won) and m not in won)
    assert next_m(layer, dict(reversed(won.items()))) == m
