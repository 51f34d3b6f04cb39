"""Several `tuner run` on one list: each shape is tuned once, whatever becomes of the others."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.device.fake import H200, TOOLCHAIN
from tests.store.drivers import BUDGET, SHAPES
from tests.store.outages import away
from tuner.store.engine import open_store
from tuner.store.repository import Repository

ROOT = Path(__file__).parent.parent.parent


@contextmanager
def driver(
    url: str, folder: Path, name: str, lease_s: float = 30.0
) -> Iterator["subprocess.Popen[str]"]:
    arguments = [url, str(lease_s), str(folder / name)]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.store.drivers", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def wait_for(started: "subprocess.Popen[str]", event: str) -> None:
    assert started.stdout is not None
    for line in started.stdout:
        if line.startswith(event):
            return
    raise AssertionError(f"it ended without {event}")


def results(started: "subprocess.Popen[str]") -> tuple[list[list[object]], str]:
    """The outcomes it printed last, and everything it said."""
    out, err = started.communicate(timeout=90)
    assert started.returncode == 0, err
    assert err == ""
    return json.loads(out.splitlines()[-1]), out


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
            found = [results(process) for process in started]
        assert screened(store) == [BUDGET.trials] * len(SHAPES)
        with store.transaction(writes=False) as connection:
            counted = connection.exec_driver_sql("SELECT count(*) FROM shape_outcomes").scalar()
            assert counted == len(SHAPES)
            assert connection.exec_driver_sql("SELECT count(*) FROM leases").scalar() == 0
    # Every driver reports every shape, and all agree on who tuned it.
    assert all(outcomes == found[0][0] for outcomes, _ in found)
    assert [outcome[1:] for outcome in found[0][0]] == [["tuned", BUDGET.trials]] * len(SHAPES)


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
            killed.kill()
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
        assert {Path(str(name)).name for name, *_ in late} == {"other"}
        (line,) = [line for line in said.splitlines() if line.startswith("Remark")]
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
            time.sleep(1.5)
        outcomes, said = results(alone)
    assert [outcome[1:] for outcome in outcomes] == [["tuned", BUDGET.trials]] * len(SHAPES)
    assert "the database is back; wrote " in said
    with open_store(postgres_database_url) as store:
        assert screened(store) == [BUDGET.trials] * len(SHAPES)
        for problem in SHAPES:
            assert store.best(problem, H200.key) is not None
    assert list((tmp_path / "alone.spool").glob("*")) == []
