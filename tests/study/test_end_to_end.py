"""The real database, the real processes and the fake device: what survives on disk."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.device.fake import H200, TOOLCHAIN, FakeCompiler, FakeFactory, Faults
from tests.device.recordings import recorded_rows, write_recording
from tests.forks import forks
from tests.study.slow_run import BUDGET, SHAPES, run_slowly
from tuner.device.process import DeviceProcess
from tuner.device.replay import RecordedCompiler, ReplayDevice
from tuner.search.sampler import Searcher
from tuner.search.space import menu
from tuner.shape import Problem
from tuner.store.engine import open_store
from tuner.store.repository import Repository
from tuner.study import Tools, run_all
from tuner.trial import PROTOCOL_HOT, Measurement, ShapeState, TrialState


def url(folder: Path) -> str:
    return f"sqlite:///{folder / 'tuner.db'}"


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    with open_store(url(tmp_path)) as opened:
        yield opened


def rows_of(
    repository: Repository, problem: Problem, source: str = "measured"
) -> list[Measurement]:
    return repository.attempts(problem, H200.key, sources=(source,))


def test_a_run_with_a_crashing_variant_leaves_answers_and_the_failure_in_the_database(
    repository: Repository,
) -> None:
    (first,) = Searcher(SHAPES[0], menu(SHAPES[0])).ask(1)
    crashing = first.variant
    factory = FakeFactory(Faults(segfault=frozenset({crashing})))
    with DeviceProcess(factory) as device:
        tools = Tools(device, FakeCompiler(), repository, "run-1", worker="host:1")
        outcomes = run_all(SHAPES, tools, BUDGET)
    assert [o.state for o in outcomes] == [ShapeState.TUNED] * 3
    assert repository.failures(SHAPES[0], H200.key) == {TrialState.CRASHED: 1}
    for problem, outcome in zip(SHAPES, outcomes, strict=True):
        stored = repository.outcome(problem, H200.key, TOOLCHAIN, "measured")
        assert stored is not None
        assert (stored.state, stored.counts, stored.trials) == (
            outcome.state,
            outcome.counts,
            outcome.trials,
        )
        answer = repository.best(problem, H200.key, current=TOOLCHAIN)
        assert answer is not None
        raced = [r for r in rows_of(repository, problem) if r.protocol == PROTOCOL_HOT]
        assert answer.config in {r.contender.config for r in raced}
        assert crashing not in {r.contender.config.variant for r in raced if r.contender.config}


def test_replayed_rows_answer_but_do_not_count_as_done_on_the_card(
    repository: Repository, tmp_path: Path
) -> None:
    recording = write_recording(tmp_path / "small.jsonl.gz", recorded_rows(SHAPES[0]))
    replay = ReplayDevice(recording)
    replayed = Tools(
        replay, RecordedCompiler(replay), repository, "run-1", source="replay", menu=replay
    )
    (outcome,) = run_all(SHAPES[:1], replayed, BUDGET)
    assert outcome.state is ShapeState.TUNED
    assert repository.best(SHAPES[0], H200.key) is not None
    with DeviceProcess(FakeFactory()) as device:
        real = Tools(device, FakeCompiler(), repository, "run-2")
        (measured,) = run_all(SHAPES[:1], real, BUDGET)
    assert measured.trials == BUDGET.trials
    assert len([r for r in rows_of(repository, SHAPES[0]) if r.race is None]) == BUDGET.trials


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_killed_or_interrupted_is_taken_up_where_it_was(
    tmp_path: Path, number: signal.Signals
) -> None:
    context = forks()
    told, telling = context.Pipe(duplex=False)
    run = context.Process(target=run_slowly, args=(url(tmp_path), telling))
    run.start()
    telling.close()
    with told:
        ended = trials = 0
        while trials < 2:
            event = told.recv()
            ended += event == "ShapeEnded"
            trials += ended == 2 and event == "TrialDone"
        assert run.pid is not None
        began = time.monotonic()
        os.kill(run.pid, number)
        run.join(30)
        run.kill()
        assert time.monotonic() - began < 30
    with open_store(url(tmp_path)) as repository, DeviceProcess(FakeFactory()) as device:
        done = [repository.outcome(p, H200.key, TOOLCHAIN, "measured") for p in SHAPES]
        assert [o is not None for o in done] == [True, True, False]
        kept = rows_of(repository, SHAPES[2])
        assert len(kept) >= 2
        tools = Tools(device, FakeCompiler(), repository, "run-2")
        outcomes = run_all(SHAPES, tools, BUDGET)
        assert [o.run_id for o in outcomes] == ["run-1", "run-1", "run-2"]
        attempts = [r for r in rows_of(repository, SHAPES[2]) if r.race is None]
        assert len(attempts) == BUDGET.trials
        assert [r.run_id for r in attempts].count("run-1") == len(kept)
        assert len({r.contender.config for r in attempts}) == BUDGET.trials


def test_a_child_killed_by_somebody_in_mid_run_costs_nothing(repository: Repository) -> None:
    with DeviceProcess(FakeFactory()) as device:
        killed: list[int] = []

        def kill_now_and_then(event: object) -> None:
            if type(event).__name__ == "TrialDone" and len(killed) < 3 and device.pid:
                killed.append(device.pid)
                os.kill(device.pid, signal.SIGKILL)

        tools = Tools(device, FakeCompiler(), repository, "run-1")
        (outcome,) = run_all(SHAPES[:1], tools, BUDGET, kill_now_and_then)
    assert len(set(killed)) == 3
    assert outcome.state is ShapeState.TUNED
    assert outcome.counts == {"ok": BUDGET.trials}
