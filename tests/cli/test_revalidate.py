"""`tuner run --revalidate`: after a change of kernel or driver the best few are timed again."""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, lines
from tests.device.fake import H200, TOOLCHAIN
from tests.device.recordings import recorded_rows, write_recording
from tuner.config import KernelConfig
from tuner.shape import GemmShape, Problem
from tuner.store.engine import open_store
from tuner.study.revalidate import TOP
from tuner.trial import Measurement, Toolchain

SHAPES = (GemmShape(512, 512, 512), GemmShape(2560, 4096, 1024))
PROBLEMS = [Problem(shape, H200.sms) for shape in SHAPES]
LATER = Toolchain("kernel-hash-2", TOOLCHAIN.nvrtc_version)
Change = Callable[[Measurement], Measurement]


def recording(path: Path, change: Change) -> str:
    rows = [change(row) for problem in PROBLEMS for row in recorded_rows(problem)]
    return f"replay:{write_recording(path, rows)}"


def with_kernel(row: Measurement) -> Measurement:
    return replace(row, toolchain=LATER)


def slower(config: KernelConfig, by: float) -> Change:
    """Another kernel, of which one config became slower."""

    def change(row: Measurement) -> Measurement:
        if row.contender.config != config:
            return with_kernel(row)
        return replace(with_kernel(row), samples_us=tuple(by * us for us in row.samples_us))

    return change


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    listing = tmp_path / "both.txt"
    listing.write_text("".join(f"{s.m} {s.n} {s.k}\n" for s in SHAPES))
    return listing


def races(database: Path, problem: Problem, made_with: Toolchain) -> Sequence[Measurement]:
    with open_store(f"sqlite:///{database}", create=False) as repository:
        found = repository.races(problem, H200.key)
        return [m for race in found for m in race.measurements if m.toolchain == made_with]


def winner(database: Path, problem: Problem, made_with: Toolchain) -> KernelConfig:
    with open_store(f"sqlite:///{database}", create=False) as repository:
        answer = repository.best(problem, H200.key, current=made_with)
    assert answer is not None
    assert answer.toolchain == made_with
    return answer.config


def test_shapes_of_the_current_kernel_are_left_alone(
    cli: Cli, shapes: Path, replay: str, database: Path
) -> None:
    assert cli("run", "--shapes", shapes, "--device", replay).code == 0
    before = database.read_bytes()
    ended = cli("run", "--revalidate", "--device", replay)
    assert ended.code == 0
    assert "2 shapes: 2 current." in ended.out
    assert len(races(database, PROBLEMS[0], TOOLCHAIN)) > 0
    assert len(before) == len(database.read_bytes())


def test_after_a_change_of_the_kernel_only_the_best_few_race_again_and_are_kept(
    cli: Cli, shapes: Path, replay: str, database: Path, tmp_path: Path
) -> None:
    assert cli("run", "--shapes", shapes, "--device", replay).code == 0
    later = recording(tmp_path / "later.jsonl.gz", with_kernel)
    ended = cli("run", "--revalidate", "--shapes", shapes, "--device", later)
    assert ended.code == 0
    assert "2 shapes: 2 kept." in ended.out
    assert "To tune anew" not in ended.out
    for problem in PROBLEMS:
        configs = {m.contender.config for m in races(database, problem, LATER)} - {None}
        assert len(configs) == TOP
        assert winner(database, problem, LATER) == winner(database, problem, TOOLCHAIN)
    again = cli("run", "--shapes", shapes, "--device", later)
    assert again.err.count("(tuned before)") == 2
    assert "2 shapes: 2 current." in cli("run", "--revalidate", "--device", later).out


def test_a_winner_that_drifts_is_reported_and_the_command_tunes_it_anew(
    cli: Cli, shapes: Path, replay: str, database: Path, tmp_path: Path
) -> None:
    assert cli("run", "--shapes", shapes, "--device", replay).code == 0
    was = winner(database, PROBLEMS[0], TOOLCHAIN)
    later = recording(tmp_path / "later.jsonl.gz", slower(was, by=1.2))
    ended = cli("run", "--revalidate", "--device", later, "--json")
    assert ended.code == 0
    told = json.loads(ended.out)
    drifted, kept = told["shapes"]
    assert (drifted["drift"], kept["drift"]) == ("drifted", "kept")
    assert drifted["new_ratio"] == pytest.approx(drifted["old_ratio"] / 1.2, rel=0.01)
    assert drifted["config"] == was.to_dict() != drifted["winner"]
    assert kept["new_ratio"] == kept["old_ratio"]
    assert winner(database, PROBLEMS[0], LATER).to_dict() == drifted["winner"]
    write, tune = told["tune_anew"].split(" && ")
    assert write == r"printf '512 512 512\n' > drifted-row.txt"
    (tmp_path / "drifted-row.txt").write_text("512 512 512\n")
    typed = shlex.split(tune.replace("drifted-row.txt", str(tmp_path / "drifted-row.txt")))
    anew = cli(*typed[1:])
    assert anew.code == 0
    assert "(tuned before)" not in anew.err
    assert "1 shape: 1 tuned;" in anew.out


def test_a_change_of_the_driver_alone_is_a_reason_too(
    cli: Cli, shapes: Path, replay: str, database: Path, tmp_path: Path
) -> None:
    assert cli("run", "--shapes", shapes, "--device", replay).code == 0

    def with_driver(row: Measurement) -> Measurement:
        return replace(row, conditions=replace(row.conditions, driver="581.00"))

    path = tmp_path / "driver.jsonl.gz"
    rows = [with_driver(row) for problem in PROBLEMS for row in recorded_rows(problem)]
    ended = cli("run", "--revalidate", "--device", recording_of(path, rows, driver="581.00"))
    assert ended.code == 0
    assert "2 shapes: 2 kept." in ended.out
    drivers = {m.conditions.driver for m in races(database, PROBLEMS[0], TOOLCHAIN)}
    assert drivers >= {"580.95", "581.00"}


def recording_of(path: Path, rows: Sequence[Measurement], driver: str) -> str:
    written = write_recording(path, rows, replace(H200, driver=driver))
    return f"replay:{written}"


def test_a_shape_that_nobody_tuned_is_named_and_the_others_are_timed(
    cli: Cli, shapes: Path, replay: str, tmp_path: Path
) -> None:
    assert cli("run", "--shapes", shapes, "--device", replay).code == 0
    later = recording(tmp_path / "later.jsonl.gz", with_kernel)
    listing = tmp_path / "three.txt"
    listing.write_text(shapes.read_text() + "64 64 64\n")
    ended = cli("run", "--revalidate", "--shapes", listing, "--device", later)
    assert ended.code == 3
    assert "3 shapes: 2 kept, 1 not_tuned." in ended.out
    assert "[3/3] 64x64x64 not_tuned: 64x64x64 has no stored config." in ended.err
    assert lines(ended.out, "512x512x512 ")
