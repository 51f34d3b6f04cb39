"""`tuner worker` tunes what is queued and what was missed, and leaves nothing half done."""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, use_fake
from tests.cli.test_process import SLOW, process, wait_for_line, wait_for_rows
from tests.device.fake import H200, TOOLCHAIN, FakeCompiler, FakeDevice, Faults
from tuner.cli.working import Publisher, Worker
from tuner.device.protocol import Entrant
from tuner.errors import DeviceUnavailable, StoreError
from tuner.shape import GemmShape, Problem
from tuner.store.engine import open_store
from tuner.store.generations import Generations
from tuner.store.jobs import Jobs
from tuner.store.leases import Leases
from tuner.store.misses import Misses, Tally
from tuner.store.repository import Repository
from tuner.store.spooling import SpoolingRepository
from tuner.study import Budget, Tools
from tuner.trial import Sampled

FIRST, SECOND = Problem(GemmShape(512, 512, 512), 132), Problem(GemmShape(2560, 4096, 1024), 132)
ODD = Problem(GemmShape(64, 64, 20), 132)
OTHER = Problem(GemmShape(96, 256, 512), 132)


@pytest.fixture
def store(database: Path) -> Iterator[Repository]:
    with open_store(f"sqlite:///{database}") as repository:
        yield repository


def states(store: Repository) -> dict[Problem, str]:
    return {job.problem: job.state for job in Jobs(store).ended(99)}


def test_queued_shapes_come_before_missed_ones_and_all_of_them_end(
    cli: Cli, store: Repository, replay: str
) -> None:
    Misses(store).add({(SECOND, H200.key, "model"): Tally(9, 0.9)})
    run_id = Jobs(store).ask([ODD, FIRST, OTHER], H200.key)
    Jobs(store).ask([FIRST], "sm90-114sm-80gb")
    ended = cli("worker", "--device", replay, "--once", "--misses", "--trials", 6)
    assert ended.code == 3, ended.err
    told = [line for line in ended.err.splitlines() if line.startswith(("asked", "miss"))]
    assert [line.split()[:2] for line in told] == [
        ["asked:", "64x64x20"],
        ["asked:", "512x512x512"],
        ["asked:", "96x256x512"],
        ["miss:", "2560x4096x1024"],
    ]
    assert "4 shapes: 1 not_recorded, 2 tuned, 1 unsupported." in ended.err
    odd, first, other = Jobs(store).of_run(run_id)
    assert (odd.state, first.state, other.state) == ("unsupported", "tuned", "not_recorded")
    assert "K to be a multiple of 8" in odd.detail
    assert odd.ended_at is not None
    # Another device's job waits for a worker of its own.
    (waiting,) = Jobs(store).unended(9)
    assert (waiting.device_key, waiting.state, waiting.claims) == ("sm90-114sm-80gb", "queued", 0)
    served = Generations(store).current(H200.key)
    assert served is not None
    assert served.find(FIRST) is not None
    assert served.find(SECOND) is not None
    again = cli("worker", "--device", replay, "--once", "--misses")
    assert (again.code, "No shape was tuned." in again.err) == (0, True)


def test_misses_are_left_alone_where_they_are_not_asked_for(
    cli: Cli, store: Repository, replay: str
) -> None:
    Misses(store).add({(FIRST, H200.key, "model"): Tally(9, 0.9)})
    assert cli("worker", "--device", replay, "--once").code == 0
    assert states(store) == {}


def test_the_job_of_a_killed_worker_is_taken_up_again_with_what_it_measured(
    cli: Cli, store: Repository, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = Jobs(store).ask([FIRST], H200.key)
    with process([*SLOW, "worker", "--device", "cuda:0", "--trials", 60]) as killed:
        wait_for_rows(database, FIRST.shape)
        killed.kill()
        killed.wait(10)
        measured = len(store.attempts(FIRST, H200.key, sources=["measured"]))
        use_fake(monkeypatch, Faults())
        ended = cli("worker", "--device", "cuda:0", "--once", "--trials", 12)
    assert ended.code == 0, ended.err
    (job,) = Jobs(store).of_run(run_id)
    assert (job.state, job.claims) == ("tuned", 2)
    outcome = store.latest_outcome(FIRST, H200.key)
    assert outcome is not None
    assert 1 <= measured < outcome.trials == 12


def test_a_worker_that_is_told_to_stop_puts_its_job_back_at_once(
    store: Repository, database: Path
) -> None:
    run_id = Jobs(store).ask([FIRST], H200.key)
    with process([*SLOW, "worker", "--device", "cuda:0", "--trials", 60]) as stopped:
        wait_for_line(stopped, "Working on NVIDIA H200")
        wait_for_rows(database, FIRST.shape)
        asked_at = time.monotonic()
        stopped.send_signal(signal.SIGTERM)
        out, err = stopped.communicate(timeout=30)
        assert time.monotonic() - asked_at < 10
    assert stopped.returncode == 130
    assert "Traceback" not in out + err
    assert "512x512x512 was interrupted and is queued again." in err
    (job,) = Jobs(store).of_run(run_id)
    assert (job.state, job.claims) == ("queued", 0)


def test_a_device_that_breaks_ends_the_worker_and_its_job_is_queued_again(
    cli: Cli, store: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(FakeDevice):
        def screen(self, entrant: Entrant) -> Sampled:
            del entrant
            raise DeviceUnavailable("the GPU fell off the bus.")

    Jobs(store).ask([FIRST], H200.key)
    use_fake(monkeypatch, Faults(), device=Broken())
    for _ in range(3):
        ended = cli("worker", "--device", "cuda:0", "--once")
        assert ended.code == 4
        assert ended.err.endswith("the GPU fell off the bus.\n")
        assert [job.state for job in Jobs(store).unended(9)] == ["queued"]
    # It may be the job, so that it is not tried for ever.
    assert cli("worker", "--device", "cuda:0", "--once").code == 0
    (job,) = Jobs(store).ended(9)
    assert (job.state, job.detail.endswith("the GPU fell off the bus.")) == ("failed", True)


def worker(store: Repository, folder: Path, said: list[str], name: str = "run") -> Worker:
    """One that measures with a fake device, in this process."""
    patient = SpoolingRepository(store, folder, said.append)
    return Worker(
        Tools(FakeDevice(), FakeCompiler(), patient, name),
        Jobs(store),
        Leases(store),
        patient,
        Publisher(Generations(store), H200.key, name, patient),
        Budget(trials=4, finalists=2, rounds_hot=6, rounds_cool=6),
        misses=True,
        say=said.append,
    )


def test_of_workers_that_share_a_queue_each_job_is_tuned_by_one(
    store: Repository, tmp_path: Path
) -> None:
    problems = [Problem(GemmShape(64 * m, 256, 512), 132) for m in range(1, 7)]
    Jobs(store).ask(problems[:4], H200.key)
    Misses(store).add({(p, H200.key, "model"): Tally(9, 0.9) for p in problems})
    said: list[str] = []
    workers = [worker(store, tmp_path / str(n), said, f"run-{n}") for n in range(3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda one: one.work(poll_s=None), workers))
    assert states(store) == dict.fromkeys(problems, "tuned")
    assert sum(one.ended["tuned"] for one in workers if one.ended) == 6
    rows = [store.attempts(p, H200.key, sources=["measured"]) for p in problems]
    assert all(len({row.run_id for row in of_problem}) == 1 for of_problem in rows)
    served = Generations(store).current(H200.key)
    assert served is not None
    assert len(served.entries) == 6


def test_the_result_of_a_worker_that_stood_still_does_not_end_anothers_job(
    store: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    Jobs(store).ask([FIRST], H200.key)
    monkeypatch.setattr(Jobs, "end", lambda *_: False)
    late = worker(store, tmp_path, said)
    claimed = Jobs(store).claim(late.leases, H200.key, TOOLCHAIN, "measured")
    assert claimed is not None
    with claimed.lease:
        late.tune(claimed)
    assert any("another worker has the job by now" in line for line in said)


class Slow:
    """Generations that take long to publish, or refuse."""

    def __init__(self) -> None:
        self.published: list[str] = []
        self.refuses = False

    def publish(self, device_key: str, by: str, note: str) -> object:
        if self.refuses:
            raise StoreError(f"others keep publishing for {device_key}.")
        self.published.append(f"{by}: {note}")
        time.sleep(0.05)
        return type("Published", (), {"id": "5eed" * 16, "new": True})


def test_publishing_takes_a_small_share_of_the_time_and_forgets_nothing(
    store: Repository, tmp_path: Path
) -> None:
    slow = Slow()
    patient = SpoolingRepository(store, tmp_path, print)
    publisher = Publisher(slow, H200.key, "w", patient)  # type: ignore[arg-type]
    assert publisher.publish() is None
    publisher.add(FIRST.shape)
    assert publisher.publish() is not None
    for m in range(1, 6):
        publisher.add(GemmShape(m, 8, 8))
        assert publisher.publish() is None
    slow.refuses = True
    with pytest.raises(StoreError):
        publisher.publish(even_if_early=True)
    slow.refuses = False
    assert publisher.publish(even_if_early=True) is not None
    assert publisher.publish(even_if_early=True) is None
    assert slow.published == ["w: tuned 512x512x512", "w: tuned 1x8x8, 2x8x8, 3x8x8 and 2 more"]
