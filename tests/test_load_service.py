"""The load test itself: reduced, with the client that needs no package, it finds no fault."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import load_client, load_service


def test_reduced_load_is_answered_without_fault_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_client, "has_wrk", lambda: False)
    out = tmp_path / "load.json"
    monkeypatch.setattr(sys, "argv", ["load_service", "--reduced", "--out", str(out)])
    assert load_service.main() == 0
    told = json.loads(out.read_text())
    rows = {row["what"]: row for row in told["rows"]}
    assert set(rows) == {"hello", "mixed"}
    for row in rows.values():
        assert row["requests"] > 100
        assert (row["not_200"], row["failed"]) == (0, 0)
        assert 0 < row["p50_ms"] <= row["p99_ms"]
    assert told["writer"]["sqlite"]["shapes"] >= 1
    assert told["writer"]["sqlite"]["seen_s"]


def test_load_has_an_end() -> None:
    with pytest.raises(ValueError, match="1 to 60 seconds"):
        load_client.load(1, ["/"], 1, 61)
