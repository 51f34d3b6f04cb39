"""How far a shape is from the card's limits, by arithmetic that can be done by hand."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import roofline
from benchmarks.roofline import Peaks, read_peaks, share_of, shares, worst
from tuner.shape import GemmShape

PEAKS = Peaks(tflops=800.0, tbps=4.0)
SQUARE = GemmShape(1000, 1000, 1000)  # 2 GFLOP, 6 MB
EXTENT = st.integers(1, 20_000)


def test_a_square_is_limited_by_its_multiplications() -> None:
    share = share_of(SQUARE, 5.0, PEAKS)
    assert share.limit == "compute"
    assert (share.tflops, share.tbps) == pytest.approx((400.0, 1.2))
    assert share.roof_us == pytest.approx(2.5)
    assert share.roof_share == pytest.approx(0.5)


def test_a_single_row_is_limited_by_memory() -> None:
    share = share_of(GemmShape(1, 8192, 8192), 50.0, PEAKS)
    assert share.limit == "memory"
    assert share.roof_share == pytest.approx(134_250_496 / 50.0 / 1e6 / 4)
    assert share.tbps_share == pytest.approx(share.roof_share)


@given(EXTENT, EXTENT, EXTENT, st.floats(0.1, 1e6))
def test_the_roof_is_the_longer_of_what_both_limits_need(m: int, n: int, k: int, us: float) -> None:
    shape = GemmShape(m, n, k)
    share = share_of(shape, us, PEAKS)
    needed = max(2 * m * n * k / 800e6, 2 * (m * k + n * k + m * n) / 4e6)
    assert share.roof_us == pytest.approx(needed)
    assert share.roof_share == pytest.approx(max(share.tflops_share, share.tbps_share))


def rate(kind: str, value: float) -> dict[str, object]:
    return {"kind": kind, "rate": value}


MEASURED = {
    "device": {"name": "made up"},
    "rows": [
        *(rate("product", value) for value in (600.0, 800.0, 700.0)),
        *(rate("copy", 3.9), rate("read", 4.0)),
    ],
}


def test_peaks_are_the_best_product_and_the_better_of_copy_and_read() -> None:
    assert read_peaks(MEASURED) == PEAKS


def raced(m: int, us: float) -> dict[str, object]:
    return {"m": m, "n": 1000, "k": 1000, "tuned_us": us}


def test_the_ten_furthest_from_their_roof_come_first() -> None:
    evidence = {"rows": [raced(1000 + i, 5.0 + i) for i in range(12)]}
    found = shares(evidence, PEAKS)
    assert [share.roof_share for share in found] == sorted(share.roof_share for share in found)
    assert worst(found) == [f"{1000 + i}x1000x1000" for i in range(11, 1, -1)]


def test_the_report_names_what_was_measured_and_keeps_every_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence, peaks, out = (tmp_path / name for name in ("hot.json", "peaks.json", "out.json"))
    origin = {"commit": "abc", "driver": "580", "protocol": "hot", "device": {"name": "a card"}}
    evidence.write_text(json.dumps({**origin, "rows": [raced(1000, 5.0), raced(1000, 10.0)]}))
    peaks.write_text(json.dumps(MEASURED))
    asked = ["--evidence", str(evidence), "--peaks", str(peaks), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["roofline", *asked])
    roofline.main()
    body = json.loads(out.read_text())
    assert {name: body[name] for name in origin} == origin
    assert body["peaks"] == {"tflops": 800.0, "tbps": 4.0, "device": {"name": "made up"}}
    assert [row["roof_share"] for row in body["rows"]] == [0.25, 0.5]
