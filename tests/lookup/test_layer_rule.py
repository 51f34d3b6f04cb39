"""From cross races to intervals: few of them, each with what it loses where it was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from math import log2
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lookup.crossed import KEY, LARGE, SMALL, WIDE, K, N, crossed
from tests.lookup.measured import H200, NARROW, SPLIT, launched, problem
from tests.store.examples import CUBLAS, NOON, TOOLCHAIN
from tuner.config import KernelConfig
from tuner.lookup import Answer, Book, Layer, Race, Terms, find
from tuner.lookup.adapt import adapted
from tuner.lookup.cost_model import estimate_us
from tuner.lookup.cross_races import Span, cross_race_id, span_of
from tuner.lookup.crossing import Meeting, last_of_first
from tuner.lookup.layer_plan import LINK
from tuner.lookup.layer_rule import TOLERANCE, layers_of
from tuner.trial import PROTOCOL_COOL, PROTOCOL_HOT, Contender


def general(races: Mapping[int, Sequence[Race]]) -> Layer:
    """The layer of look-ups that ask for nothing particular."""
    return next(layer for layer in layers_of(KEY, races) if layer.terms == Terms())


@given(st.integers(1, 2**31 - 1), st.integers(0, 10_000), st.text(max_size=8))
def test_the_id_of_a_cross_race_tells_its_span(low: int, width: int, unique: str) -> None:
    assert span_of(cross_race_id(Span(low, low + width), unique)) == Span(low, low + width)


@pytest.mark.parametrize("id", ["", "5eed", "cross-", "cross-0..4-x", "cross-9..4-x", "cross-4-x"])
def test_other_ids_have_no_span(id: str) -> None:
    assert span_of(id) is None


def test_races_without_a_cross_race_make_no_layer() -> None:
    alone = [Race("r", PROTOCOL_HOT, crossed(16, {SMALL: 50})[0].measurements)]
    assert layers_of(KEY, {16: alone, 32: alone}) == []


def test_where_another_config_is_best_another_interval_begins() -> None:
    layer = general(
        {
            m: crossed(m, {SMALL: 50 if m < 100 else 80, LARGE: 70 if m < 100 else 60})
            for m in (1, 4, 16, 64, 256, 1024, 2048)
        }
    )
    first, second = layer.intervals
    assert (first.low, first.config, first.measured) == (1, SMALL, (1, 4, 16, 64))
    assert (second.high, second.config, second.measured) == (2048, LARGE, (256, 1024, 2048))
    assert 64 <= first.high == second.low - 1 < 256
    assert (first.regret.p95, first.regret.cases, first.use) == (0.0, 4, "kernel")
    assert (layer.toolchain, layer.source) == (TOOLCHAIN, "measured")


def test_a_config_that_loses_little_goes_on_and_says_what_it_loses() -> None:
    little = 1 + TOLERANCE * 0.9
    races = {
        16: crossed(16, {SMALL: 50, LARGE: 60}),
        32: crossed(32, {SMALL: 50 * little, LARGE: 50}),
        64: crossed(64, {SMALL: 50, LARGE: 60}),
    }
    (interval,) = general(races).intervals
    assert (interval.low, interval.high, interval.config) == (16, 64, SMALL)
    assert interval.regret.p95 == pytest.approx(little - 1)
    assert interval.regret.mean == pytest.approx((little - 1) / 3)
    races[32] = crossed(32, {SMALL: 52, LARGE: 50})
    assert [i.config for i in general(races).intervals] == [SMALL, LARGE, SMALL]


def test_where_cublas_is_fastest_the_interval_says_so() -> None:
    races = {
        16: crossed(16, {SMALL: 50}),
        32: crossed(32, {SMALL: 130}),
        64: crossed(64, {SMALL: 120}),
    }
    first, second = general(races).intervals
    assert (first.use, second.use, second.measured) == ("kernel", "cublas", (32, 64))
    assert second.regret.p95 == 0.0
    assert (first.high, second.low) == (22, 23)


def test_a_config_that_loses_to_cublas_under_one_protocol_loses_as_much() -> None:
    hot, cool = crossed(16, {SMALL: 50, LARGE: 52})
    lost = [replace(row, samples_us=(105.0,) * 9) for row in cool.measurements[:1]]
    cool = replace(cool, measurements=(*lost, *cool.measurements[1:]))
    (interval,) = general({16: [hot, cool]}).intervals
    assert interval.config == LARGE


def test_ms_that_are_too_far_apart_or_whose_configs_never_met_leave_a_gap() -> None:
    far = general({16: crossed(16, {SMALL: 50}), 129: crossed(129, {SMALL: 50})})
    assert [(i.low, i.high) for i in far.intervals] == [(16, 16), (129, 129)]
    strangers = general({16: crossed(16, {SMALL: 50}), 32: crossed(32, {LARGE: 50})})
    assert [(i.low, i.high) for i in strangers.intervals] == [(16, 16), (32, 32)]


def test_the_span_that_was_tuned_last_decides_and_others_stay_beside_it() -> None:
    later: Any = {"measured_at": NOON + timedelta(hours=1)}
    races = {m: crossed(m, {SMALL: 50}) for m in (1, 4, 16, 64)}
    races[16] = [*races[16], *crossed(16, {LARGE: 49.8}, Span(16, 32), **later)]
    races[32] = crossed(32, {LARGE: 40}, Span(16, 32), **later)
    layer = general(races)
    assert [(i.low, i.high, i.config) for i in layer.intervals] == [
        (1, 15, SMALL),
        (16, 32, LARGE),
        (33, 64, SMALL),
    ]
    assert layer.measured_at == NOON + timedelta(hours=1)


def test_a_real_device_comes_before_replay_and_the_current_kernel_before_a_newer() -> None:
    replayed = {m: crossed(m, {LARGE: 40}, source="replay") for m in (16, 32)}
    real = {m: crossed(m, {SMALL: 50}) for m in (16, 32)}
    both = {m: [*replayed[m], *real[m]] for m in (16, 32)}
    assert general(both).intervals[0].config == SMALL
    assert general(replayed).source == "replay"
    newer = replace(TOOLCHAIN, kernel_hash="newer")
    later: Any = {"toolchain": newer, "measured_at": NOON + timedelta(hours=1)}
    both = {m: [*real[m], *crossed(m, {LARGE: 40}, **later)] for m in (16, 32)}
    assert general(both).intervals[0].config == LARGE
    (current, *_) = layers_of(KEY, both, TOOLCHAIN)
    assert current.intervals[0].config == SMALL


def test_terms_that_the_general_config_does_not_meet_have_their_own_layer() -> None:
    dependent = launched(NARROW, problem(16, N, K), dependent=True)
    times = {dependent: 40.0, SMALL: 50.0}
    races = {m: crossed(m, times) for m in (16, 32, 64)}
    found = {layer.terms: layer.intervals[0].config for layer in layers_of(KEY, races)}
    assert found[Terms()] == dependent
    assert found[Terms(plain=True)] == found[Terms(PROTOCOL_HOT, plain=True)] == SMALL
    assert Terms(invariant=True) not in found
    plain = layers_of(KEY, {m: crossed(m, {SMALL: 50}) for m in (16, 32)})
    assert [layer.terms for layer in plain] == [Terms(), Terms(PROTOCOL_HOT), Terms(PROTOCOL_COOL)]


@st.composite
def random_races(draw: st.DrawFn) -> dict[int, list[Race]]:
    ms = draw(st.lists(st.integers(1, 2048), min_size=1, max_size=12, unique=True))
    random = Random(draw(st.integers(0, 2**32)))
    configs = [SMALL, LARGE, WIDE]
    return {m: crossed(m, {c: random.uniform(60, 120) for c in configs}) for m in ms}


@settings(max_examples=40, deadline=None)
@given(random_races())
def test_intervals_hold_every_measured_m_and_lose_little_there(
    races: dict[int, list[Race]],
) -> None:
    layer = general(races)
    assert [m for i in layer.intervals for m in i.measured] == sorted(races)
    for interval in layer.intervals:
        assert interval.regret.cases == len(interval.measured)
        assert 0 <= interval.regret.mean <= interval.regret.p95 <= TOLERANCE
    for before, after in pairwise(layer.intervals):
        linked = log2(after.measured[0] / before.measured[-1]) <= LINK
        assert (after.low == before.high + 1) if linked else (before.high in before.measured)
    for m, of_m in races.items():
        times = {row.contender: row.median_us or 0 for row in of_m[0].measurements}
        chosen = layer.interval(m)
        assert chosen is not None
        us = times[Contender("kernel", chosen.config) if chosen.use == "kernel" else CUBLAS]
        assert us <= min(times.values()) * (1 + TOLERANCE) * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(random_races())
def test_the_order_of_rows_does_not_matter(races: dict[int, list[Race]]) -> None:
    turned = {m: list(reversed(races[m])) for m in reversed(races)}
    assert layers_of(KEY, turned) == layers_of(KEY, races)


@pytest.mark.parametrize(("second", "above"), [(LARGE, 256), (WIDE, 200), (SMALL, 100)])
def test_a_clear_lead_at_both_ends_moves_the_cut_to_either(
    second: KernelConfig, above: int
) -> None:
    ends = Meeting(64, LARGE, second), Meeting(above, LARGE, second)
    assert last_of_first(KEY, *ends, 9.0, 9.0) == above - 1
    assert last_of_first(KEY, *ends, -9.0, -9.0) == 64


def test_the_model_cuts_where_the_first_config_needs_another_wave_of_tiles() -> None:
    deep = launched(SPLIT, problem(128, N, K))
    at = {m: [estimate_us(problem(m, N, K), c) for c in (deep, WIDE)] for m in (128, 129)}
    assert at[129][0] > 1.3 * at[128][0]
    cut = last_of_first(KEY, Meeting(64, deep, WIDE), Meeting(256, deep, WIDE), 0.2, -0.2)
    assert cut == 128


def test_configs_meet_as_a_look_up_launches_them_at_the_other_m() -> None:
    few = replace(LARGE, knobs=replace(LARGE.knobs, num_sms=28))
    there = adapted(few, problem(64, N, K), problem(256, N, K))
    assert there is not None
    assert there.knobs.num_sms == 56
    races = {
        64: crossed(64, {few: 40, WIDE: 50}),
        256: crossed(256, {there: 60, WIDE: 50}),
    }
    first, second = general(races).intervals
    assert (first.config, second.config) == (few, WIDE)
    assert 64 <= first.high == second.low - 1 < 256
    races[256] = crossed(256, {LARGE: 60, WIDE: 50})
    assert [(i.low, i.high) for i in general(races).intervals] == [(64, 64), (256, 256)]


def test_without_anything_to_tell_two_configs_apart_the_cut_is_halfway_in_doublings() -> None:
    ends = Meeting(64, LARGE, LARGE), Meeting(144, LARGE, LARGE)
    assert last_of_first(KEY, *ends, 0.0, 0.0) == 96


def test_a_layer_of_races_answers_ms_between() -> None:
    races = {m: crossed(m, {SMALL: 50, LARGE: 60}) for m in (16, 32, 64)}
    book = Book(H200, "NVIDIA H200", layers=layers_of(KEY, races))
    found = find(problem(40, N, K), {H200: book}, device_key=H200)
    assert isinstance(found, Answer)
    assert (found.match.tier, found.config.variant, found.use) == ("layer", NARROW, "kernel")
    assert found.confidence.expected_regret is not None
    assert found.confidence.expected_regret.cases == 3
