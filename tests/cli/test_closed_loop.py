"""A look-up that misses is counted, tuned by a worker, published, and exact the next time."""

from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

from fastapi.testclient import TestClient

from tests.api.conftest import serving
from tests.cli.conftest import RECORDED, Cli
from tests.device.fake import H200
from tuner.shape import GemmShape, Problem
from tuner.shape_files import parse_shapes
from tuner.store.engine import open_store
from tuner.store.generations import Generations

MISSED, ASKED = RECORDED
TOKEN = "a-token-of-the-tests"


def look_up(client: TestClient, shape: GemmShape) -> Any:
    answer = client.get(
        "/best-config", params={"m": shape.m, "n": shape.n, "k": shape.k, "device": H200.key}
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def eventually(holds: Callable[[], bool]) -> None:
    """The service follows the database within a second or so."""
    deadline = monotonic() + 30
    while not holds():
        assert monotonic() < deadline
        sleep(0.05)


def test_a_miss_and_a_request_are_tuned_by_workers_and_exact_the_next_time(
    database_url: str, cli: Cli, replay: str
) -> None:
    tune = ("worker", "--device", replay, "--db", database_url, "--once", "--trials", 6)
    # A worker that has nothing to do yet makes its device known.
    assert cli(*tune).code == 0
    with serving(database_url, TOKEN) as client:
        eventually(lambda: bool(client.get("/devices").json()["devices"]))
        first = look_up(client, MISSED)
        assert first["match"]["tier"] == "model"
        assert first["confidence"]["expected_regret"]["mean"] > 0
        assert look_up(client, MISSED) == first
        (missed,) = client.get("/misses").json()["misses"]
        assert (missed["m"], missed["n"], missed["k"]) == (MISSED.m, MISSED.n, MISSED.k)
        assert (missed["hits"], missed["tiers"]) == (2, {"model": 2})
        assert missed["predicted_gain_us"] > 0
        listed = client.get("/misses?format=shapes").content
        assert parse_shapes(listed, "misses").shapes == (MISSED,)

        assert cli(*tune, "--misses").code == 0
        eventually(lambda: look_up(client, MISSED)["match"]["tier"] == "exact")
        exact = look_up(client, MISSED)
        assert exact["measurement"]["samples"] > 0
        assert exact["source"] == "replay"
        assert client.get("/misses").json()["misses"] == []

        shapes = [{"m": s.m, "n": s.n, "k": s.k} for s in (ASKED, GemmShape(64, 64, 20))]
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        asked = client.post("/runs", json={"shapes": shapes}, headers=bearer)
        assert (asked.status_code, asked.json()["state"]) == (202, "queued")
        assert cli(*tune).code == 3
        run = client.get(asked.headers["location"], headers=bearer).json()
        assert run["state"] == "done"
        assert [shape["state"] for shape in run["shapes"]] == ["tuned", "unsupported"]
        assert "K to be a multiple of 8" in run["shapes"][1]["detail"]
        eventually(lambda: look_up(client, ASKED)["match"]["tier"] == "exact")
        page = client.get("/").text
        assert f"m={MISSED.m}&amp;n={MISSED.n}" in page
        assert "unsupported" in page
    with open_store(database_url) as store:
        served = Generations(store).current(H200.key)
    assert served is not None
    for shape in RECORDED:
        assert served.find(Problem(shape, H200.sms)) is not None
