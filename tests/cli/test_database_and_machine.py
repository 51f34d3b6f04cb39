"""`tuner db` and `tuner doctor`: what is wrong, and what to do."""

import json
from functools import partial
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, lines
from tests.device.fake import H200, FakeDevice, Faults
from tuner.cli import doctor
from tuner.errors import DeviceError


def test_upgrade_makes_the_tables_and_then_finds_nothing_to_do(cli: Cli, database: Path) -> None:
    first, second = cli("db", "upgrade"), cli("db", "upgrade")
    assert (first.code, second.code) == (0, 0)
    assert first.out.startswith(f"{database}: schema none -> 0003")
    assert (
        second.out == f"{database} is at schema {first.out.split()[-1].rstrip('.')}, the newest.\n"
    )


def test_sound_database_is_checked_with_its_rows(cli: Cli, database: Path) -> None:
    cli("db", "upgrade")
    ended = cli("db", "check")
    assert ended.code == 0
    assert ended.out.startswith(f"{database}: sound, schema 0003; 0 measurements, ")
    assert json.loads(cli("db", "check", "--json").out)["problems"] == []


def test_check_changes_nothing_and_names_the_problem(cli: Cli, database: Path) -> None:
    ended = cli("db", "check")
    assert (ended.code, ended.out) == (5, "")
    assert ended.err == f"there is no database at {database}; `tuner run` makes one.\n"
    database.parent.mkdir()
    database.write_bytes(b"SQLite format 3\x00" + b"\xff" * 4096)
    damaged = cli("db", "check")
    assert (damaged.code, "is damaged" in damaged.err) == (5, True)
    assert database.read_bytes().endswith(b"\xff")
    assert json.loads(cli("db", "check", "--json").out)["problems"]


def test_url_that_names_no_database_is_refused_with_the_forms_there_are(cli: Cli) -> None:
    for url in ("mysql://root@host/db", "sqlite://", "://"):
        ended = cli("db", "upgrade", "--db", url)
        assert ended.code == 5
        assert "sqlite:///" in ended.err


def test_password_is_not_printed(cli: Cli) -> None:
    ended = cli("db", "check", "--db", "postgresql://u:secret@127.0.0.1:1/none")
    assert ended.code == 5
    assert "127.0.0.1" in ended.err
    assert "secret" not in ended.out + ended.err


@pytest.mark.usefixtures("no_gpu")
def test_doctor_without_a_gpu_finds_the_rest_in_order_and_ends_with_code_4(
    cli: Cli, tmp_path: Path
) -> None:
    ended = cli("doctor")
    assert ended.code == 4
    assert lines(ended.out, "problem  gpu ")[0].count("Use `--device replay`") == 1
    assert "a variant compiled" in lines(ended.out, "ok       compiler ")[0]
    assert f"{tmp_path / 'cache'}: " in lines(ended.out, "ok       cache ")[0]
    assert "none yet at" in lines(ended.out, "note     database ")[0]


class Opens:
    """What a process that opens `cuda:0` finds, and why it opens nothing else."""

    def __init__(self, factory: "partial[object]") -> None:
        (self.index,) = factory.args

    def __enter__(self) -> FakeDevice:
        if self.index > 0:
            raise DeviceError(f"there is no GPU {self.index}; this machine has 1.")
        return FakeDevice(Faults())

    def __exit__(self, *_: object) -> None:
        """Nothing was opened."""


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        (
            1,
            [
                "note     gpu       CUDA shows 1 of 2 GPUs; CUDA_VISIBLE_DEVICES says which",
                "ok       gpu       cuda:0 NVIDIA H200 (sm90-132sm-141gb), driver 580.95, "
                "cuBLAS 13.1.0.3",
            ],
        ),
        (0, ["problem  gpu       CUDA shows 0 of 2 GPUs; CUDA_VISIBLE_DEVICES says which"]),
        (
            2,
            [
                "ok       gpu       cuda:0 NVIDIA H200 (sm90-132sm-141gb), driver 580.95, "
                "cuBLAS 13.1.0.3",
                "problem  gpu       cuda:1: there is no GPU 1; this machine has 1.",
            ],
        ),
    ],
)
def test_doctor_opens_the_gpus_that_cuda_shows_and_says_that_some_are_hidden(
    shown: int, told: list[str], cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.device.cuda.cuda_devices", lambda: [H200, H200])
    monkeypatch.setattr(doctor, "cuda_count", lambda: shown)
    monkeypatch.setattr("tuner.device.process.DeviceProcess", Opens)
    found = cli("doctor").out.splitlines()
    assert [line.rstrip() for line in found if line.split()[1] == "gpu"] == told


@pytest.mark.usefixtures("no_gpu")
def test_doctor_ends_with_code_5_if_the_database_cannot_be_used(cli: Cli, database: Path) -> None:
    database.parent.mkdir()
    database.write_text("not a database")
    ended = cli("doctor", "--json")
    findings = {f["subject"]: f for f in json.loads(ended.out)}
    assert ended.code == 5
    assert findings["database"]["verdict"] == "problem"
    assert "is not a SQLite database" in findings["database"]["told"]


def test_doctor_says_which_cache_cannot_be_written(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    monkeypatch.setenv("TUNER_CACHE_DIR", str(occupied / "cache"))
    ended = cli("doctor")
    assert ended.code == 4
    problem = lines(ended.out, "problem  cache ")[0]
    assert f"{occupied} cannot be written. Set TUNER_CACHE_DIR" in problem


def test_every_extra_that_doctor_names_is_one_of_the_distribution() -> None:
    import tomllib

    project = Path(__file__).parent.parent.parent / "pyproject.toml"
    extras = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
    assert set(doctor.EXTRAS) <= set(extras)
