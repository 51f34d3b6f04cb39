"""Whatever a server does, the client has an answer, and says where it comes from."""

import socket
from collections.abc import Callable
from pathlib import Path
from threading import Event
from time import sleep

import pytest

from benchmarks import bad_servers
from benchmarks.bad_servers import (
    behaving,
    behaviours,
    refusing,
    response,
    sending,
    silent,
    snapshot_response,
    swallowing,
)
from tests.client.conftest import Client
from tests.lookup.measured import H200
from tuner.client import sources
from tuner.lookup.snapshot import Snapshot

Ship = Callable[[Snapshot], None]
TUNED = (4096, 4096, 4096)
BAD = (
    *("silent", "drips headers", "drips the body", "endless headers", "endless body"),
    *("closes at once", "no HTTP", "HTML", "HTML, 404", "problem, 404", "redirects to itself"),
    *("redirects without saying where", "500", "503", "304 of what nobody has", "cut off"),
    *("not what the ETag says", "damaged gzip", "gzip bomb", "empty", "other JSON", "nested JSON"),
    "another device",
)


HANGING = ("silent", "drips headers", "drips the body", "endless headers", "endless body")


@pytest.fixture
def bad(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> dict[str, bad_servers.Behaviour]:
    monkeypatch.setattr(bad_servers, "BOMB_BYTES", 2**22)
    monkeypatch.setattr("tuner.client.told.MOST_BYTES", 2**21)
    monkeypatch.setattr("tuner.client.fetch.MOST_PACKED_BYTES", 2**21)
    return dict(behaviours(snapshot.body))


def test_every_bad_server_is_tried(bad: dict[str, bad_servers.Behaviour]) -> None:
    assert set(BAD) == set(bad)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_server_leaves_the_shipped_snapshot_and_one_reason(
    name: str,
    client: Client,
    ships: Ship,
    newer: Snapshot,
    bad: dict[str, bad_servers.Behaviour],
) -> None:
    ships(newer)
    patience_s = 0.3 if name in HANGING else 20.0
    with behaving(bad[name]) as server:
        configs = client(H200, patience_s, api_url=server.url)
        best = configs.best_config(*TUNED)
        assert (best.source, best.tier, best.generation) == ("shipped", "exact", newer.id)
        (problem,) = configs.problems
        assert problem.startswith(server.url)
        # Nor does the next process wait for it.
        assert client(H200, api_url=server.url).problems == configs.problems
        assert server.requests <= 1


@pytest.mark.parametrize("name", ["silent", "HTML", "500", "cut off", "closes at once"])
def test_a_server_that_turns_bad_leaves_what_it_served_last(
    name: str,
    client: Client,
    ships: Ship,
    snapshot: Snapshot,
    newer: Snapshot,
    bad: dict[str, bad_servers.Behaviour],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ships(newer)
    turned: list[str] = []

    def serve(connected: socket.socket, ended: Event) -> None:
        content = sending(snapshot_response(snapshot.body))
        (bad[name] if turned else content)(connected, ended)

    with behaving(serve) as server:
        assert client(H200, api_url=server.url).source == "server"
        turned.append("bad")
        monkeypatch.setattr(sources, "FRESH_S", 0.0)
        configs = client(H200, 0.3 if name in HANGING else 20.0, api_url=server.url)
        best = configs.best_config(*TUNED)
        assert (best.source, best.generation) == ("cache", snapshot.id)
        assert len(configs.problems) == 1


def test_nobody_at_the_port_and_packets_that_are_swallowed_leave_the_shipped_snapshot(
    impatient: Client, ships: Ship, snapshot: Snapshot
) -> None:
    ships(snapshot)
    for nobody in (refusing, swallowing):
        with nobody() as server:
            configs = impatient(api_url=server.url)
            assert configs.best_config(*TUNED).source == "shipped"
            assert "did not answer" in " ".join(configs.problems)


def test_a_name_that_is_never_resolved_holds_nobody_up(
    impatient: Client, ships: Ship, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    ships(snapshot)
    resolving: list[object] = []

    def never(*asked: object, **_: object) -> list[object]:
        resolving.append(asked)
        while resolving:
            sleep(0.01)
        raise OSError("the test is over")

    monkeypatch.setattr(socket, "getaddrinfo", never)
    configs = impatient(api_url="http://tuner.example")
    assert configs.best_config(*TUNED).source == "shipped"
    assert configs.problems == ("http://tuner.example did not answer in time.",)
    assert resolving  # it still goes on
    resolving.clear()


def test_a_silent_server_is_still_silent_when_the_answer_is_there(
    impatient: Client, ships: Ship, snapshot: Snapshot
) -> None:
    ships(snapshot)
    ends: list[str] = []

    def say_nothing(connected: socket.socket, ended: Event) -> None:
        silent(connected, ended)
        ends.append("ended")

    with behaving(say_nothing) as server:
        assert impatient(api_url=server.url).best_config(*TUNED).source == "shipped"
        assert ends == []


def test_without_anything_the_callers_default_is_used_and_the_reason_told(
    impatient: Client,
) -> None:
    with refusing() as server:
        configs = impatient(H200, api_url=server.url)
        own = {"block_m": 128}
        best = configs.best_config(64, 64, 20, default=own)
        assert (best.source, best.tier, best.use, best.config) == ("default", "none", "kernel", own)
        assert "K to be a multiple of 8" in best.reason
        none = configs.best_config(64, 64, 20)
        assert (none.config, none.use, none.answer, none.generation) == (None, "cublas", None, None)
    unknown = impatient()
    best = unknown.best_config(*TUNED, default=own)
    assert (best.source, best.config) == ("default", own)
    assert best.reason == "no device is named, and the package ships configs of none."


def test_a_good_server_is_asked_once_a_minute_by_all_and_then_with_the_id_they_have(
    client: Client, snapshot: Snapshot, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[bytes] = []

    def serve(connected: socket.socket, _: object) -> None:
        heard.append(connected.recv(65536))
        known = snapshot.id.encode() in heard[-1]
        connected.sendall(response(304) if known else snapshot_response(snapshot.body))

    with behaving(serve) as server:
        for _ in range(3):
            configs = client(H200, api_url=server.url)
            best = configs.best_config(*TUNED)
            assert (best.source, best.generation) == ("server", snapshot.id)
            assert (configs.problems, configs.summary()) == ((), "")
        assert len(heard) == 1
        assert heard[0].startswith(f"GET /snapshot?device={H200} HTTP/1.1\r\n".encode())
        assert b"Accept-Encoding: gzip\r\n" in heard[0]
        monkeypatch.setattr(sources, "FRESH_S", 0.0)
        assert client(H200, api_url=f"{server.url}/").source == "server"
        assert len(heard) == 2
        assert f'If-None-Match: "{snapshot.id}"'.encode() in heard[1]
    assert (cache / f"{snapshot.id}.lines.gz").exists()


def test_offline_means_no_request_at_all(client: Client, ships: Ship, snapshot: Snapshot) -> None:
    ships(snapshot)
    with behaving(silent) as server:
        for value in ("1", "true", "yes"):
            configs = client(api_url=server.url, offline=value)
            assert (configs.source, configs.problems) == ("shipped", ())
        assert server.requests == 0


def test_an_answer_that_comes_too_late_for_one_program_serves_the_next(
    impatient: Client, client: Client, ships: Ship, snapshot: Snapshot, newer: Snapshot, cache: Path
) -> None:
    ships(newer)
    waited_for, released = Event(), Event()

    def late(connected: socket.socket, ended: Event) -> None:
        waited_for.set()
        released.wait()
        sending(snapshot_response(snapshot.body))(connected, ended)

    with behaving(late) as server:
        assert impatient(H200, api_url=server.url).source == "shipped"
        assert waited_for.wait(30)
        released.set()
        while client(H200, api_url=server.url).source != "server":
            sleep(0.02)
        assert client(H200, api_url=server.url).generation == snapshot.id
        assert server.requests == 1
    assert list(cache.glob(f"{snapshot.id}.lines.gz"))
