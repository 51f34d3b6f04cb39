"""The menu that suffices, on recordings whose answer is known."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from benchmarks import menu_cover
from benchmarks.menu_cover import MARGINS, suffices, times
from tests.device.fake import H200, TOOLCHAIN
from tests.device.recordings import write_recording
from tuner.config import KernelConfig, KernelVariant, LaunchKnobs
from tuner.device.replay import Recording
from tuner.shape import GemmShape, Problem
from tuner.trial import PROTOCOL_COOL, PROTOCOL_HOT, Contender, Measurement, TrialState

A, B, C = (KernelVariant(128, n, 4) for n in (64, 128, 192))
FIRST, SECOND, THIRD = (Problem(GemmShape(n, n, n), 132) for n in (512, 1024, 2048))
PLAIN, OTHER = LaunchKnobs(132), LaunchKnobs(128)
Microseconds = Mapping[KernelConfig, float]


def race(problem: Problem, protocol: str, us: Microseconds) -> list[Measurement]:
    return [
        Measurement(
            problem,
            H200.key,
            H200.name,
            protocol,
            Contender("kernel", config),
            TOOLCHAIN,
            TrialState.OK,
            (time * 0.9, time, time * 1.1),
            race=f"{problem.shape} {protocol}",
        )
        for config, time in us.items()
    ]


def recorded(
    hot: Mapping[Problem, Microseconds], cool: Mapping[Problem, Microseconds] | None = None
) -> list[Measurement]:
    rows = [row for problem, us in hot.items() for row in race(problem, PROTOCOL_HOT, us)]
    for problem, us in (hot if cool is None else cool).items():
        rows += race(problem, PROTOCOL_COOL, us)
    return rows


def of_variants(us: Mapping[KernelVariant, float]) -> Microseconds:
    return {KernelConfig(variant, PLAIN): time for variant, time in us.items()}


def hot(rows: Sequence[Measurement]) -> menu_cover.Times:
    return times([Recording("made up", H200, rows)], (PROTOCOL_HOT,))


SPREAD = {
    FIRST: of_variants({A: 10.0, B: 10.3, C: 20.0}),
    SECOND: of_variants({A: 30.0, B: 10.0, C: 10.15}),
    THIRD: of_variants({A: 30.0, B: 10.4, C: 10.0}),
}


@pytest.mark.parametrize(("margin", "needed"), [(0.01, {A, B, C}), (0.02, {A, C}), (0.05, {B})])
def test_the_fewest_variants_within_a_margin_of_every_shapes_best(
    margin: float, needed: set[KernelVariant]
) -> None:
    found = suffices(hot(recorded(SPREAD)), margin, seconds=10.0)
    assert set(found.variants) == needed
    assert found.cover.proved


def test_every_shape_names_the_chosen_variant_that_is_best_there_and_how_far_it_is_off() -> None:
    found = suffices(hot(recorded(SPREAD)), 0.05, seconds=10.0)
    assert {problem: variant for problem, (_, variant) in found.off.items()} == {
        FIRST: B,
        SECOND: B,
        THIRD: B,
    }
    assert [round(off, 4) for off, _ in found.off.values()] == [0.03, 0.0, 0.04]


def test_a_variant_is_as_fast_as_its_best_launch() -> None:
    slow_and_fast = {
        KernelConfig(A, PLAIN): 12.0,
        KernelConfig(A, OTHER): 10.0,
        KernelConfig(B, PLAIN): 11.0,
    }
    assert hot(recorded({FIRST: slow_and_fast})) == {FIRST: {A: 10.0, B: 11.0}}


def test_hot_and_cool_together_are_judged_by_their_geometric_mean_of_one_config() -> None:
    either = recorded(
        {FIRST: {KernelConfig(A, PLAIN): 1.0, KernelConfig(A, OTHER): 4.0}},
        {FIRST: {KernelConfig(A, PLAIN): 9.0, KernelConfig(A, OTHER): 4.0}},
    )
    recording = Recording("made up", H200, either)
    assert times([recording], (PROTOCOL_HOT, PROTOCOL_COOL)) == {FIRST: {A: 3.0}}


def test_a_config_that_missed_a_race_does_not_count_there() -> None:
    rows = recorded({FIRST: of_variants({A: 10.0, B: 10.0})}, {FIRST: of_variants({B: 10.0})})
    recording = Recording("made up", H200, rows)
    assert set(times([recording], (PROTOCOL_HOT, PROTOCOL_COOL))[FIRST]) == {B}


def test_a_variant_does_not_cover_a_shape_it_was_not_recorded_on() -> None:
    measured = hot(recorded({FIRST: of_variants({A: 10.0}), SECOND: of_variants({B: 10.0})}))
    assert set(suffices(measured, 0.05, seconds=10.0).variants) == {A, B}


def test_the_first_recording_of_a_shape_counts_and_another_adds_its_own_shapes() -> None:
    first = Recording("one", H200, recorded({FIRST: of_variants({A: 10.0})}))
    second = Recording(
        "two", H200, recorded({FIRST: of_variants({B: 1.0}), SECOND: of_variants({B: 5.0})})
    )
    assert times([first, second], (PROTOCOL_HOT,)) == {FIRST: {A: 10.0}, SECOND: {B: 5.0}}


def test_the_command_writes_every_margin_and_judgement_with_where_it_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = write_recording(tmp_path / "made-up.jsonl.gz", recorded(SPREAD))
    out = tmp_path / "cover.json"
    monkeypatch.setattr(
        sys, "argv", ["menu_cover", "--recording", str(recording), "--out", str(out)]
    )
    menu_cover.main()
    body = json.loads(out.read_text())
    assert [(row["judged_by"], row["margin"]) for row in body["rows"]] == [
        (judged_by, margin) for judged_by in ("hot", "hot and cool") for margin in MARGINS
    ]
    assert [row["variants"] for row in body["rows"]] == [3, 2, 1] * 2
    assert body["recordings"] == [
        {
            "name": "made-up.jsonl.gz",
            "device": H200.key,
            "kernel_hash": TOOLCHAIN.kernel_hash,
            "shapes": 3,
        }
    ]
    assert body["rows"][2]["chosen"][0]["block_n"] == B.block_n
    assert not out.with_name("cover.json.partial").exists()


def test_shipped_recordings_can_be_covered() -> None:
    measured = hot(list(_rows(Recording.load("h200"))))
    found = suffices(measured, 0.01, seconds=10.0)
    assert max(off for off, _ in found.off.values()) <= 0.01
    assert len(found.variants) <= len(measured)


def _rows(recording: Recording) -> list[Measurement]:
    return [row for problem in recording.problems() for row in recording.rows(problem)]
