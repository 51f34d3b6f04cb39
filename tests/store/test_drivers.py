"""Several `tuner run` on one list: each shape is tuned once, whatever becomes of the others."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.device.fake import H200, TOOLCHAIN
from tests.forks import forks
from tests.store.drivers import BUDGET, SHAPES, drive
from tests.store.outages import away
from tuner.store.engine import open_store
from tuner.store.repository import Repository

Outcomes = list[tuple[str, str, int]]


@dataclass(frozen=True)
class Driver:
    """A driver's process, what it tells, and the file of what it writes to stderr."""

    process: ForkServerProcess
    told: Connection
    stderr: Path

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def next(self) -> str | Outcomes:
        assert self.told.poll(90)
        try:
            told: str | Outcomes = self.told.recv()
        except EOFError:
            raise AssertionError(f"it ended: {self.stderr.read_text()}") from None
        return told


@contextmanager
def driver(url: str, folder: Path, name: str, lease_s: float = 30.0) -> Iterator[Driver]:
    context = forks()
    told, telling = context.Pipe(duplex=False)
    process = context.Process(target=drive, args=(url, lease_s, str(folder / name), telling))
    process.start()
    telling.close()
    with told:
        try:
            yield Driver(process, told, folder / f"{name}.stderr")
        finally:
            process.kill()
            process.join()


def wait_for(started: Driver, text: str) -> None:
    while text not in started.next():
        pass


def results(started: Driver) -> tuple[Outcomes, list[str]]:
    """Who tuned each shape, how it ended and after how many trials; and everything it said."""
    said: list[str] = []
    while isinstance(told := started.next(), str):
        said.append(told)
    started.process.join(90)
    assert started.process.exitcode == 0
    assert started.stderr.read_text() == ""
    return told, said


def screened(store: Repository) -> list[int]:
    """Attempts at every shape, each counted once."""
    rows = [store.attempts(p, H200.key, sources=["measured"]) for p in SHAPES]
    return [sum(row.race is None for row in of_shape) for of_shape in rows]


def test_four_drivers_of_one_list_tune_each_shape_once_and_none_dies(
    database_url: str, tmp_path: Path
) -> None:
    with open_store(database_url) as store:
        with ExitStack() as stack:
            started = [
                stack.enter_context(driver(database_url, tmp_path, f"driver-{number}"))
                for number in range(4)
            ]
            found = [results(each) for each in started]
        assert screened(store) == [BUDGET.trials] * len(SHAPES)
        with store.transaction(writes=False) as connection:
            counted = connection.exec_driver_sql("SELECT count(*) FROM shape_outcomes").scalar()
            assert counted == len(SHAPES)
            assert connection.exec_driver_sql("SELECT count(*) FROM leases").scalar() == 0
    # Every driver reports every shape, and all agree on who tuned it.
    assert all(outcomes == found[0][0] for outcomes, _ in found)
    assert [outcome[1:] for outcome in found[0][0]] == [("tuned", BUDGET.trials)] * len(SHAPES)


def test_the_shape_of_a_driver_that_was_killed_goes_to_the_other_at_once(
    database_url: str, tmp_path: Path
) -> None:
    with (
        driver(database_url, tmp_path, "killed", lease_s=600) as killed,
        open_store(database_url) as store,
    ):
        wait_for(killed, "TrialDone")
        with driver(database_url, tmp_path, "other", lease_s=600) as other:
            wait_for(other, "ShapeEnded")
            killed.process.kill()
            outcomes, _ = results(other)
        assert len(outcomes) == len(SHAPES)
        assert screened(store) == [BUDGET.trials] * len(SHAPES)


def test_a_driver_stopped_for_longer_than_its_lease_goes_on_and_its_late_result_is_dropped(
    database_url: str, tmp_path: Path
) -> None:
    with (
        driver(database_url, tmp_path, "stopped", lease_s=0.5) as stopped,
        open_store(database_url) as store,
    ):
        wait_for(stopped, "TrialDone")
        os.kill(stopped.pid, signal.SIGSTOP)
        with driver(database_url, tmp_path, "other") as other:
            theirs, _ = results(other)
        os.kill(stopped.pid, signal.SIGCONT)
        late, said = results(stopped)
        assert late == theirs
        assert {name for name, *_ in late} == {"other"}
        (line,) = [line for line in said if line.startswith("Remark")]
        assert line == (
            "Remark 16x512x1024: this driver stood still for too long and another ended it; that "
            "result counts, and the measurements of both are kept."
        )
        rows = store.attempts(SHAPES[0], H200.key, sources=["measured"])
        finals = Counter(Path(row.run_id).name for row in rows if row.race is not None)
        # Rows count whenever they come; the shape is counted once.
        assert set(finals) == {"other", "stopped"}
        assert [device.shapes for device in store.devices()] == [len(SHAPES)]
        stored = store.outcome(SHAPES[0], H200.key, TOOLCHAIN, "measured")
        assert stored is not None
        assert Path(stored.run_id).name == "other"


def test_a_driver_whose_database_goes_away_in_mid_run_loses_no_row_and_tunes_every_shape(
    postgres_database_url: str, tmp_path: Path
) -> None:
    with driver(postgres_database_url, tmp_path, "alone") as alone:
        wait_for(alone, "TrialDone")
        with away(postgres_database_url):
            wait_for(alone, "until it is back")
        outcomes, said = results(alone)
    assert [outcome[1:] for outcome in outcomes] == [("tuned", BUDGET.trials)] * len(SHAPES)
    assert any(line.startswith("the database is back; wrote ") for line in said)
    with open_store(postgres_database_url) as store:
        assert screened(store) == [BUDGET.trials] * len(SHAPES)
        for problem in SHAPES:
            assert store.best(problem, H200.key) is not None
    assert list((tmp_path / "alone.spool").glob("*")) == []
