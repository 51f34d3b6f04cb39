"""`tuner serve` as processes: they agree, they follow, and they end in order."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.api.conftest import KEY, NAME, race
from tests.api.test_following import ASKED_NEW, BEST, NEW
from tuner.store.engine import open_store

Process = subprocess.Popen[bytes]
COMMAND = "import sys; from tuner.cli.main import main; sys.exit(main())"


@contextmanager
def served(
    database: Path, log: Path, *options: str
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    line = [sys.executable, "-c", COMMAND, "serve", "--port", str(port), *options]
    environ = {**os.environ, "TUNER_DATABASE_URL": f"sqlite:///{database}"}
    with log.open("wb") as output:
        process = subprocess.Popen(line, env=environ, stderr=output)
    try:
        deadline = time.monotonic() + 60
        while asked(port, "/readyz")[0] != 200:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield process, port
    finally:
        process.terminate()
        process.wait(30)


def asked(port: int, path: str) -> tuple[int, str, str]:
    """Status, body, and which process answered; a connection of its own for each request."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            process = answer.headers["x-request-id"].partition("-")[0]
            return answer.status, answer.read().decode(), process
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, "", refused.headers["x-request-id"].partition("-")[0]
    except OSError:
        return 0, "", ""


def test_new_measurement_is_served_by_every_process_without_a_restart(
    database: Path, tmp_path: Path
) -> None:
    with served(database, tmp_path / "log", "--workers", "2") as (process, port):
        deadline = time.monotonic() + 60
        processes: set[str] = set()
        while len(processes) < 2:
            assert time.monotonic() < deadline
            processes.add(asked(port, BEST)[2])
        with open_store(f"sqlite:///{database}") as repository:
            repository.add(race(NEW, 150.0, 160.0, KEY, NAME))
        stored = time.monotonic()
        exact: set[str] = set()
        while exact != processes:
            status, _, by = asked(port, f"{ASKED_NEW}&match=exact")
            exact |= {by} if status == 200 else set()
            assert time.monotonic() < stored + 30, (exact, processes)
        # One process tells Prometheus what all of them did.
        lookups = sum(asked(port, BEST)[0] == 200 for _ in range(20))
        told = asked(port, "/metrics")[1].splitlines()
        count = next(line for line in told if line.startswith('tuner_lookups_total{tier="exact"}'))
        assert float(count.split()[-1]) >= lookups + 2
        assert "tuner_database_up 1.0" in told
        process.terminate()
        assert process.wait(30) == -signal.SIGTERM or process.returncode in (0, 130, 143)


def test_server_that_is_stopped_answers_what_it_has_begun_and_logs_json(
    database: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with (
        served(database, log) as (process, port),
        socket.create_connection(("127.0.0.1", port), timeout=20) as begun,
    ):
        # A body that is still on its way when the stop comes.
        body = b'{"shapes": [{"m": 4096, "n": 4096, "k": 4096}]}'
        head = f"POST /best-configs HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        begun.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body[:5])
        time.sleep(0.3)
        process.terminate()
        time.sleep(0.3)
        begun.sendall(body[5:])
        assert begun.recv(100).split()[1] == b"200"
        process.wait(30)
    lines = log.read_text().splitlines()
    assert lines[0].startswith("Serving ")
    told = [json.loads(line) for line in lines[1:] if line.startswith("{")]
    assert {"uvicorn.error", "tuner.api.requests"} <= {one["logger"] for one in told}
    assert not [line for line in lines if "Traceback" in line]


def test_server_with_a_rate_limit_that_is_not_understood_does_not_start(database: Path) -> None:
    settings = {"TUNER_RATE_LIMIT": "fast", "TUNER_DATABASE_URL": f"sqlite:///{database}"}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "serve"],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "TUNER_RATE_LIMIT must be like" in done.stderr


def test_256_programs_that_ask_at_the_same_second_are_answered_or_told_to_come_again(
    database: Path, tmp_path: Path
) -> None:
    unknown = [f"/best-config?m={m}&n=4096&k=4096" for m in range(3000, 3128)]
    with (
        served(database, tmp_path / "log") as (_, port),
        ThreadPoolExecutor(256) as pool,
    ):
        answers = list(pool.map(lambda path: asked(port, path), [BEST, *unknown[:-1], *unknown]))
    statuses = Counter(status for status, _, _ in answers)
    assert set(statuses) <= {200, 503}
    assert answers[0][0] == 200
    assert statuses[200] >= 200


def test_an_unknown_shape_has_one_answer_for_every_program_that_asks(
    database: Path, tmp_path: Path
) -> None:
    ask = (
        "import sys, urllib.request as u; "
        "sys.stdout.write(u.urlopen(sys.argv[1], timeout=20).read().decode())"
    )
    with served(database, tmp_path / "log", "--workers", "2") as (_, port):
        url = f"http://127.0.0.1:{port}/best-config?m=77&n=4096&k=4096"
        line = [sys.executable, "-c", ask, url]
        programs = [subprocess.Popen(line, stdout=subprocess.PIPE) for _ in range(8)]
        bodies = {program.communicate(timeout=60)[0] for program in programs}
        deadline = time.monotonic() + 20
        while True:  # every process of the server has written down what it counted
            missed = json.loads(asked(port, "/misses")[1])["misses"]
            if [one["hits"] for one in missed] == [8] or time.monotonic() > deadline:
                break
            time.sleep(0.2)
    (body,) = bodies
    assert json.loads(body)["match"]["tier"] in ("nearest", "model")
    assert [(one["m"], one["hits"]) for one in missed] == [(77, 8)]
