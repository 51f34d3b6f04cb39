"""The command as a process: signals, terminals, start-up, and the service it starts."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, use_fake
from tests.device.fake import H200, Faults
from tuner import __version__
from tuner.bench import Raced, Terms, Tools, race
from tuner.cli.main import main
from tuner.shape import GemmShape, Problem
from tuner.store.engine import open_store

ROOT = Path(__file__).parent.parent.parent
SLOW = [sys.executable, "-m", "tests.cli.slow_gpu"]
TUNER = [sys.executable, "-c", "import sys; from tuner.cli.main import main; sys.exit(main())"]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


@contextmanager
def process(command: Sequence[object]) -> Iterator["subprocess.Popen[str]"]:
    """Started in the repository; killed if the test leaves it behind."""
    with subprocess.Popen(
        [str(part) for part in command],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def wait_for_line(started: "subprocess.Popen[str]", text: str) -> str:
    """What it said on stderr up to the line that holds `text`."""
    assert started.stderr is not None
    said = ""
    for line in started.stderr:
        said += line
        if text in line:
            return said
    raise AssertionError(f"it ended without saying {text!r}: {said}")


def wait_for_rows(database: Path, shape: GemmShape) -> None:
    """Until an attempt at `shape` is stored."""
    with open_store(f"sqlite:///{database}", create=False) as repository:
        for _ in range(1500):
            if repository.attempts(Problem(shape, 132), H200.key, sources=("measured",)):
                return
            time.sleep(0.02)
    raise AssertionError(f"no attempt at {shape} was stored")


@pytest.mark.usefixtures("fake_gpu")  # of the second run; the first is a process with a slow one
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_run_ends_within_seconds_with_a_summary_and_keeps_its_work(
    number: signal.Signals, cli: Cli, tmp_path: Path, database: Path
) -> None:
    listing = tmp_path / "shapes.txt"
    listing.write_text("512 512 512\n1024 1024 1024\n2048 2048 2048\n")
    run = ["run", "--shapes", listing, "--device", "cuda:0", "--trials", 12]
    with process([*SLOW, *run]) as started:
        wait_for_line(started, "[1/3] 512x512x512 ")
        wait_for_rows(database, GemmShape(1024, 1024, 1024))
        interrupted_at = time.monotonic()
        started.send_signal(number)
        out, err = started.communicate(timeout=30)
        assert time.monotonic() - interrupted_at < 30
    assert started.returncode == 130
    assert "Traceback" not in out + err
    assert "1 shape: 1 tuned;" in out
    assert "Interrupted after 1 of 3 shapes; what was measured is kept." in err
    resumed = cli(*run)
    assert resumed.code == 0
    assert "[1/3] 512x512x512 " in resumed.err
    assert "(tuned before)" in resumed.err.splitlines()[1]
    assert "3 shapes: 3 tuned; attempts: 36 ok." in resumed.out


def test_interrupted_bench_keeps_its_rounds_in_a_file_of_its_own(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing, out = tmp_path / "shapes.txt", tmp_path / "evidence.json"
    listing.write_text("512 512 512\n1024 1024 1024\n")
    use_fake(monkeypatch, Faults())
    assert cli("run", "--shapes", listing, "--device", "cuda:0", "--trials", 3).code == 0
    out.write_text("the evidence of a complete run")

    def race_until_interrupted(problem: Problem, tools: Tools, terms: Terms) -> Raced:
        if problem.shape.m > 512:
            raise KeyboardInterrupt
        return race(problem, tools, terms)

    monkeypatch.setattr("tuner.cli.racing.race", race_until_interrupted)
    ended = cli("bench", "--shapes", listing, "--device", "cuda:0", "--json", out)
    assert ended.code == 130
    assert out.read_text() == "the evidence of a complete run"
    partial = json.loads((tmp_path / "evidence.json.partial").read_text())
    assert [row["m"] for row in partial["rows"]] == [512]


def test_terminal_shows_a_bar_and_keeps_one_line_per_shape(tmp_path: Path, replay: str) -> None:
    listing = tmp_path / "shapes.txt"
    listing.write_text("512 512 512\n")
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        command = [*TUNER, "run", "--shapes", str(listing), "--device", replay]
        started = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(TERM="xterm", COLUMNS="100"),
            stdout=theirs,
            stderr=theirs,
            stdin=theirs,
        )
        os.close(theirs)
        seen = b""
        try:
            while chunk := terminal.read(4096):
                seen += chunk
        except OSError:
            pass  # Linux reports the end of a pseudo-terminal as an error
    assert started.wait(timeout=30) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode())
    assert "━" in text
    assert "[1/1] 512x512x512 " in text
    (row,) = (line for line in text.splitlines() if line.startswith("512x512x512  "))
    assert len(row) <= 100


def test_terminal_that_knows_ascii_only_is_written_to_all_the_same(replay: str) -> None:
    listing = Path(os.environ["TUNER_CACHE_DIR"]).parent / "shapes.txt"
    listing.write_text("512 512 512\n")
    ended = subprocess.run(
        [*TUNER, "run", "--shapes", listing, "--device", replay],
        env=environment(PYTHONIOENCODING="ascii"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, "Traceback" in ended.stderr) == (0, False)
    assert r"7 \xb1" in ended.stdout


def test_help_starts_in_half_a_second_without_the_search_the_database_or_cuda() -> None:
    code = (
        "import sys, contextlib, io\n"
        "from tuner.cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()): main(['--help'])\n"
        "print(*{m.partition('.')[0] for m in sys.modules})"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(ended.stdout.split())
    heavy = {"optuna", "sqlalchemy", "alembic", "fastapi", "uvicorn", "numpy", "cupy", "cuda"}
    assert not loaded & heavy


@pytest.mark.parametrize(
    "command",
    [[], ["run"], ["best"], ["serve"], ["worker"], ["bench"], ["doctor"], ["db"], ["db", "check"]],
)
def test_every_command_explains_itself(command: list[str], cli: Cli) -> None:
    ended = cli(*command, "--help")
    assert (ended.code, ended.err) == (0, "")
    assert " ".join(["tuner", *command]) in ended.out


def test_help_names_every_environment_variable_of_the_command_line(cli: Cli) -> None:
    said = " ".join(cli("--help").out.split())
    assert "TUNER_DATABASE_URL" in said
    assert "TUNER_CACHE_DIR" in said
    assert "TUNER_API_TOKEN" in said


def test_version_is_that_of_the_package(cli: Cli) -> None:
    assert cli("--version").out == f"gemm-tuner {__version__}\n"


def test_missing_package_is_named_with_the_extra_that_brings_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    ended = cli("serve")
    assert (ended.code, ended.err) == (
        2,
        "`tuner serve` needs the package uvicorn, which is not installed. "
        "Install gemm-tuner[api].\n",
    )


def test_plain_install_says_which_extra_brings_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "tuner.cli.app", raising=False)
    monkeypatch.setitem(sys.modules, "typer", None)
    assert main(["--version"]) == 2
    assert "The command line needs the package typer" in capsys.readouterr().err


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_service_answers_from_the_database_and_ends_on_sigterm(cli: Cli, replay: str) -> None:
    listing = Path(os.environ["TUNER_CACHE_DIR"]).parent / "shapes.txt"
    listing.write_text("512 512 512\n")
    assert cli("run", "--shapes", listing, "--device", replay).code == 0
    port = free_port()
    with process([*TUNER, "serve", "--port", port]) as started:
        wait_for_line(started, "Uvicorn running on")
        url = f"http://127.0.0.1:{port}/best-config?m=512&n=512&k=512"
        with urllib.request.urlopen(url, timeout=10) as answer:
            body = json.load(answer)
        started.send_signal(signal.SIGTERM)
        out, err = started.communicate(timeout=20)
    assert body["shape"] == {"m": 512, "n": 512, "k": 512}
    assert started.returncode == 0
    assert "Traceback" not in out + err


def test_address_that_is_taken_is_refused_with_the_way_out(cli: Cli) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = cli("serve", "--port", port)
    assert ended.code == 2
    assert ended.err.startswith(f"127.0.0.1:{port} cannot be listened on: Address already in use.")
