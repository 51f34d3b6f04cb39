"""`tuner calibrate`: the best few of another device timed here, within a time, into a bundle."""

import json
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, lines, use_fake
from tests.device.fake import H200, TOOLCHAIN, FakeDevice, Faults
from tests.device.recordings import recorded_rows, write_recording
from tests.study.doubles import MemoryRows
from tuner.device.replay import RecordedCompiler, Recording, ReplayDevice
from tuner.hardware import DeviceIdentity
from tuner.lookup.race import races_of
from tuner.shape import GemmShape, Problem
from tuner.store.engine import open_store
from tuner.study import Tools
from tuner.study.calibrate import Proposal, calibrate, propose
from tuner.study.revalidate import TOP

H100 = DeviceIdentity(
    "NVIDIA H100 PCIe", (9, 0), 114, 81_559 * 2**20, "GPU-h100", "580.95", "13.1.0.3", 50 * 2**20
)
SHAPES = (GemmShape(512, 512, 512), GemmShape(2560, 4096, 1024))
PROBLEMS = [Problem(shape, H200.sms) for shape in SHAPES]


@pytest.fixture
def exported(cli: Cli, tmp_path: Path, replay: str) -> Path:
    """What `tuner export` wrote of an H200 on which two shapes were tuned."""
    listing, out = tmp_path / "both.txt", tmp_path / "h200-rows.jsonl.gz"
    listing.write_text("".join(f"{s.m} {s.n} {s.k}\n" for s in SHAPES))
    assert cli("run", "--shapes", listing, "--device", replay).code == 0
    assert cli("export", out).code == 0
    return out


def test_the_best_few_are_timed_on_another_card_and_others_can_import_them(
    cli: Cli, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = FakeDevice(Faults(memory_bytes=2**40), H100)
    use_fake(monkeypatch, Faults(), device=card)
    bundle = tmp_path / "h100.jsonl.gz"
    ended = cli("calibrate", bundle, "--from", exported, "--device", "cuda:0", "--json")
    assert ended.code == 0
    told = json.loads(ended.out)
    assert (told["there"], told["here"]) == ("NVIDIA H200", "NVIDIA H100 PCIe")
    assert {(one["m"], one["state"]) for one in told["shapes"]} == {(512, "tuned"), (2560, "tuned")}
    assert told["left_out"] == []
    for one in told["shapes"]:
        assert 1 <= len(one["configs"]) <= TOP
        assert all(c["ratio_here"] > 0 and c["ratio_there"] > 0 for c in one["configs"])
    other = f"sqlite:///{tmp_path / 'other.db'}"
    assert cli("import", bundle, "--db", other).code == 0
    with open_store(other) as repository:
        assert [(d.key, d.shapes) for d in repository.devices()] == [(H100.key, 0)]
        answer = repository.best(Problem(SHAPES[0], 114), H100.key)
    assert answer is not None
    assert answer.device_name == "NVIDIA H100 PCIe"
    assert answer.toolchain == TOOLCHAIN


def test_the_report_says_whether_the_ranking_is_kept(
    cli: Cli, exported: Path, tmp_path: Path, replay: str
) -> None:
    out = tmp_path / "same.jsonl.gz"
    ended = cli("calibrate", out, "--from", exported, "--device", replay)
    assert ended.code == 0
    assert lines(ended.out, "512x512x512 ")[0].split()[3] == "kept"
    assert (
        "2 shapes timed, those first that save most beside cuBLAS there; winner kept in 2; 0"
        in (ended.out)
    )
    assert f"`tuner import {out}`" in ended.out


def test_the_shipped_recording_is_the_default(cli: Cli, tmp_path: Path) -> None:
    ended = cli("calibrate", tmp_path / "b.jsonl", "--device", "replay", "--seconds", 1, "--json")
    told = json.loads(ended.out)
    assert told["from"] == "the recording h200"
    assert len(told["shapes"]) + len(told["left_out"]) == 17
    assert len(told["shapes"]) >= 1


def test_a_source_or_an_output_that_cannot_be_used_is_a_sentence(
    cli: Cli, tmp_path: Path, replay: str
) -> None:
    out = tmp_path / "b.jsonl"
    missing = cli("calibrate", out, "--from", tmp_path / "none.jsonl", "--device", replay)
    assert missing.code == 5
    assert "none.jsonl cannot be read" in missing.err
    nowhere = cli("calibrate", tmp_path / "no" / "b.jsonl", "--device", replay)
    assert nowhere.code == 2
    assert "name a file in a folder that is there" in nowhere.err
    assert not out.exists()


def proposals() -> list[Proposal]:
    races = [races_of(r for r in recorded_rows(p) if r.race is not None) for p in PROBLEMS]
    return propose(races, H200.sms, H200.sms)


def test_what_saves_most_comes_first() -> None:
    found = proposals()
    assert [p.saved_us for p in found] == sorted((p.saved_us for p in found), reverse=True)
    assert all(next(iter(p.ratios.values())) == max(p.ratios.values()) for p in found)


def test_no_shape_is_begun_that_would_overrun_the_time(tmp_path: Path) -> None:
    rows = [row for problem in PROBLEMS for row in recorded_rows(problem)]
    recording = Recording.load(write_recording(tmp_path / "small.jsonl.gz", rows))
    device, stored = ReplayDevice(recording), MemoryRows()
    tools = Tools(device, RecordedCompiler(device), stored, "run", source="replay", menu=device)
    for seconds, shapes_timed in ((3.5, 1), (100.0, 2)):
        two_seconds_a_look = count(0.0, 2.0).__next__
        done = list(calibrate(proposals(), tools, lambda _: [], seconds, two_seconds_a_look))
        assert len(done) == shapes_timed
    assert stored.outcomes == []


def test_configs_of_fewer_multiprocessors_than_asked_are_left_out() -> None:
    few = [
        replace(row, problem=replace(row.problem, sms=120)) for row in recorded_rows(PROBLEMS[0])
    ]
    races = [races_of(r for r in few if r.race is not None)]
    assert propose(races, 132, 114) == []
    (kept,) = propose(races, 132, 132)
    assert kept.problem.sms == 120
