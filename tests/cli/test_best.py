"""`tuner best`: the service's answer, or why there is none."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.api.conftest import CONFIG, KEY, NAME, TUNED, fill, outcome, race
from tests.cli.conftest import Cli, place, unheard, use_fake
from tests.databases import Databases
from tests.device.fake import H200, Faults
from tuner.shape import GemmShape, Problem
from tuner.store.engine import open_store
from tuner.trial import ShapeState

Write = Callable[[str], Path]


@pytest.fixture
def tuned(sqlite_databases: Databases, recording: Path, tmp_path: Path, database: Path) -> None:
    """The database as a run over both shapes of the recording left it."""

    def run(url: str) -> None:
        listing = tmp_path / "both.txt"
        listing.write_text("512 512 512\n2560 4096 1024\n")
        unheard("run", "--shapes", listing, "--device", f"replay:{recording}", "--db", url)

    place(sqlite_databases.like("replayed", run), database)


@pytest.mark.usefixtures("tuned")
def test_json_is_the_answer_of_the_store(cli: Cli, database: Path) -> None:
    ended = cli("best", 2560, 4096, 1024, "--json")
    problem = Problem(GemmShape(2560, 4096, 1024), sms=132)
    with open_store(f"sqlite:///{database}", create=False) as repository:
        answer = repository.best(problem, H200.key)
    assert answer is not None
    assert (ended.code, json.loads(ended.out)) == (0, answer.to_json())


@pytest.mark.usefixtures("tuned")
def test_json_is_what_the_service_answers(cli: Cli, database: Path) -> None:
    from fastapi.testclient import TestClient

    from tuner.api.app import create_app

    with TestClient(create_app(f"sqlite:///{database}")) as client:
        served = client.get("/best-config?m=2560&n=4096&k=1024").json()
    assert json.loads(cli("best", "2560x4096x1024", "--json").out) == served


@pytest.mark.usefixtures("tuned")
def test_text_says_how_sure_it_is_and_what_to_use(cli: Cli) -> None:
    ended = cli("best", 512, 512, 512)
    assert ended.code == 0
    said = {line.split()[0]: line for line in ended.out.splitlines()}
    assert "512x512x512 bf16, d=row, 132 SMs" in said["shape"]
    assert "NVIDIA H200 (sm90-132sm-141gb)" in said["device"]
    for protocol in ("graph-coldl2-hot/1", "graph-coldl2-cool/1"):
        assert "TFLOP/s (7 ±" in said[protocol]
        assert "x cuBLAS (" in said[protocol]
        assert "x cuBLASLt best" in said[protocol]
    assert said["use"].split()[1].rstrip(":,") in ("kernel", "cublas", "cublaslt")
    assert "kernel kernel-hash-1, NVRTC 13.0.88" in said["replay"]


@pytest.mark.usefixtures("tuned")
@pytest.mark.parametrize(
    "shape", [["512", "512", "512"], ["512x512x512"], ["512,512,512"], ["512", "512x512"]]
)
def test_shape_may_be_written_as_in_a_shape_file(shape: list[str], cli: Cli) -> None:
    assert "512x512x512 bf16" in cli("best", *shape).out


@pytest.mark.usefixtures("tuned")
def test_one_protocol_can_be_asked_for(cli: Cli) -> None:
    body = json.loads(cli("best", 512, 512, 512, "--protocol", "cool", "--json").out)
    assert body["measurement"]["protocol"] == "graph-coldl2-cool/1"


def test_plain_launches_can_be_asked_for(cli: Cli, database: Path) -> None:
    dependent = replace(CONFIG, knobs=replace(CONFIG.knobs, dependent_launch=True))
    with open_store(f"sqlite:///{database}") as repository:
        fill(repository)
        repository.add(race(TUNED, 180.0, 220.0, KEY, NAME, dependent))
        only = GemmShape(4096, 4096, 64)
        repository.add(race(only, 180.0, 220.0, KEY, NAME, dependent))
        repository.finish_shape(outcome(only, ShapeState.TUNED, KEY, NAME, ""))
    assert json.loads(cli("best", TUNED, "--json").out)["config"] == dependent.to_dict()
    assert ", dependent launch" in cli("best", TUNED).out
    plain = cli("best", TUNED, "--plain", "--json")
    assert (plain.code, json.loads(plain.out)["config"]) == (0, CONFIG.to_dict())
    none = cli("best", only, "--plain")
    assert none.code == 3
    assert "no config that was raced is launched plainly. Ask without that." in none.err


@pytest.mark.usefixtures("tuned")
def test_shape_that_was_never_tuned_ends_with_code_3_and_the_command_that_tunes_it(
    cli: Cli,
) -> None:
    ended = cli("best", 64, 64, 64)
    assert (ended.code, ended.out) == (3, "")
    assert ended.err == (
        "64x64x64 (d=row, 132 SMs) on NVIDIA H200 has no stored config. Tune it with `tuner run`.\n"
    )
    body = json.loads(cli("best", 64, 64, 64, "--json").out)
    assert body["state"] == "never_tuned"


@pytest.mark.usefixtures("tuned")
def test_shape_the_kernel_cannot_run_is_unsupported_with_the_rule(cli: Cli) -> None:
    body = json.loads(cli("best", 7168, 2048, 103, "--json").out)
    assert body["state"] == "unsupported"
    assert "K to be a multiple of 8" in body["detail"]


@pytest.mark.usefixtures("tuned")
@pytest.mark.parametrize(
    "name", ["NVIDIA H200", "NVIDIA_H200", "nvidia h200", "sm90-132sm-141gb", "replay"]
)
def test_device_may_be_a_key_a_name_as_people_write_it_or_the_recording(
    name: str, cli: Cli, replay: str
) -> None:
    device = replay if name == "replay" else name
    assert cli("best", 512, 512, 512, "--device", device).code == 0


@pytest.mark.usefixtures("tuned")
@pytest.mark.parametrize("name", ["H100", "", "☃", "h" * 4000])
def test_unknown_device_lists_what_is_stored(name: str, cli: Cli) -> None:
    ended = cli("best", 512, 512, 512, "--device", name)
    assert ended.code == 2
    assert "Stored devices: sm90-132sm-141gb (NVIDIA H200)." in ended.err


def test_database_that_is_not_there_is_not_made(cli: Cli, database: Path) -> None:
    ended = cli("best", 512, 512, 512)
    assert (ended.code, ended.err) == (
        5,
        f"there is no database at {database}; `tuner run` makes one.\n",
    )
    assert not database.exists()


def test_empty_database_says_that_nothing_is_stored(cli: Cli) -> None:
    assert cli("db", "upgrade").code == 0
    ended = cli("best", 512, 512, 512)
    assert (ended.code, ended.err) == (
        3,
        "Nothing is stored yet, so 512x512x512 was never tuned. Tune it with `tuner run`.\n",
    )


@pytest.mark.parametrize("shape", ["64x64x64", "7168x2048x103", "2147483647x2147483647x8"])
def test_json_of_a_miss_is_the_state_and_detail_of_the_service(
    shape: str, cli: Cli, database: Path
) -> None:
    from fastapi.testclient import TestClient

    from tuner.api.app import create_app

    url = f"sqlite:///{database}"
    with open_store(url) as repository:
        fill(repository)
    m, n, k = shape.split("x")
    with TestClient(create_app(url)) as client:
        served = client.get(f"/best-config?m={m}&n={n}&k={k}").json()
    ended = cli("best", shape, "--json")
    assert (ended.code, json.loads(ended.out)) == (
        3,
        {"state": served["state"], "detail": served["detail"]},
    )


def test_measured_rows_come_before_replayed_ones(
    cli: Cli, shape_file: Write, replay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = shape_file("512 512 512\n")
    assert cli("run", "--shapes", listing, "--device", replay).code == 0
    assert json.loads(cli("best", 512, 512, 512, "--json").out)["source"] == "replay"
    use_fake(monkeypatch, Faults())
    measured = cli("run", "--shapes", listing, "--device", "cuda:0", "--trials", 3)
    assert (measured.code, "tuned before" in measured.err) == (0, False)
    assert json.loads(cli("best", 512, 512, 512, "--json").out)["source"] == "measured"
