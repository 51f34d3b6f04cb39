"""What the commands that measure share: results that survive, and a child that may be killed."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import RESULTS, Results, command_of, extents
from benchmarks.laboratory import Laboratory
from tests.device.fake import FakeDevice
from tuner.errors import DeviceCrashed, DeviceTimeout
from tuner.shape import GemmShape

MEASURE = RESULTS.parent / "measure_b.sh"


def test_rows_are_on_disk_after_every_one_and_the_file_has_its_name_at_the_end(
    tmp_path: Path,
) -> None:
    out = tmp_path / "some.json"
    results = Results(out, {"command": "made up"})
    for number in (1, 2):
        results.add({"number": number}, f"row {number}")
        body = json.loads(out.with_name("some.json.partial").read_text())
        assert body == {"command": "made up", "rows": [{"number": n + 1} for n in range(number)]}
        assert not out.exists()
    results.finish({"total": 2})
    body = json.loads(out.read_text())
    assert (body["command"], body["total"], len(body["rows"])) == ("made up", 2, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["some.json"]


def test_progress_is_printed_with_the_seconds_so_far(capsys: pytest.CaptureFixture[str]) -> None:
    results = Results(None, {})
    results.add({}, "cooperative: done")
    results.finish({"paths": 1})
    printed = capsys.readouterr().out
    assert re.search(r"^\[ *[0-9.]+ s\] cooperative: done$", printed, flags=re.MULTILINE)
    assert "paths: 1" in printed


def test_a_command_is_told_so_that_a_shell_can_repeat_it() -> None:
    told = command_of("benchmarks.soak", ["--paths", "split K, all", "--out", "soak.json"])
    assert told == "python -m benchmarks.soak --paths 'split K, all' --out soak.json"


def test_a_shape_is_told_by_its_extents() -> None:
    assert extents(GemmShape(1, 2, 8)) == {"m": 1, "n": 2, "k": 8}


class Asked(FakeDevice):
    """Lends one made-up tool."""

    def ask(self, work: Callable[[str], Any]) -> Any:
        return work("a stream")


@dataclass(frozen=True)
class Work:
    """What the child does; the answer names the tool it was lent."""

    sleeps: float = 0.0
    breaks: bool = False

    def __call__(self, tool: Any) -> str:
        time.sleep(self.sleeps)
        if self.breaks:
            raise ZeroDivisionError("by a kernel")
        return f"done with {tool}"


def test_work_is_done_in_the_child_on_its_tools() -> None:
    with Laboratory(Asked) as laboratory:
        assert laboratory.ask(Work(), 60.0) == "done with a stream"
        assert laboratory.identify().sms == 132


def test_work_that_hangs_is_killed_at_its_deadline_and_the_next_is_done() -> None:
    with Laboratory(Asked) as laboratory:
        laboratory.ask(Work(), 60.0)
        with pytest.raises(DeviceTimeout):
            laboratory.ask(Work(sleeps=3600.0), 0.5)
        assert laboratory.ask(Work(), 60.0) == "done with a stream"


def test_work_that_fails_leaves_a_sentence_and_a_device_for_the_next() -> None:
    with Laboratory(Asked) as laboratory:
        with pytest.raises(DeviceCrashed, match="by a kernel"):
            laboratory.ask(Work(breaks=True), 60.0)
        assert laboratory.ask(Work(), 60.0) == "done with a stream"


def commands(tmp_path: Path, *stages: str) -> list[str]:
    """The Python commands that the script would run."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "RUN $*"\n')
    python.chmod(0o755)
    bash = shutil.which("bash")
    assert bash
    done = subprocess.run(
        [bash, str(MEASURE), str(tmp_path / "out"), "abc123", *stages],
        env={"PYTHON": str(python), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    # What a command prints may go into a file of shapes.
    kept = [path.read_text() for path in (tmp_path / "out").glob("*.txt")]
    lines = "\n".join([done.stdout, *kept]).splitlines()
    return [line for line in lines if line.startswith("RUN")]


def test_the_script_runs_modules_and_lists_that_exist_and_writes_no_file_twice(
    tmp_path: Path,
) -> None:
    run = commands(tmp_path)
    modules = {name for line in run for name in re.findall(r"-m (benchmarks\.\w+)", line)}
    assert modules == {name for name in modules if find_spec(name)}
    assert len(modules) >= 9
    lists = {name for line in run for name in re.findall(r"benchmarks/shapes/\S+", line)}
    assert {name for name in lists if not (RESULTS.parents[1] / name).exists()} == set()
    written = [name for line in run for name in re.findall(r"--(?:out|json) (\S+)", line)]
    assert len(written) == len(set(written))


def test_everything_that_names_a_commit_is_told_the_one_that_is_measured(tmp_path: Path) -> None:
    evidence = [line for line in commands(tmp_path) if re.search(r"\.json\b", line)]
    assert [line for line in evidence if "--commit abc123" not in line] == []


def test_stages_can_be_run_one_at_a_time(tmp_path: Path) -> None:
    (soak,) = commands(tmp_path, "soak")
    assert "benchmarks.soak" in soak
