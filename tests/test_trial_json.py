"""The row format: what is written is read back, and what is not a row is refused."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.device.fake import H200, TOOLCHAIN
from tuner.errors import TunerError
from tuner.search.space import article_config
from tuner.shape import GemmShape, Problem
from tuner.trial import PROTOCOL_HOT, Conditions, Contender, Measurement, TrialState
from tuner.trial_json import FORMAT, InvalidRow, from_json, read_lines, to_json, write_lines

PROBLEM = Problem(GemmShape(4096, 4096, 4096), 132, d="col")
ROW = Measurement(
    PROBLEM,
    H200.key,
    H200.name,
    PROTOCOL_HOT,
    Contender("kernel", article_config(PROBLEM)),
    TOOLCHAIN,
    TrialState.OK,
    (171.5, 172.25),
    conditions=Conditions("580.95", "13.1", "GPU-1", 1755, 690.5, 61, 4),
    source="replay",
    run_id="run-7",
    race="race-3",
    worker="host:1",
    measured_at=datetime(2026, 11, 29, 12, 0, 0, 250, UTC),
)
BASELINE = replace(ROW, contender=Contender("cublaslt", algorithm="tile=128x256"))
REFUSED = replace(
    ROW, state=TrialState.COMPILE_REFUSED, samples_us=(), detail="spills 16 bytes", race=None
)


@pytest.mark.parametrize("row", [ROW, BASELINE, REFUSED], ids=["kernel", "library", "failure"])
def test_a_row_survives_the_trip_through_json(row: Measurement) -> None:
    assert from_json(json.loads(json.dumps(to_json(row)))) == row


def test_the_row_is_flat_and_names_its_fields_as_the_database_does() -> None:
    written = to_json(ROW)
    assert (written["m"], written["n"], written["k"], written["d"]) == (4096, 4096, 4096, "col")
    assert written["kernel_hash"] == "kernel-hash-1"
    assert written["config"]["block_n"] == 256
    assert written["measured_at"] == "2026-11-29T12:00:00.000250+00:00"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"m": 0}, "m must be between 1"),
        ({"m": True}, "m cannot be 'True'"),
        ({"m": "4096"}, "m cannot be '4096'"),
        ({"d": "diagonal"}, "d cannot be"),
        ({"state": "fine"}, "state cannot be"),
        ({"contender": "mkl"}, "contender cannot be"),
        ({"contender": "cublas"}, "only kernel rows have one"),
        ({"config": None}, "only kernel rows have one"),
        ({"config": {"block_m": 64}}, "lacks the fields"),
        ({"config": 7}, "config cannot be '7'"),
        ({"samples_us": []}, "only ok rows have"),
        ({"samples_us": [1.0, -2.0]}, "positive finite times"),
        ({"samples_us": [float("nan")]}, "positive finite times"),
        ({"samples_us": [True]}, "positive finite times"),
        ({"state": "timeout"}, "has 2 samples"),
        ({"conditions": {"moon": "full"}}, "unknown fields"),
        ({"conditions": {"power_w": "much"}}, "power_w cannot be"),
        ({"source": "hearsay"}, "source cannot be"),
        ({"measured_at": "yesterday"}, "measured_at cannot be"),
        ({"measured_at": "2026-11-29T12:00:00"}, "measured_at cannot be"),
        ({"run_id": None}, "run_id cannot be"),
        ({"colour": "red"}, "unknown fields \\['colour'\\]"),
    ],
)
def test_a_row_with_an_impossible_field_is_refused_and_the_field_named(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRow, match=message):
        from_json({**to_json(ROW), **change})


@pytest.mark.parametrize("name", sorted(to_json(ROW)))
def test_a_row_without_one_of_its_fields_is_refused(name: str) -> None:
    written = to_json(ROW)
    del written[name]
    with pytest.raises(InvalidRow, match=rf"the row lacks \['{name}'\]"):
        from_json(written)


def test_a_file_holds_a_header_and_a_row_a_line() -> None:
    lines = list(write_lines(H200, [ROW, BASELINE]))
    assert json.loads(lines[0])["format"] == FORMAT == "gemm-tuner-rows/1"
    assert len(lines) == 3
    assert read_lines(lines, "rows.jsonl") == (H200, [ROW, BASELINE])
    assert read_lines(write_lines(None, []), "rows.jsonl") == (None, [])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "rows.jsonl is empty"),
        (["{}\n"], r"rows\.jsonl:1: the header names the format None"),
        (['{"format": "gemm-tuner-rows/2"}\n'], "this version reads gemm-tuner-rows/1"),
        (["[1]\n"], "must be one JSON object"),
        (['{"format": "gemm-tuner-rows/1", "device": {"name": "H"}}\n'], "must have the fields"),
        ([*write_lines(H200, []), '{"m": 1'], r"rows\.jsonl:2: this is not JSON"),
        ([*write_lines(H200, []), '{"m": NaN}'], r"NaN is not a JSON number"),
        ([*write_lines(H200, []), "\n"], r"rows\.jsonl:2: this is not JSON"),
    ],
)
def test_a_damaged_file_is_refused_with_the_line_named(lines: list[str], message: str) -> None:
    with pytest.raises(TunerError, match=message):
        read_lines(lines, "rows.jsonl")


def test_lines_that_tell_of_outcomes_and_runs_are_passed_over() -> None:
    header, *lines = write_lines(H200, [ROW])
    beside = ['{"outcome": {"state": "tuned"}}\n', '{"run": {"id": "run-7"}}\n']
    assert read_lines([header, *beside, *lines, *beside], "rows.jsonl") == (H200, [ROW])


def test_no_row_is_ever_written_with_a_number_that_is_not_json() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        list(write_lines(None, [replace(ROW, samples_us=(float("nan"),))]))
