"""`tuner publish`, `tuner generations`, and `tuner db prune`, `backup` and `failures`."""

import json
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.store.examples import CUBLAS, DEVICE_KEY, kernel, measurement, race
from tuner.store.engine import open_store
from tuner.trial import TrialState

TIMES = {CUBLAS: [200.0] * 8, kernel(): [150.0] * 8}
FASTER = {CUBLAS: [200.0] * 8, kernel(256): [120.0] * 8}


@pytest.fixture
def store_url(database: Path) -> str:
    url = f"sqlite:///{database}"
    with open_store(url) as store:
        store.add(race("r", TIMES))
    return url


def add(url: str, *rows: object) -> None:
    with open_store(url) as store:
        store.add(rows)  # type: ignore[arg-type]


def test_publish_diff_and_roll_back(cli: Cli, store_url: str) -> None:
    first = json.loads(cli("publish", "--note", "first", "--json").out)
    assert (first["device_key"], first["entries"], first["new"]) == (DEVICE_KEY, 1, True)
    again = cli("publish")
    assert again.out == f"{DEVICE_KEY} serves {first['id']} already: 1 shape.\n"
    add(store_url, *race("s", FASTER))
    second = json.loads(cli("publish", "--json").out)
    assert second["before"] == first["id"] != second["id"]
    diff = cli("generations", "diff", first["id"][:10], second["id"][:10])
    assert diff.out.splitlines() == [
        "changed     4096x2112x72 (bf16 tn, d=row, 132 SMs): "
        "kernel 128x128 1.333 -> kernel 128x256 1.667",
        "1 shape of 1 differ.",
    ]
    back = cli("generations", "rollback", first["id"][:8], "--reason", "slow in service")
    assert back.out == (
        f"{DEVICE_KEY} serves {first['id']}: 1 shape, before {second['id'][:16]}.\n"
    )
    listed = json.loads(cli("generations", "list", "--json").out)
    assert {g["id"]: (g["current"], g["note"]) for g in listed} == {
        first["id"]: (True, "first"),
        second["id"]: (False, ""),
    }


@pytest.mark.usefixtures("store_url")
def test_what_is_shown_has_the_hash_it_is_named_by(cli: Cli) -> None:
    id = json.loads(cli("publish", "--json").out)["id"]
    body = cli("generations", "show", id[:6]).out
    assert sha256(body.encode()).hexdigest() == id
    table = cli("generations", "list").out
    assert f"*  {id[:16]}" in table


@pytest.mark.usefixtures("store_url")
def test_unknown_generations_and_nothing_published_are_sentences(cli: Cli) -> None:
    assert cli("generations", "list").out.startswith("Nothing was published yet")
    unknown = cli("generations", "rollback", "beefbeef")
    assert (unknown.code, "has no generation 'beefbeef'" in unknown.err) == (5, True)
    other = cli("publish", "--device", "h100")
    assert (other.code, DEVICE_KEY in other.err) == (2, True)


def test_prune_says_what_it_removes_and_a_dry_run_only_says_it(cli: Cli, store_url: str) -> None:
    old = datetime.now(UTC) - timedelta(days=100)
    add(store_url, *(measurement(measured_at=old, detail=str(n)) for n in range(4)))
    add(store_url, measurement(state=TrialState.CRASHED, samples_us=(), measured_at=old))
    add(store_url, measurement(measured_at=datetime.now(UTC)))
    said = cli("db", "prune", "--older-than", "90d", "--dry-run")
    assert said.code == 0
    assert "4 screenings, 0 rows of races, 0 outcomes and 0 runs from before" in said.out
    assert "would be removed. Kept of that age: " in said.out
    assert json.loads(cli("db", "check", "--json").out)["rows"]["measurements"] == 8
    done = json.loads(cli("db", "prune", "--older-than", "90d", "--json").out)
    assert (done["removed"]["screenings"], done["kept"]["failures"]) == (4, 1)
    checked = json.loads(cli("db", "check", "--json").out)
    assert (checked["rows"]["measurements"], checked["problems"]) == (4, [])


@pytest.mark.usefixtures("store_url")
@pytest.mark.parametrize("age", ["", "90", "0d", "-3d", "d", "1e3d", "99999y", "٣d", "90d90d"])
def test_an_age_that_is_none_is_refused_before_anything_is_removed(cli: Cli, age: str) -> None:
    ended = cli("db", "prune", "--older-than", age)
    assert ended.code == 2
    assert "--older-than" in ended.err


@pytest.mark.usefixtures("store_url")
def test_a_backup_is_a_database(cli: Cli, tmp_path: Path) -> None:
    ended = cli("db", "backup", tmp_path / "copy.db")
    assert ended.code == 0
    assert ended.out.startswith(f"{tmp_path / 'copy.db'}: the whole database, ")
    assert cli("db", "check", "--db", tmp_path / "copy.db").code == 0


def test_failures_are_listed_by_variant(cli: Cli, store_url: str) -> None:
    assert cli("db", "failures").out == "No attempt failed.\n"
    for state in (TrialState.TIMEOUT, TrialState.WRONG_RESULT):
        add(store_url, measurement(state=state, samples_us=(), detail=f"it was {state}"))
    shown = cli("db", "failures", "--device", "NVIDIA H200")
    assert "timeout" in shown.out
    assert "128x128 s4 2 cooperative c1x1" in shown.out
    found = json.loads(cli("db", "failures", "--json", "--kernel", "5eed").out)
    assert [(f["state"], f["attempts"], f["variant"]["block_n"]) for f in found] == [
        ("timeout", 1, 128),
        ("wrong_result", 1, 128),
    ]
    assert json.loads(cli("db", "failures", "--json", "--kernel", "other").out) == []
