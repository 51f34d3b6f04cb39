"""A tuned layer answers every M of its intervals, and no other."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.lookup.measured import H200, NARROW, PINGPONG, SQUARE, known, launched, measured, problem
from tuner.legality import faults
from tuner.lookup import Answer, Book, Interval, Layer, Regret, Terms, find
from tuner.lookup.layer import InvalidLayer
from tuner.lookup.snapshot import build_snapshot, compare, read_snapshot
from tuner.shape import GemmShape
from tuner.trial import PROTOCOL_HOT, Toolchain

N, K = 3584, 4096
MADE_WITH = Toolchain("5eed", "13.0.88")


def interval(low: int, high: int, variant: Any, *ms: int, **changes: Any) -> Interval:
    config = launched(variant, problem(ms[0], N, K), changes.pop("dependent", False))
    regret = Regret(0.004, 0.01, len(ms))
    return replace(Interval(low, high, config, "kernel", ms, regret), **changes)


SMALL = interval(1, 96, NARROW, 1, 16, 64)
LARGE = interval(128, 4096, PINGPONG, 128, 1024, dependent=True)


def layer(*intervals: Interval, **changes: Any) -> Layer:
    made = Layer(N, K, 132, Terms(), intervals, MADE_WITH, datetime(2026, 3, 1, tzinfo=UTC))
    return replace(made, **changes)


def look_up(m: int, *layers: Layer, **rest: Any) -> Answer:
    book = Book(H200, "NVIDIA H200", known(), layers)
    found = find(problem(m, N, K), {H200: book}, device_key=H200, **rest)
    assert isinstance(found, Answer)
    return found


@pytest.mark.parametrize(
    ("m", "variant", "nearest"),
    [
        (1, NARROW, 1),
        (17, NARROW, 16),
        (96, NARROW, 64),
        (128, PINGPONG, 128),
        (4096, PINGPONG, 1024),
    ],
)
def test_every_m_of_an_interval_has_its_config(m: int, variant: Any, nearest: int) -> None:
    found = look_up(m, layer(SMALL, LARGE))
    assert found.match.tier == "layer"
    assert found.match.from_shape == GemmShape(nearest, N, K)
    assert found.config.variant == variant
    assert faults(found.config, problem(m, N, K)) == []
    assert found.confidence.expected_regret == (SMALL if m < 128 else LARGE).regret
    assert found.confidence.samples == 0


@pytest.mark.parametrize("m", [97, 127, 4097, 100_000])
def test_a_gap_and_what_lies_beyond_are_left_to_other_tiers(m: int) -> None:
    assert look_up(m, layer(SMALL, LARGE)).match.tier in ("nearest", "model")


def test_a_measured_shape_comes_before_its_layer_and_a_layer_before_near_shapes() -> None:
    own = measured(problem(64, N, K), launched(SQUARE, problem(64, N, K)))
    books = {H200: Book(H200, "x", [own], [layer(SMALL)])}
    tiers = []
    for m in (64, 65):
        found = find(problem(m, N, K), books, device_key=H200)
        assert isinstance(found, Answer)
        tiers.append(found.match.tier)
    assert tiers == ["exact", "layer"]


def test_a_layer_answers_only_on_terms_that_its_config_meets() -> None:
    made = layer(SMALL, LARGE)
    assert look_up(200, made).match.tier == "layer"
    assert look_up(200, made, plain=True).match.tier != "layer"
    assert look_up(20, made, plain=True).match.tier == "layer"
    assert look_up(20, made, protocol=PROTOCOL_HOT).match.tier != "layer"
    plainly = layer(interval(1, 4096, SQUARE, 256), terms=Terms(plain=True))
    assert look_up(20, made, plainly, plain=True).config.variant == SQUARE
    assert look_up(20, made, plainly).config.variant == NARROW
    losing = layer(replace(SMALL, use="cublas"))
    assert look_up(20, losing).use == "cublas"
    assert look_up(20, losing, numerics="invariant").use == "kernel"


def test_layers_travel_in_a_snapshot_and_their_changes_are_told() -> None:
    made = build_snapshot(H200, "NVIDIA H200", known(), [layer(SMALL, LARGE)])
    read = read_snapshot(made.body, made.id)
    assert read.layers == (layer(SMALL, LARGE),)
    book = Book.from_snapshot(read)
    found = find(problem(20, N, K), {H200: book}, device_key=H200)
    assert isinstance(found, Answer)
    assert found.match.tier == "layer"
    wider = replace(LARGE, config=launched(SQUARE, problem(128, N, K)))
    after = build_snapshot(H200, "NVIDIA H200", known(), [layer(SMALL, wider)])
    (change,) = compare(made, after)
    assert (change.kind, change.problem.split()[0]) == ("changed", f"128..4096x{N}x{K}")


@pytest.mark.parametrize(
    "intervals",
    [
        (LARGE, SMALL),
        (replace(SMALL, high=128), LARGE),
        (replace(SMALL, low=0),),
        (replace(SMALL, measured=()),),
        (replace(SMALL, measured=(97,)),),
    ],
    ids=["descending", "overlapping", "from zero", "unmeasured", "measured outside"],
)
def test_intervals_that_contradict_each_other_are_refused(intervals: tuple[Interval, ...]) -> None:
    with pytest.raises(InvalidLayer, match=r"interval.*\.$"):
        layer(*intervals)


@pytest.mark.parametrize(
    "change", [{"n": 0}, {"d": "diagonal"}, {"intervals": [3]}, {"measured_at": "noon"}], ids=str
)
def test_json_that_is_no_layer_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidLayer):
        Layer.from_json({**layer(SMALL).to_json(), **change})
