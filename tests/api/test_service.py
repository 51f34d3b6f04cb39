"""The service keeps running when its store does not, documents itself, and lists what it has."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Semaphore
from typing import NoReturn

import pytest
from fastapi.testclient import TestClient

from tests.api.conftest import KEY, NAME, serving
from tuner.api import app as app_module
from tuner.api import reader
from tuner.api.app import create_app
from tuner.api.limits import UNLIMITED
from tuner.errors import StoreError
from tuner.store.engine import open_store
from tuner.store.repository import Repository

BEST = "/best-config?m=4096&n=4096&k=4096"


@pytest.fixture(autouse=True)
def _retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "RETRY_S", 0.0)


def assert_unavailable(client: TestClient, path: str = BEST) -> str:
    response = client.get(path)
    assert response.status_code == 503, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert int(response.headers["retry-after"]) > 0
    assert "Traceback" not in response.text
    return str(response.json()["detail"])


@pytest.mark.parametrize("url", ["postgresql://nobody@127.0.0.1:1/none", "sqlite:///:memory:"])
def test_store_that_cannot_be_opened_is_503_and_the_service_stays_alive(url: str) -> None:
    with serving(url) as client:
        assert_unavailable(client)
        assert client.get("/healthz").json()["status"] == "ok"


def test_store_that_takes_long_to_open_keeps_nobody_from_asking_for_the_health(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, answers = 40, Event()  # as many as the service has
    waiting = Semaphore(0)
    of_store = reader.StoreHandle.repository

    def counted(handle: reader.StoreHandle) -> Repository:
        waiting.release()
        return of_store(handle)

    def waits(url: str, create: bool) -> NoReturn:
        assert answers.wait(30)
        raise StoreError(f"{url} does not answer (create={create}).")

    monkeypatch.setattr(reader.StoreHandle, "repository", counted)
    monkeypatch.setattr(reader, "open_store", waits)
    monkeypatch.setattr(reader, "RETRY_S", 60.0)
    monkeypatch.setattr(app_module, "FIRST_VIEW_S", 0.0)
    app = create_app(f"sqlite:///{tmp_path / 'slow.db'}")
    with TestClient(app) as client, ThreadPoolExecutor(threads + 3) as pool:
        try:
            asked = [pool.submit(client.get, BEST) for _ in range(threads + 1)]
            assert all(waiting.acquire(timeout=10) for _ in range(threads))
            healthy = pool.submit(client.get, "/healthz").result(timeout=10)
            assert (healthy.status_code, healthy.json()["status"]) == (200, "ok")
            pool.submit(app.state.store.forget).result(timeout=10)
            assert not any(response.done() for response in asked)
        finally:
            answers.set()
        assert {response.result().status_code for response in asked} == {503}


def test_failed_opening_answers_those_behind_it_without_trying_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "RETRY_S", 60.0)
    opened: list[str] = []

    def counted(url: str, create: bool) -> object:
        opened.append(url)
        return open_store(url, create)

    monkeypatch.setattr(reader, "open_store", counted)
    with serving(f"sqlite:///{tmp_path}") as client:
        assert {client.get(BEST).status_code for _ in range(5)} == {503}
    assert len(opened) == 1


def test_hundred_requests_at_once_are_all_answered(client: TestClient) -> None:
    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(lambda _: client.get(BEST).status_code, range(100)))
    assert statuses == [200] * 100


def test_unexpected_failure_is_a_500_problem_without_its_traceback(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr("tuner.store.repository.Repository.devices", broken)
    response = client.get("/devices")
    assert response.status_code == 500
    assert response.headers["content-type"] == "application/problem+json"
    assert "secret" not in response.text


def test_devices_lists_key_name_multiprocessors_and_tuned_shapes(client: TestClient) -> None:
    listed = client.get("/devices").json()
    assert listed == {"devices": [{"key": KEY, "name": NAME, "sms": 132, "shapes": 2}]}


def test_shapes_are_listed_in_pages_with_how_tuning_ended(client: TestClient) -> None:
    first = client.get("/shapes?limit=3").json()
    assert [(s["m"], s["state"]) for s in first["shapes"]] == [
        (64, "no_valid_config"),
        (512, "tuned"),
        (4096, "tuned"),
    ]
    assert first["next_offset"] == 3
    last = client.get("/shapes?limit=3&offset=3").json()
    assert [(s["m"], s["state"]) for s in last["shapes"]] == [(2**31 - 1, "does_not_fit")]
    assert last["next_offset"] is None
    assert client.get("/shapes?device=other").json()["state"] == "unknown_device"


def test_trials_of_a_shape_are_listed_newest_first_with_races_and_failures(
    client: TestClient,
) -> None:
    asked = "/trials?m=4096&n=4096&k=4096"
    body = client.get(asked).json()
    assert body["device"] == {"key": KEY, "name": NAME}
    assert body["shape"] == {"m": 4096, "n": 4096, "k": 4096}
    found = body["trials"]
    assert {row["contender"] for row in found} >= {"kernel", "cublas"}
    times = [row["measured_at"] for row in found]
    assert times == sorted(times, reverse=True)
    best = client.get(BEST).json()
    raced = [row["median_us"] for row in found if row["config"] == best["config"] and row["race"]]
    assert raced
    for limit in (1, 3):
        pages, offset = [], 0
        while offset is not None:
            page = client.get(f"{asked}&limit={limit}&offset={offset}").json()
            assert len(page["trials"]) <= limit
            pages += page["trials"]
            offset = page["next_offset"]
        assert pages == found
    assert client.get("/trials?m=8&n=8&k=16").json()["trials"] == []
    assert client.get(f"{asked}&sms=60").json()["trials"] == []
    assert client.get(f"{asked}&device=other").json()["state"] == "unknown_device"


def test_openapi_documents_every_status_parameter_range_and_choice(client: TestClient) -> None:
    described = client.get("/openapi.json").json()
    paths = {"/best-config", "/shapes", "/trials", "/devices", "/misses", "/runs", "/healthz"}
    assert paths <= set(described["paths"])
    best = described["paths"]["/best-config"]["get"]
    assert set(best["responses"]) == {"200", "400", "404", "422", "503"}
    for path, operations in described["paths"].items():
        for operation in operations.values():
            statuses = set(operation["responses"])
            assert path in UNLIMITED or {"429", "503"} <= statuses, path
    for status in ("400", "404", "422", "503"):
        content = best["responses"][status]["content"]
        assert list(content) == ["application/problem+json"]
        assert "state" in content["application/problem+json"]["schema"]["properties"]
    parameters = {p["name"]: p for p in best["parameters"]}
    assert [name for name, p in parameters.items() if p["required"]] == ["m", "n", "k"]
    assert set(parameters) - {"m", "n", "k"} == {
        *("dtype", "layout", "d", "device", "sms", "protocol", "numerics", "launch", "match"),
    }
    for name in "mnk":
        schema = parameters[name]["schema"]
        assert (schema["type"], schema["minimum"], schema["maximum"]) == ("integer", 1, 2**31 - 1)
    assert parameters["d"]["schema"]["enum"] == ["row", "col"]
    config = described["components"]["schemas"]["Config"]["properties"]
    assert {"block_m", "stages", "raster", "num_sms"} <= set(config)


def test_docs_page_is_served(client: TestClient) -> None:
    assert client.get("/docs").headers["content-type"].startswith("text/html")


def test_real_server_process_answers_from_the_environment_and_survives_bad_bytes(
    database: Path,
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        f"{sys.executable} -m uvicorn --factory tuner.api.app:from_environment "
        f"--port {port} --log-level warning".split(),
        env={**os.environ, "TUNER_DATABASE_URL": f"sqlite:///{database}"},
    )
    try:
        assert fetched(port, BEST) == 200
        with socket.create_connection(("127.0.0.1", port), timeout=5) as raw:
            raw.sendall(b"GET /best-config?m=\xff\xfe&n=1&k=1 HTTP/1.1\r\nHost: x\r\n\r\n")
            assert raw.recv(100).split()[1] in (b"400", b"422")
        assert fetched(port, "/best-config?m=" + "9" * 5000 + "&n=1&k=1") == 422
        assert fetched(port, BEST) == 200
    finally:
        server.terminate()
        server.wait(timeout=10)


def fetched(port: int, path: str) -> int:
    """Status of a GET; waits for the server to listen."""
    deadline = time.monotonic() + 20
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
                return int(response.status)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
