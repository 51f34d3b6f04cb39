"""Benchmarks read what the tools print as it is meant, and name what they measured."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import sanitize, tune_times
from tests.device.recordings import recorded_rows, write_recording
from tuner.cli import provenance
from tuner.device.replay import RecordedCompiler, Recording, ReplayDevice
from tuner.shape import GemmShape, Problem

RACECHECK = "========= RACECHECK SUMMARY: 100 hazards displayed (2033 errors, 7 warnings)"


@pytest.mark.parametrize(
    ("text", "findings", "product"),
    [
        ("product: right\n========= ERROR SUMMARY: 0 errors", 0, "right"),
        ("product: wrong\n========= ERROR SUMMARY: 1 error", 1, "wrong"),
        (f"product: right\n{RACECHECK}", 2040, "right"),
        ("Segmentation fault\n========= ERROR SUMMARY: 3 errors", 3, "not checked"),
        ("compute-sanitizer: not found", None, "not checked"),
    ],
)
def test_findings_are_counted_once_and_a_product_nobody_looked_at_is_not_right(
    text: str, findings: int | None, product: str
) -> None:
    told = sanitize.told(text)
    assert (told["findings"], told["product"]) == (findings, product)
    assert sanitize.clean({**told, "exit": 0}) is (findings == 0 and product == "right")


def test_tuning_times_name_device_driver_commit_and_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "commit_of_package", lambda: "unknown")
    shapes, out = tmp_path / "shapes.txt", tmp_path / "times.json"
    shapes.write_text("512 512 512\n")
    rows = recorded_rows(Problem(GemmShape(512, 512, 512), sms=132))
    recording = write_recording(tmp_path / "small.jsonl.gz", rows)
    asked = ["--shapes", str(shapes), "--device", f"replay:{recording}", "--out", str(out)]
    asked += ["--trials", "4"]
    monkeypatch.setattr(sys, "argv", ["tune_times", *asked, "--commit", "abc123"])
    tune_times.main()
    body = json.loads(out.read_text())
    assert body["command"].endswith("--trials 4 --commit abc123")
    assert (body["commit"], body["commit_from"]) == ("abc123", "stated")
    assert body["source"] == "replay"
    recorded = ReplayDevice(Recording.load(recording))
    device, toolchain = recorded.identify(), RecordedCompiler(recorded).toolchain()
    assert body["device"] == {
        "name": device.name,
        "key": device.key,
        "sms": device.sms,
        "uuid": device.uuid,
    }
    assert body["driver"] == device.driver
    assert body["toolchain"] == {
        "kernel_hash": toolchain.kernel_hash,
        "nvrtc": toolchain.nvrtc_version,
        "cublas": device.cublas_version,
    }
    for kind in ("cold", "warm"):
        (row,) = body[kind]
        assert (row["shape"], row["state"], row["configs"]) == ([512, 512, 512], "tuned", 4)
