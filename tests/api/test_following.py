"""Answers follow the database, and stay when it is gone."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import psycopg
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import make_url

from tests.api.conftest import (
    FAILED,
    KEY,
    LOST,
    NAME,
    SMS,
    TOOLCHAIN,
    TUNED,
    fill,
    outcome,
    race,
    serving,
)
from tuner.api import reader
from tuner.api.app import create_app
from tuner.errors import StoreError
from tuner.shape import GemmShape, Problem
from tuner.store.engine import open_store
from tuner.store.generations import Generations
from tuner.store.repository import Repository
from tuner.trial import PROTOCOL_COOL, PROTOCOL_HOT, ShapeState, Toolchain

BEST = "/best-config?m=4096&n=4096&k=4096"
NEW = GemmShape(4096, 2048, 4096)
ASKED_NEW = f"/best-config?m={NEW.m}&n={NEW.n}&k={NEW.k}"
EIGHT = replace(NEW, m=8)
ASKED_EIGHT = f"/best-config?m=8&n={NEW.n}&k={NEW.k}"
UNMEASURED = ("nearest", "model")


@pytest.fixture(autouse=True)
def _retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "RETRY_S", 0.0)


def eventually(holds: Callable[[], object], seconds: float = 10.0) -> None:
    """Waits for what takes two looks at the database."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def tier(client: TestClient, url: str) -> str:
    return str(client.get(url).raise_for_status().json()["match"]["tier"])


def ready(client: TestClient) -> bool:
    return client.get("/readyz").status_code == 200


def assert_served_from_memory(client: TestClient, told: str) -> None:
    """The database is gone: the answers are there, and /readyz says how old they are."""
    eventually(lambda: not ready(client))
    assert client.get(BEST).status_code == 200
    assert tier(client, ASKED_NEW) in UNMEASURED
    assert client.get(f"{ASKED_NEW}&match=exact").json()["state"] == "never_tuned"
    problem = client.get("/readyz").json()
    assert (problem["status"], problem["database"]) == (503, "unavailable")
    assert 0 <= problem["snapshot_age_s"] < 60
    assert told in problem["detail"]
    assert client.get("/healthz").status_code == 200
    assert client.get("/devices").status_code == 503


@pytest.mark.parametrize("shape", [TUNED, LOST])
@pytest.mark.parametrize(
    ("protocol", "spelled"),
    [(None, ""), (PROTOCOL_HOT, "graph-coldl2-hot/1"), (PROTOCOL_COOL, "graph-coldl2-cool%2F1")],
)
def test_measured_answers_are_byte_for_byte_those_of_the_store_however_they_are_asked_for(
    client: TestClient, database: Path, shape: GemmShape, protocol: str | None, spelled: str
) -> None:
    with open_store(f"sqlite:///{database}") as repository:
        answer = repository.best(Problem(shape, SMS), KEY, protocol)
    assert answer is not None
    told = json.dumps(answer.to_json(), separators=(",", ":"), ensure_ascii=False)
    url = f"/best-config?m={shape.m}&n={shape.n}&k={shape.k}"
    url += f"&protocol={spelled}" if protocol else ""
    # Spelled so that the ordinary route answers; then plainly, and once more.
    for spelling in (url.replace("m=", "m=0"), url, url):
        assert client.get(spelling).text == told


def test_new_measurement_and_new_failure_are_seen_while_serving(
    client: TestClient, database: Path
) -> None:
    assert tier(client, ASKED_NEW) in UNMEASURED
    with open_store(f"sqlite:///{database}") as repository:
        repository.add(race(NEW, 150.0, 160.0, KEY, NAME))
        repository.finish_shape(outcome(EIGHT, ShapeState.NO_VALID_CONFIG, KEY, NAME, ""))
        eventually(lambda: tier(client, ASKED_NEW) == "exact")
        eventually(lambda: client.get(ASKED_EIGHT).status_code == 404)
        repository.add(race(FAILED, 5.0, 6.0, KEY, NAME))
        eventually(lambda: client.get("/best-config?m=64&n=64&k=64").status_code == 200)


def test_unmeasured_answer_is_kept_for_a_while_and_then_worked_out_anew_beside_those_who_ask(
    client: TestClient, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.api.prepared.BORROWED_S", 0.2)
    before = client.get(f"{ASKED_NEW}&d=col").json()
    assert before["match"]["tier"] in UNMEASURED
    nearer = replace(NEW, m=NEW.n, n=NEW.m + 64)
    with open_store(f"sqlite:///{database}") as repository:
        repository.add(race(nearer, 150.0, 160.0, KEY, NAME))
    eventually(lambda: client.get(f"{ASKED_NEW}&d=col").json() != before)
    assert sum(client.get("/misses").json()["misses"][0]["tiers"].values()) >= 3


def test_database_deleted_while_serving_is_not_made_anew_and_the_new_one_is_served(
    client: TestClient, database: Path
) -> None:
    other = database.with_name("other.db")
    with open_store(f"sqlite:///{other}") as repository:
        fill(repository, "sm90-114sm-80gb", "NVIDIA H100 PCIe")
    for path in database.parent.glob("tuner.db*"):
        path.unlink()
    assert_served_from_memory(client, str(database))
    assert not database.exists()
    other.rename(database)
    eventually(lambda: client.get(BEST).json().get("device", {}).get("key") == "sm90-114sm-80gb")
    assert ready(client)


def test_database_damaged_while_serving_is_left_as_it_is(
    client: TestClient, database: Path
) -> None:
    damaged = b"\xff" * database.stat().st_size
    for path in database.parent.glob("tuner.db*"):
        path.unlink()
    database.write_bytes(damaged)
    assert_served_from_memory(client, str(database))
    assert database.read_bytes() == damaged


def test_pages_overwritten_in_place_are_never_served_as_an_answer_or_a_500(
    client: TestClient, database: Path
) -> None:
    size = database.stat().st_size
    with database.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    assert client.get("/shapes").status_code in (200, 503)
    assert client.get(BEST).status_code == 200


def test_postgres_serves_the_same_answer_and_may_go_and_come_back(
    database: Path, postgres_database_url: str, postgres_url: str
) -> None:
    with open_store(postgres_database_url) as repository:
        fill(repository)
    with serving(f"sqlite:///{database}") as client:
        from_sqlite = client.get(BEST).json()
    name = str(make_url(postgres_database_url).database)
    with serving(postgres_database_url) as client:
        served = client.get(BEST).json()
        assert {**served, "measured_at": None} == {**from_sqlite, "measured_at": None}
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false".encode())
            admin.execute(
                b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
            )
            assert_served_from_memory(client, name)
            admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true".encode())
        eventually(lambda: ready(client))
        with open_store(postgres_database_url) as repository:
            repository.add(race(NEW, 150.0, 160.0, KEY, NAME))
        eventually(lambda: tier(client, ASKED_NEW) == "exact")


def test_until_all_is_read_measured_answers_come_from_the_database(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Event()
    read = Repository.counted_races

    def waits(*asked: Any) -> object:
        held.wait(10)
        return read(*asked)

    monkeypatch.setattr(Repository, "counted_races", waits)
    monkeypatch.setattr("tuner.api.app.FIRST_VIEW_S", 0.0)
    with serving(f"sqlite:///{database}") as client:
        try:
            assert tier(client, BEST) == "exact"
            assert client.get("/best-config?m=64&n=64&k=64").json()["state"] == "no_valid_config"
            assert client.get("/best-config?m=8&n=8&k=8&device=NVIDIA").status_code == 404
            assert tier(client, ASKED_NEW) in UNMEASURED
            problem = client.get("/readyz").json()
            assert (problem["database"], "still being read" in problem["detail"]) == ("ok", True)
        finally:
            held.set()
        eventually(lambda: ready(client))
        assert tier(client, ASKED_NEW) in UNMEASURED


@pytest.mark.parametrize(
    ("kernel_hash", "stale"), [(None, False), (TOOLCHAIN.kernel_hash, False), ("another", True)]
)
def test_answers_for_another_kernel_than_the_current_one_are_stale(
    database: Path, kernel_hash: str | None, stale: bool
) -> None:
    app = create_app(f"sqlite:///{database}", kernel_hash=kernel_hash)
    with TestClient(app) as client:
        assert client.get(BEST).json()["stale"] is stale
        assert client.get(f"{ASKED_NEW}&d=col").json()["stale"] is stale


def test_answers_made_with_an_older_compiler_turn_stale_when_a_newer_one_is_seen(
    database: Path,
) -> None:
    kernel = TOOLCHAIN.kernel_hash
    with (
        TestClient(create_app(f"sqlite:///{database}", kernel_hash=kernel)) as client,
        open_store(f"sqlite:///{database}") as repository,
    ):
        rows = race(NEW, 150.0, 160.0, KEY, NAME)
        repository.add([replace(row, toolchain=Toolchain(kernel, "13.0.100")) for row in rows])
        eventually(lambda: client.get(BEST).json()["stale"])
        assert not client.get(ASKED_NEW).json()["stale"]
        rows = race(EIGHT, 25.0, 26.0, KEY, NAME)
        repository.add([replace(row, toolchain=Toolchain(kernel, "13.0.9")) for row in rows])
        eventually(lambda: tier(client, ASKED_EIGHT) == "exact")
        assert client.get(ASKED_EIGHT).json()["stale"]


def test_problem_that_cannot_be_read_keeps_no_other_from_being_served_and_is_tried_again(
    client: TestClient, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Repository.counted_races

    def fails(store: Repository, asked: Problem, *rest: Any) -> object:
        return 1 / 0 if asked.shape == NEW else read(store, asked, *rest)

    monkeypatch.setattr("tuner.api.follower.AFTER_A_FAULT_S", 0.05)
    with monkeypatch.context() as patch, open_store(f"sqlite:///{database}") as repository:
        patch.setattr(Repository, "counted_races", fails)
        repository.add(race(NEW, 150.0, 160.0, KEY, NAME) + race(EIGHT, 25.0, 26.0, KEY, NAME))
        eventually(lambda: tier(client, ASKED_EIGHT) == "exact")
        assert tier(client, ASKED_NEW) in UNMEASURED
        assert ready(client)
    eventually(lambda: tier(client, ASKED_NEW) == "exact")


def test_fault_that_nobody_foresaw_ends_neither_the_follower_nor_the_service(
    client: TestClient, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.api.follower.AFTER_A_FAULT_S", 0.05)
    with monkeypatch.context() as patch, open_store(f"sqlite:///{database}") as repository:
        patch.setattr("tuner.store.changes.ChangeFeed.look", lambda *_: 1 / 0)
        repository.add(race(NEW, 150.0, 160.0, KEY, NAME))
        time.sleep(0.3)
        assert tier(client, BEST) == "exact"
        assert tier(client, ASKED_NEW) in UNMEASURED
    eventually(lambda: tier(client, ASKED_NEW) == "exact")


def test_generation_that_is_damaged_keeps_no_answer_from_being_served(
    database: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_: object) -> None:
        raise StoreError("the generation is damaged.")

    monkeypatch.setattr(Generations, "current", damaged)
    with serving(f"sqlite:///{database}") as client:
        assert ready(client)
        assert tier(client, BEST) == "exact"
        assert client.get("/snapshot").json()["state"] == "never_published"
    assert "is damaged" in caplog.text


def test_database_that_does_not_answer_at_all_is_told_by_readyz(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Event()
    monkeypatch.setattr("tuner.store.changes.ChangeFeed.look", lambda *_: answers.wait(10) or 1 / 0)
    monkeypatch.setattr("tuner.api.follower.SILENCE_S", 0.1)
    try:
        eventually(lambda: not ready(client))
        problem = client.get("/readyz").json()
        assert "has not answered for" in problem["detail"]
        assert problem["snapshot_age_s"] > 0
        assert tier(client, BEST) == "exact"
    finally:
        answers.set()
