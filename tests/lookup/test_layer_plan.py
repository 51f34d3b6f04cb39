"""Which Ms of a layer are tuned: few, with both ends, and close enough to answer between."""

from itertools import pairwise
from math import log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.lookup.layer import InvalidLayer
from tuner.lookup.layer_plan import CLOSED, FIRST_MS, LINK, MOST_MS, first_ms, next_m, tile_changes
from tuner.shape import GemmShape, Problem

QKV = Problem(GemmShape(1, 6144, 4096), 132)
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
    assert len(ms) == most or width < most or not set(tile_changes(layer, low, low + width)) - {*ms}


@settings(max_examples=30, deadline=None)
@given(layers, st.integers(1, 4096))
def test_a_plan_names_ends_powers_of_two_and_last_ms_of_a_tile(layer: Problem, high: int) -> None:
    between = first_ms(layer, 1, high)[1:-1]
    changes = tile_changes(layer, 1, high)
    if high > FIRST_MS:
        assert all(m.bit_count() == 1 or m in changes for m in between)


@given(st.integers(1, 2**31 - 1), st.integers(0, FIRST_MS - 1))
def test_a_range_of_few_ms_is_tuned_whole(low: int, width: int) -> None:
    high = min(low + width, 2**31 - 1)
    assert first_ms(QKV, low, high) == tuple(range(low, high + 1))


@pytest.mark.parametrize(("low", "high"), [(0, 8), (9, 8), (1, 2**15)])
def test_a_range_that_cannot_be_covered_is_refused_in_a_sentence(low: int, high: int) -> None:
    with pytest.raises(InvalidLayer, match=r"^M from .* (first, from 1|narrower range)\.$"):
        first_ms(QKV, low, high)


def test_the_model_sees_where_another_tile_is_best() -> None:
    changes = tile_changes(QKV, 1, 512)
    assert changes == tuple(sorted(changes))
    assert {16, 64, 256} <= set(changes)


@given(st.lists(st.integers(1, 2**20), min_size=2, max_size=MOST_MS, unique=True), st.data())
def test_the_next_m_halves_the_widest_gap_in_which_the_best_changes(
    ms: list[int], data: st.DataObject
) -> None:
    ms.sort()
    changed = set(data.draw(st.lists(st.sampled_from(ms[:-1]))))
    gaps = [(a, b) for a, b in pairwise(ms) if a in changed and b - a > 1]
    gaps = [(a, b) for a, b in gaps if log2(b / a) > CLOSED]
    m = next_m(ms, changed)
    if m is None:
        assert not gaps
        return
    (a, b) = next((a, b) for a, b in pairwise(ms) if a < m < b)
    assert (a, b) in gaps
    assert b / a == max(b / a for a, b in gaps)
    assert b - a < 5 or abs(log2(m * m / (a * b))) < 0.75 * log2(b / a)


def test_the_next_m_is_a_round_number() -> None:
    assert next_m((64, 256, 1024), {64}) == 128
    assert next_m((256, 512), {256}) == 384
    assert next_m((5, 7), {5}) == 6
    assert next_m((500, 502), {500}) is None
