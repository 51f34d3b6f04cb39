"""Runs are asked for with the token only, and can be followed by whoever knows their id."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.api.conftest import KEY, SMS, TOOLCHAIN, serving
from tuner.store.engine import open_store
from tuner.store.jobs import Jobs
from tuner.store.leases import Leases

TOKEN = "a-token-of-the-tests"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
SHAPE = {"m": 64, "n": 128, "k": 256}


@pytest.fixture
def asking(database: Path) -> Iterator[TestClient]:
    with serving(f"sqlite:///{database}", TOKEN) as client:
        yield client


def test_a_run_is_queued_and_followed_to_its_end(asking: TestClient, database: Path) -> None:
    body = {"shapes": [SHAPE, {"m": 1, "n": 1, "k": 20}, SHAPE], "d": "col", "sms": 60}
    asked = asking.post("/runs", json=body, headers=BEARER)
    assert asked.status_code == 202
    where = asked.headers["location"]
    assert where == f"/runs/{asked.json()['id']}"
    assert asked.json() == asking.get(where, headers=BEARER).json()
    assert (asked.json()["state"], asked.json()["device"]) == ("queued", KEY)
    told = [{k: s[k] for k in ("m", "d", "sms", "state")} for s in asked.json()["shapes"]]
    queued = {"d": "col", "sms": 60, "state": "queued"}
    assert told == [{"m": 64, **queued}, {"m": 1, **queued}]
    with open_store(f"sqlite:///{database}") as store:
        for state, detail in (("tuned", ""), ("unsupported", "K must be a multiple of 8.")):
            claimed = Jobs(store).claim(Leases(store), KEY, TOOLCHAIN, "measured")
            assert claimed is not None
            now = asking.get(where, headers=BEARER).json()
            assert (now["state"], now["counts"]["running"]) == ("running", 1)
            with claimed.lease:
                Jobs(store).end(claimed, state, detail)
    ended = asking.get(where, headers=BEARER).json()
    assert (ended["state"], ended["counts"]) == ("done", {"tuned": 1, "unsupported": 1})
    assert ended["shapes"][1]["detail"] == "K must be a multiple of 8."
    assert ended["shapes"][1]["ended_at"] is not None


def test_all_multiprocessors_are_used_where_none_are_named(asking: TestClient) -> None:
    (shape,) = asking.post("/runs", json={"shapes": [SHAPE]}, headers=BEARER).json()["shapes"]
    assert (shape["sms"], shape["d"]) == (SMS, "row")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer"},
        {"Authorization": b"Bearer \xe9\xff"},
        {"X-Token": TOKEN},
    ],
)
def test_without_the_token_nothing_is_queued_and_the_token_is_not_told(
    asking: TestClient, database: Path, given: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    refused = asking.post("/runs", json={"shapes": [SHAPE]}, headers=given)
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert refused.headers["content-type"] == "application/problem+json"
    assert TOKEN not in refused.text + caplog.text
    with open_store(f"sqlite:///{database}") as store:
        assert Jobs(store).unended(9) == []


def test_a_service_without_a_token_takes_no_runs_and_says_why(client: TestClient) -> None:
    for headers in ({}, BEARER, {"Authorization": "Bearer "}):
        refused = client.post("/runs", json={"shapes": [SHAPE]}, headers=headers)
        assert refused.status_code == 403
        assert "Set TUNER_API_TOKEN where it runs" in refused.json()["detail"]


MANY = [SHAPE] * 1001
BAD = {
    "no body": b"",
    "no JSON": b"{",
    "not UTF-8": b"\xff\xfe",
    "a list": [],
    "no shapes": {},
    "empty": {"shapes": []},
    "too many": {"shapes": MANY},
    "no list": {"shapes": {"m": 1}},
    "no K": {"shapes": [{"m": 1, "n": 1}]},
    "text": {"shapes": [{**SHAPE, "m": "64"}]},
    "a fraction": {"shapes": [{**SHAPE, "m": 64.5}]},
    "true": {"shapes": [{**SHAPE, "m": True}]},
    "null": {"shapes": [{**SHAPE, "m": None}]},
    "zero": {"shapes": [{**SHAPE, "m": 0}]},
    "beyond 32 bits": {"shapes": [{**SHAPE, "m": 2**31}]},
    "beyond 64 bits": {"shapes": [{**SHAPE, "m": 2**63}]},
    "a fourth extent": {"shapes": [{**SHAPE, "b": 2}]},
    "another field": {"shapes": [SHAPE], "trials": 5},
    "another order": {"shapes": [SHAPE], "d": "diagonal"},
    "too many multiprocessors": {"shapes": [SHAPE], "sms": SMS + 1},
    "a device of another type": {"shapes": [SHAPE], "device": 5},
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
def test_what_is_not_understood_is_422_with_a_sentence_and_queues_nothing(
    asking: TestClient, database: Path, body: Any
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {**BEARER, "Content-Type": "application/json"}
    refused = asking.post("/runs", content=content, headers=headers)
    assert refused.status_code == 422, refused.text
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["detail"].endswith(".")
    assert len(refused.text) < 1500
    with open_store(f"sqlite:///{database}") as store:
        assert Jobs(store).unended(9) == []


def test_unknown_devices_and_runs_are_404(asking: TestClient, tmp_path: Path) -> None:
    other = asking.post("/runs", json={"shapes": [SHAPE], "device": "h100"}, headers=BEARER)
    assert (other.status_code, other.json()["state"]) == (404, "unknown_device")
    with serving(f"sqlite:///{tmp_path / 'empty.db'}", TOKEN) as empty:
        none = empty.post("/runs", json={"shapes": [SHAPE]}, headers=BEARER)
        assert none.status_code == 404
        assert "Start `tuner worker`" in none.json()["detail"]
        for run_id in ("x", "\N{SNOWMAN}", "0" * 32, "a" * 4000, "%00"):
            assert empty.get(f"/runs/{run_id}", headers=BEARER).status_code == 404
            assert empty.get(f"/runs/{run_id}").status_code == 401
