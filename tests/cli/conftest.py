"""Runs commands as a shell would: arguments in, exit code and both streams out."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.device.fake import H200, FakeCompiler, FakeDevice, Faults
from tests.device.recordings import recorded_rows, write_recording
from tuner.cli import opening
from tuner.cli.main import main
from tuner.errors import DeviceError
from tuner.shape import GemmShape, Problem
from tuner.store.engine import locate

RECORDED = (GemmShape(512, 512, 512), GemmShape(2560, 4096, 1024))
"""Shapes of the recording that tests replay."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


Cli = Callable[..., Ended]


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the user's database, cache or terminal."""
    monkeypatch.setenv("TUNER_DATABASE_URL", f"sqlite:///{tmp_path / 'data' / 'tuner.db'}")
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Where the database is, once a command has made it."""
    return tmp_path / "data" / "tuner.db"


def unheard(*arguments: object) -> None:
    """Run a command that succeeds, for what it leaves in a database."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        assert main([str(argument) for argument in arguments]) == 0


def place(url: str, database: Path) -> None:
    """Put a database where commands look for it."""
    found = locate(url).path
    assert found is not None
    database.parent.mkdir()
    found.rename(database)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run one command; every test so proves that it left no traceback."""

    def run(*arguments: object) -> Ended:
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Ended(code, out, err)

    return run


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of RECORDED on an H200."""
    rows = [row for shape in RECORDED for row in recorded_rows(Problem(shape, sms=H200.sms))]
    return write_recording(tmp_path_factory.mktemp("recording") / "small.jsonl.gz", rows)


@pytest.fixture
def replay(recording: Path) -> str:
    """What `--device` takes for the recording."""
    return f"replay:{recording}"


@pytest.fixture
def shape_file(tmp_path: Path) -> Callable[[str], Path]:
    """Write a shape file."""

    def write(text: str) -> Path:
        path = tmp_path / "shapes.txt"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a driver, wherever the tests run."""

    def none() -> list[Any]:
        raise DeviceError("no NVIDIA driver answers here (not found).")

    monkeypatch.setattr("tuner.device.cuda.cuda_devices", none)


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """`--device cuda:0` is a fake that measures without a GPU."""
    faults = Faults(memory_bytes=2**40)
    use_fake(monkeypatch, faults)
    return faults


def use_fake(
    monkeypatch: pytest.MonkeyPatch,
    faults: Faults,
    compiler: FakeCompiler | None = None,
    device: FakeDevice | None = None,
) -> None:
    """Make `device`, or one with `faults`, what `--device cuda:0` opens."""

    @contextmanager
    def opened(*_: object) -> Iterator[opening.Opened]:
        yield opening.Opened(device or FakeDevice(faults), compiler or FakeCompiler(), "measured")

    monkeypatch.setattr(opening, "opened", opened)


def lines(text: str, start: str) -> Sequence[str]:
    return [line for line in text.splitlines() if line.startswith(start)]
