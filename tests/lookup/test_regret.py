"""What is told of predictions is what leaving measured shapes out has shown."""

import json
import sys
from importlib.resources import files
from math import inf, isfinite, log
from pathlib import Path

import pytest

from benchmarks import score_lookup
from benchmarks.left_out import Case, recorded_shapes, unlikeness
from tests.device.fake import H200
from tests.device.recordings import recorded_rows, write_recording
from tests.lookup.measured import NARROW, PINGPONG, SQUARE, launched, problem
from tuner.device.replay import Recording
from tuner.lookup.cost_model import H200 as H200_MODEL
from tuner.lookup.regret import FILE, tier_regret

SHIPPED = json.loads((files("tuner.lookup") / FILE).read_text())


def test_the_shipped_regret_names_its_command_and_is_complete() -> None:
    assert SHIPPED["command"].startswith("python -m benchmarks.score_lookup")
    told = tier_regret()
    assert told.shapes
    for tier in ("nearest", "model", "sibling"):
        for distance in (None, 0.0, 0.7, 5.0, 100.0):
            band = told.of(tier, distance)
            assert 0 <= band.regret.mean <= band.regret.p95
            assert isfinite(band.log_width)
            assert band.log_width > 0
            assert (band.regret.cases == 0) == (tier == "sibling")
    assert all(bands[-1].up_to == inf for bands in told.bands.values())


def test_the_shipped_regret_was_scored_on_the_shipped_recording() -> None:
    recording = Recording.load(SHIPPED["recording"])
    assert SHIPPED["kernel_hash"] == recording.toolchain.kernel_hash
    assert SHIPPED["nvrtc_version"] == recording.toolchain.nvrtc_version


def test_the_tiers_are_better_than_what_is_done_without_them() -> None:
    mean = {row["rule"]: row["mean"] for row in SHIPPED["table"]}
    p95 = {row["rule"]: row["p95"] for row in SHIPPED["table"]}
    for naive in ("the best of the nearest M", "one default config, the article's"):
        assert mean["look-up"] < mean[naive]
        assert p95["look-up"] < p95[naive]
    covered = [band for bands in SHIPPED["tiers"].values() for band in bands]
    assert sum(b["covered"] for b in covered) >= 0.9 * sum(b["cases"] for b in covered)


def test_few_recorded_shapes_are_scored_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes = [problem(256, 256, 256), problem(256, 512, 256), problem(512, 512, 512)]
    rows = [row for p in shapes for row in recorded_rows(p, count=10)]
    recording = write_recording(tmp_path / "few.jsonl.gz", rows)
    monkeypatch.setattr(score_lookup, "OUT", tmp_path / FILE)
    monkeypatch.setattr(sys, "argv", ["score_lookup", "--recording", str(recording), "--write"])
    score_lookup.main()
    printed = capsys.readouterr().out
    assert printed.startswith("3 recorded shapes")
    written = json.loads((tmp_path / FILE).read_text())
    assert written["device_key"] == H200.key
    assert set(written) == set(SHIPPED)
    asked = next(row for row in written["table"] if row["rule"] == "look-up")
    assert asked["cases"] == 3
    assert 0 <= asked["mean"] <= asked["worst"]
    found = recorded_shapes(Recording.load(recording))
    for shape in found:
        best = shape.plain_best
        assert shape.like(best) == best
        assert shape.regret(best, best, H200_MODEL) == 0


def test_a_recording_of_one_shape_cannot_be_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = write_recording(tmp_path / "one.jsonl.gz", recorded_rows(problem(256, 256, 256)))
    monkeypatch.setattr(sys, "argv", ["score_lookup", "--recording", str(recording)])
    with pytest.raises(SystemExit, match="two recorded shapes"):
        score_lookup.main()


def test_an_unrecorded_config_is_scored_as_the_one_most_like_it() -> None:
    asked = problem(4096, 4096, 4096)
    one, other = launched(SQUARE, asked), launched(SQUARE, asked, dependent=True)
    assert unlikeness(one, one) == 0
    tiles = [launched(variant, asked) for variant in (PINGPONG, NARROW)]
    assert 0 < unlikeness(one, other) < min(unlikeness(one, tile) for tile in tiles)


def test_a_band_holds_each_shape_once_and_few_shapes_share_one() -> None:
    shapes = [problem(m, 512, 512) for m in range(1, 8)]
    near = [Case(p, "nearest", 0.0, 0.01, True, 0.3, 0.0) for p in shapes[:6]]
    far = [Case(p, "nearest", 2.0, 0.05, True, 3.0, 0.0) for p in shapes]
    twice = [Case(p, "nearest", 3.0, 0.09, True, 3.5, 0.0) for p in shapes]
    (first, close), (last, rest) = score_lookup.bands([*near, *far, *twice])
    assert (first, last) == (0.5, inf)
    assert (len(close), len(rest)) == (6, 7)
    assert {case.radius for case in rest} == {2.0}
    assert [len(found) for _, found in score_lookup.bands(near[:3])] == [3]


@pytest.mark.parametrize(("degrees", "quantile"), [(5, 2.571), (10, 2.228), (30, 2.042)])
def test_few_shapes_widen_the_interval(degrees: int, quantile: float) -> None:
    assert score_lookup.student(degrees) == pytest.approx(quantile, rel=0.01)
    off = [log(1.1), log(0.9)] * (degrees // 2)
    assert score_lookup.log_width(off) > 1.96 * 0.09
