"""A run killed at any moment is taken up where it was: the checks that evidence of it rests on."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from benchmarks.kill_parent import (
    Case,
    Moment,
    Started,
    Stored,
    compare,
    count_end,
    kill_and_finish,
)
from tests.device.recordings import recorded_rows, write_recording
from tests.forks import forks, write_to
from tuner.cli.main import main
from tuner.device.replay import Recording
from tuner.shape import GemmShape, Problem
from tuner.trial import ShapeOutcome, ShapeState, TrialState

PROBLEMS = [Problem(GemmShape(m, 512, 512), 132) for m in (128, 256, 512)]


@dataclass(frozen=True)
class Forked:
    """A command in a forked process, which is quick to start."""

    process: ForkServerProcess
    stderr: Path

    def wait(self, timeout: float) -> int | None:
        self.process.join(timeout)
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def said(self) -> str:
        return self.stderr.read_text() if self.stderr.exists() else ""


def run_command(stderr: Path, arguments: list[str]) -> None:
    write_to(Path("/dev/null"), 1)
    write_to(stderr, 2)
    sys.exit(main(arguments))


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Nothing in it fails: a variant that fails on one shape is not tried on the others."""
    rows = [row for problem in PROBLEMS for row in recorded_rows(problem, count=16)]
    sound = [row for row in rows if row.state is TrialState.OK]
    return write_recording(tmp_path / "small.jsonl.gz", sound)


@pytest.fixture
def start(
    tmp_path: Path, recording: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Started]:
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "cache"))
    shapes = tmp_path / "shapes.txt"
    shapes.write_text("".join(f"{p.shape.m} {p.shape.n} {p.shape.k}\n" for p in PROBLEMS))

    def started(url: str) -> Started:
        asked = ["run", "--shapes", str(shapes), "--device", f"replay:{recording}", "--db", url]
        stderr = tmp_path / "stderr"
        stderr.unlink(missing_ok=True)
        process = forks().Process(target=run_command, args=(stderr, asked))
        process.start()
        return Forked(process, stderr)

    return started


def at_rows(url: str, recording: Recording, count: int) -> Moment:
    """Once so many rows are stored."""

    def come(run: Started) -> bool:
        while len(Stored.read(url, PROBLEMS, recording).rows) < count:
            if run.wait(0.01) is not None:
                return False
        return True

    return come


def test_a_run_that_is_killed_again_and_again_loses_nothing_and_tunes_nothing_twice(
    database_url: str, recording: Path, start: Callable[[str], Started]
) -> None:
    loaded = Recording.load(recording)
    moments = [at_rows(database_url, loaded, count) for count in (30, 110)]
    case = kill_and_finish("a database", database_url, PROBLEMS, loaded, start, moments)
    assert case.exit_code == 0
    assert not case.failed, case
    assert case.kills == 2
    assert case.rows_at_kills[0] >= 30
    assert case.attempts == 16 * len(PROBLEMS)
    assert (case.rows_lost, case.ended_lost, case.tuned_again, case.shapes_undone) == (0, 0, 0, 0)
    assert (case.attempted_twice, case.races_torn) == (0, 0)


def ended(problem: Problem) -> ShapeOutcome:
    row = recorded_rows(problem, count=1, rounds=3)[0]
    return ShapeOutcome(problem, row.device_key, row.device_name, row.toolchain, ShapeState.TUNED)


def test_what_must_not_happen_is_counted() -> None:
    rows = recorded_rows(PROBLEMS[0], count=3, rounds=3)
    whole = Stored(frozenset(rows), {PROBLEMS[0]: ended(PROBLEMS[0])})
    again = replace(rows[0], run_id="another")
    changed = Stored(frozenset([again, *rows[1:]]), {})
    case = Case("a database", 1, exit_code=0)
    compare(case, whole, whole)
    count_end(case, PROBLEMS[:1], whole)
    assert not case.failed
    compare(case, whole, changed)
    assert (case.rows_lost, case.ended_lost, case.tuned_again) == (1, 1, 1)
    kept = [row for row in rows if row.contender.name != "cublas"]
    count_end(case, PROBLEMS[:2], Stored(frozenset([*kept, again]), whole.ended))
    assert (case.attempted_twice, case.races_torn, case.shapes_undone) == (1, 2, 1)
    assert case.failed
