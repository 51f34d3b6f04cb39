"""What those who run the service see of it, and what it does not let anybody do."""

import json
import logging
import logging.config
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.api.conftest import TUNED
from tuner.api.app import create_app
from tuner.api.limits import Limits
from tuner.api.logs import log_config
from tuner.api.routes import metrics
from tuner.errors import InvalidSetting

BEST = f"/best-config?m={TUNED.m}&n={TUNED.n}&k={TUNED.k}"
ROUTES = (BEST, BEST.replace("m=", "m=0"), "/best-config", "/nothing", "/snapshot", "/metrics")


@pytest.fixture
def limited(database: Path) -> Iterator[TestClient]:
    limits = Limits(rate="5/minute", body_bytes=200)
    with TestClient(create_app(f"sqlite:///{database}", limits=limits)) as client:
        yield client


@pytest.mark.parametrize("url", ROUTES)
def test_every_response_has_an_id_and_headers_that_keep_browsers_careful(
    client: TestClient, url: str
) -> None:
    headers = client.get(url).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert headers["x-request-id"] != client.get(url).headers["x-request-id"]
    given = client.get(url, headers={"X-Request-ID": "from-a-proxy.1"}).headers
    assert given["x-request-id"] == "from-a-proxy.1"
    unfit = client.get(url, headers={"X-Request-ID": 'a" b'}).headers
    assert unfit["x-request-id"] != 'a" b'


def test_pages_of_other_origins_may_not_read_answers(client: TestClient) -> None:
    response = client.get(BEST, headers={"Origin": "https://example.com"})
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_docs_may_load_what_they_need_and_nothing_else(client: TestClient) -> None:
    policy = client.get("/docs").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "https://cdn.jsdelivr.net" in policy


def test_unexpected_failure_has_an_id_too(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.store.repository.Repository.devices", lambda _: 1 / 0)
    response = client.get("/devices", headers={"X-Request-ID": "seven"})
    assert (response.status_code, response.headers["x-request-id"]) == (500, "seven")
    assert response.headers["x-content-type-options"] == "nosniff"


def test_requests_are_logged_as_json_without_tokens(
    client: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        logging.config.dictConfig(log_config())
        headers = {"X-Request-ID": "seven", "Authorization": "Bearer secret"}
        client.post("/runs", headers=headers, json={"shapes": [{"m": 8, "n": 8, "k": 8}]})
        client.get("/shapes?limit=x", headers=headers)
    finally:
        root.handlers[:], root.level = before
    printed = capsys.readouterr().err
    lines = [json.loads(line) for line in printed.splitlines() if "tuner.api.requests" in line]
    assert [(told["method"], told["path"], told["status"]) for told in lines] == [
        ("POST", "/runs", 403),
        ("GET", "/shapes", 422),
    ]
    for told in lines:
        assert (told["level"], told["request_id"]) == ("INFO", "seven")
        assert told["ms"] > 0
        assert told["time"].startswith("20")
    assert "secret" not in printed


def test_metrics_count_look_ups_by_tier_and_tell_how_old_answers_are(client: TestClient) -> None:
    for url in (BEST, BEST, BEST + "&d=col", "/best-config"):
        client.get(url)
    text = client.get("/metrics").text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(lines['tuner_lookups_total{tier="exact"}']) == 2
    borrowed = sum(float(lines[f'tuner_lookups_total{{tier="{t}"}}']) for t in ("nearest", "model"))
    assert borrowed == 1
    assert float(lines["tuner_database_up"]) == 1
    assert float(lines["tuner_in_step_timestamp_seconds"]) > 1.7e9
    assert float(lines['tuner_answers{device="sm90-132sm-141gb"}']) == 2
    refused = 'http_requests_total{handler="/best-config",method="GET",status="4xx"}'
    assert float(lines[refused]) == 1


def test_numbers_of_a_process_that_died_are_forgotten_when_another_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    kept = {f"gauge_livemin_{os.getpid()}.db", f"counter_{ended.pid}.db"}
    for name in (*kept, f"gauge_livemin_{ended.pid}.db"):
        (tmp_path / name).write_bytes(b"")
    metrics.forget_the_dead()
    assert {file.name for file in tmp_path.iterdir()} == kept


def test_client_that_asks_too_often_waits_but_look_ups_and_health_are_free(
    limited: TestClient,
) -> None:
    statuses = [limited.get("/shapes").status_code for _ in range(7)]
    assert statuses == [200] * 5 + [429] * 2
    refused = limited.get("/devices")
    assert refused.json()["status"] == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    for path in (BEST, BEST + "&d=col", "/healthz", "/readyz", "/metrics"):
        assert limited.get(path).status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_body_that_is_too_long_is_413_whether_it_says_so_or_not(
    limited: TestClient, chunked: bool
) -> None:
    body = b'{"shapes": [' + b" " * 300 + b'{"m": 8, "n": 8, "k": 8}]}'
    content = iter([body[:150], body[150:]]) if chunked else body
    headers = {"Content-Type": "application/json"}
    response = limited.post("/best-configs", content=content, headers=headers)
    assert (response.status_code, response.json()["status"]) == (413, 413)
    assert response.headers["content-type"] == "application/problem+json"


def test_more_requests_at_once_than_fit_are_sent_away_at_once(database: Path) -> None:
    app = create_app(f"sqlite:///{database}", limits=Limits(at_once=0))
    with TestClient(app) as client:
        refused = client.get("/shapes")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert client.get(BEST).status_code == 200
        # Nobody measured this one, so that it would have to be worked out.
        refused = client.get("/best-config?m=33&n=4096&k=4096")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert client.get("/healthz").status_code == 200


def test_rate_limit_of_the_environment_is_understood_or_refused() -> None:
    assert Limits.of(None) == Limits()
    assert Limits.of("10/second").rate == "10/second"
    assert Limits.of("off").rate is None
    with pytest.raises(InvalidSetting, match="TUNER_RATE_LIMIT must be like"):
        Limits.of("fast")
