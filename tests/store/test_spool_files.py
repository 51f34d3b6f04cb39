"""What a process leaves in its spool reaches the database once, and by nobody but the next run."""

import json
from pathlib import Path

import pytest

from tests.device.recordings import recorded_rows, write_recording
from tests.forks import forks
from tests.store.examples import measurement, outcome
from tests.store.outages import away, expected, files, rows, stored
from tests.store.writers import spool_and_die
from tuner.cli.main import main
from tuner.errors import StoreError
from tuner.shape import GemmShape, Problem
from tuner.store import engine as engines
from tuner.store import spool as spools
from tuner.store.engine import open_store
from tuner.store.repository import Repository
from tuner.store.spooling import SpoolingRepository


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "BUSY_TIMEOUT_S", 0.05)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def test_a_process_killed_during_an_outage_leaves_its_rows_to_the_next_run(
    store: Repository, database_url: str, folder: Path, said: list[str]
) -> None:
    with away(database_url):
        dying = forks().Process(target=spool_and_die, args=(store.location, str(folder), 4))
        dying.start()
        dying.join(60)
    assert dying.exitcode == -9
    (name,) = files(folder)
    with (folder / name).open("a") as file:
        file.write('{"measurement": {"digest": "half a li')
    with SpoolingRepository(store, folder, said.append):
        pass
    assert stored(store) == expected(*rows(4))
    assert "wrote 4 results" in said[0]
    assert f"{name}:5: this line cannot be read" in said[1]
    assert files(folder) == [name.replace(".jsonl", ".unreadable")]


def test_an_entry_that_the_database_refuses_stops_no_later_run(
    store: Repository, folder: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = spools.Spool(folder, store.location)
    kept.append(rows(2))
    kept.close()

    def refused(_: object) -> None:
        raise StoreError("it breaks a rule.")

    with monkeypatch.context() as patch:
        patch.setattr(store, "add", refused)
        SpoolingRepository(store, folder, said.append).recover()
    (name,) = files(folder)
    assert said == [f"it breaks a rule. The file was kept as {folder / name}."]
    assert name == kept.path.with_suffix(".unreadable").name
    assert spools.read(folder / name) == (rows(2), [])


def test_the_spool_of_a_living_process_is_left_to_it(
    store: Repository, database_url: str, folder: Path, said: list[str]
) -> None:
    living = SpoolingRepository(store, folder, said.append)
    with away(database_url):
        living.add(rows(2))
    other: list[str] = []
    with SpoolingRepository(store, folder, other.append):
        assert other == []
        assert store.watermark()[0] == 0
    assert len(files(folder)) == 1
    living.close()
    assert stored(store) == expected(*rows(2))


def test_the_spool_of_another_database_is_left_alone(
    store: Repository, database_url: str, folder: Path, tmp_path: Path, said: list[str]
) -> None:
    first = SpoolingRepository(store, folder, said.append)
    with away(database_url):
        first.add(rows(2))
        first.close()
    with (
        open_store(f"sqlite:///{tmp_path / 'another.db'}") as another,
        SpoolingRepository(another, folder, said.append),
    ):
        assert another.watermark()[0] == 0
    assert len(files(folder)) == 1


@pytest.mark.parametrize(
    ("one", "same"),
    [
        ("postgresql+psycopg://me:***@db/tuner", "postgresql+psycopg://you@db:5432/tuner"),
        ("/data/tuner.db", "/data/./x/../tuner.db"),
    ],
)
def test_one_database_has_one_name_whoever_asks(tmp_path: Path, one: str, same: str) -> None:
    def name(location: str) -> str:
        return spools.Spool(tmp_path, location).path.name.partition("-")[0]

    assert name(one) == name(same)
    assert name(one) != name(one + "2")


def test_a_line_that_was_changed_is_not_believed(tmp_path: Path) -> None:
    spool = spools.Spool(tmp_path, "tuner.db")
    spool.append([measurement(), outcome(), spools.RunEnd("run-1", 0)])
    assert spools.read(spool.path) == ([measurement(), outcome(), spools.RunEnd("run-1", 0)], [])
    lines = spool.path.read_text().splitlines()
    spool.close()
    told = json.loads(lines[0])
    told["measurement"]["samples_us"] = "[0.001]"
    spool.path.write_text("\n".join([json.dumps(told), '{"future": {}}', "[]", *lines[1:]]))
    entries, faults = spools.read(spool.path)
    assert entries == [outcome(), spools.RunEnd("run-1", 0)]
    assert "its digest differs" in faults[0]
    assert "future is no kind of entry" in faults[1]
    assert len(faults) == 3


def test_the_next_tuner_run_writes_what_an_earlier_one_had_to_keep(
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "shapes.txt").write_text("512 512 512\n")
    recorded = recorded_rows(Problem(GemmShape(512, 512, 512), sms=132))
    recording = write_recording(tmp_path / "small.jsonl.gz", recorded)
    with open_store(database_url) as store:
        kept = spools.Spool(tmp_path / "cache" / "spool", store.location)
        kept.append(rows(3))
        kept.close()
        run = ["run", "--shapes", str(tmp_path / "shapes.txt"), "--device", f"replay:{recording}"]
        assert main([*run, "--trials", "2", "--db", database_url]) == 0
        assert stored(store) == expected(*rows(3))
    said = capsys.readouterr().err
    assert f"wrote 3 results that an earlier run had kept in {kept.path}." in said
    assert files(tmp_path / "cache" / "spool") == []
