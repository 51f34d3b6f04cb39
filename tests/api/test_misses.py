"""What was missed is counted in memory, survives an outage, and can be read as a shape file."""

from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.api.conftest import KEY, TUNED, serving
from tuner.api import miss_counter
from tuner.api.miss_counter import MissCounter
from tuner.errors import StoreUnavailable
from tuner.lookup.cost_model import H200
from tuner.shape import GemmShape, Problem
from tuner.shape_files import parse_shapes
from tuner.store.engine import open_store
from tuner.store.misses import Misses
from tuner.store.repository import Repository

SMALL, LARGE = Problem(GemmShape(48, 64, 64), 132), Problem(GemmShape(8192, 8192, 8192), 132)
ASKED = {"m": 96, "n": 512, "k": 512}
COLUMNS = Problem(GemmShape(256, 256, 256), 132, d="col")


@pytest.fixture
def store(database: Path) -> Iterator[Repository]:
    with open_store(f"sqlite:///{database}") as repository:
        yield repository


def counter_of(client: TestClient) -> MissCounter:
    app: Any = client.app
    assert isinstance(app, FastAPI)
    counter: MissCounter = app.state.misses
    return counter


def test_misses_are_listed_by_what_tuning_them_would_save(client: TestClient) -> None:
    count = counter_of(client).count
    for _ in range(3):
        count(SMALL, KEY, "nearest", 0.02)
    count(LARGE, KEY, "model", 0.2)
    count(LARGE, KEY, "none")
    count(COLUMNS, KEY, "sibling")
    count(Problem(GemmShape(64, 64, 20), 132), KEY, "none")  # K = 20: no kernel can run it
    most = 2**31 - 8
    count(Problem(GemmShape(most, most, most), 132), KEY, "none")  # and this no card can hold
    body = client.get("/misses?limit=2").json()
    assert [(s["m"], s["d"], s["hits"], s["tiers"]) for s in body["misses"]] == [
        (8192, "row", 2, {"model": 1, "none": 1}),
        (48, "row", 3, {"nearest": 3}),
    ]
    # 0.2 + the 0.1 that is assumed where nobody says, of the roofline's time and a launch.
    us = 2 * 8192**3 / (132 * 4096 * H200.clock_mhz) + 3
    assert body["misses"][0]["predicted_gain_us"] == pytest.approx(0.3 * us, abs=1e-3)
    assert body["next_offset"] == 2
    last = client.get("/misses?limit=2&offset=2").json()
    assert [s["m"] for s in last["misses"]] == [256]
    assert last["next_offset"] is None


def test_misses_are_a_shape_file_that_a_run_reads(client: TestClient) -> None:
    count = counter_of(client).count
    for problem in (SMALL, LARGE, COLUMNS, Problem(GemmShape(16, 64, 64), 60)):
        count(problem, KEY, "nearest")
    answer = client.get("/misses?format=shapes")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert parse_shapes(answer.content, "misses").shapes == (LARGE.shape, SMALL.shape)
    columns = client.get("/misses?format=shapes&d=col")
    assert parse_shapes(columns.content, "misses").shapes == (COLUMNS.shape,)
    assert "tuner run --d col --shapes FILE" in columns.text


def test_misses_of_a_part_that_nobody_tuned_on_are_listed_too(client: TestClient) -> None:
    part = "sm90-114sm-80gb"
    assert client.get("/best-config", params=ASKED | {"device": part}).status_code == 200
    listed = client.get("/misses", params={"device": part}).json()
    assert listed["device"] == {"key": part, "name": part}
    assert [(one["m"], one["sms"], one["hits"]) for one in listed["misses"]] == [(96, 114, 1)]


def test_a_store_without_devices_has_no_misses(empty_client: TestClient) -> None:
    assert empty_client.get("/misses").json() == {
        "device": None,
        "misses": [],
        "next_offset": None,
    }
    assert parse_shapes(empty_client.get("/misses?format=shapes").content, "misses").shapes == ()


@pytest.mark.parametrize("query", ["limit=0", "offset=x", "format=csv", "x=1", "d=row&d=col"])
def test_bad_queries_are_422_and_other_devices_404(client: TestClient, query: str) -> None:
    assert client.get(f"/misses?{query}").status_code == 422
    assert client.get("/misses?device=h100").json()["state"] == "unknown_device"


def test_counts_are_flushed_in_the_background_and_the_rest_at_the_end(store: Repository) -> None:
    counter = MissCounter(lambda: store, every_s=0.01)
    with counter:
        counter.count(SMALL, KEY, "nearest")
        deadline = monotonic() + 20
        while Misses(store).totals(KEY) != (1, 1):
            assert monotonic() < deadline
            sleep(0.01)
    slow = MissCounter(lambda: store, every_s=3600)
    with slow:
        slow.count(SMALL, KEY, "nearest")
        assert Misses(store).totals(KEY) == (1, 1)
    assert Misses(store).totals(KEY) == (1, 2)


def test_counts_outlive_an_outage_and_are_not_doubled(
    store: Repository, caplog: pytest.LogCaptureFixture
) -> None:
    away = True

    def opened() -> Repository:
        if away:
            counter.count(SMALL, KEY, "nearest")  # while it is tried
            raise StoreUnavailable("the database is gone.")
        return store

    counter = MissCounter(opened, every_s=3600)
    counter.count(SMALL, KEY, "nearest")
    counter.count(LARGE, KEY, "model")
    with pytest.raises(StoreUnavailable):
        counter.flush()
    with counter:
        pass
    assert "kept in memory: the database is gone." in caplog.text
    away = False
    counter.flush()
    counter.flush()
    assert {r.problem: r.hits for r in Misses(store).ranked(KEY, 9)} == {SMALL: 3, LARGE: 1}


def test_a_scan_of_shapes_is_bounded_in_memory(
    store: Repository, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(miss_counter, "MOST_PROBLEMS", 3)
    counter = MissCounter(lambda: store)
    for m in range(1, 8):
        counter.count(Problem(GemmShape(m, 64, 64), 132), KEY, "model")
    counter.flush()
    assert Misses(store).totals(KEY) == (3, 3)
    assert "4 missed look-ups were not counted" in caplog.text


def test_a_service_that_stops_leaves_its_counts_in_the_store(database: Path) -> None:
    with serving(f"sqlite:///{database}") as client:
        counter_of(client).count(SMALL, KEY, "nearest")
        counter_of(client).count(Problem(TUNED, 132), KEY, "nearest")
    with open_store(f"sqlite:///{database}") as store:
        # TUNED is tuned by now, so that it is no miss any more.
        assert [r.problem for r in Misses(store).ranked(KEY, 9)] == [SMALL]
