"""`tuner run`: every shape ends with a config or a reason, and all is stored."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, lines, use_fake
from tests.device.fake import H200, FakeCompiler, FakeDevice, Faults
from tuner.device.protocol import Entrant
from tuner.errors import CompileError
from tuner.shape import GemmShape, Problem
from tuner.store.engine import open_store
from tuner.study import Budget
from tuner.trial import Sampled, ShapeState, TrialState

Write = Callable[[str], Path]

MIXED = "512 512 512\n2560x4096x1024\n128 128 133\n4096 4096 4096\n512 512 512\n"
"""Two recorded shapes, one that no kernel can run, one that is not recorded, one repeated."""


def test_replayed_shapes_are_tuned_stored_and_shown(
    cli: Cli, shape_file: Write, replay: str, database: Path
) -> None:
    listing = shape_file("512 512 512\n2560x4096x1024\n")
    ended = cli("run", "--shapes", listing, "--device", replay, "--trials", 14)
    assert ended.code == 0
    assert "2 shapes on NVIDIA H200 (sm90-132sm-141gb)" in ended.err
    assert ended.err.splitlines()[1].startswith("[1/2] 512x512x512 ")
    assert "x cuBLAS (14 trials, " in ended.err
    assert len(lines(ended.out, "512x512x512 ")) == len(lines(ended.out, "2560x4096x1024 ")) == 1
    counts = r"2 shapes: 2 tuned; attempts: 2[2-6] ok, 2 compile_refused, 2 wrong_result\."
    assert re.search(counts, ended.out)
    assert f"Database: {database}" in ended.out
    assert "Next: `tuner best 512 512 512`, or `tuner serve`" in ended.out
    with open_store(f"sqlite:///{database}", create=False) as repository:
        assert [(d.key, d.shapes) for d in repository.devices()] == [(H200.key, 2)]
        rows = repository.attempts(
            Problem(GemmShape(512, 512, 512), 132), H200.key, sources=("replay",)
        )
    assert {row.source for row in rows} == {"replay"}
    assert {row.state for row in rows} >= {TrialState.COMPILE_REFUSED, TrialState.WRONG_RESULT}


def test_shapes_without_a_config_say_why_and_the_others_go_on(
    cli: Cli, shape_file: Write, replay: str
) -> None:
    ended = cli("run", "--shapes", shape_file(MIXED), "--device", replay)
    assert ended.code == 3
    assert "4 shapes, 1 line repeated on NVIDIA H200" in ended.err
    assert "[3/4] 128x128x133 is unsupported: the kernel loads rows" in ended.err
    assert "needs K to be a multiple of 8" in ended.err
    assert "[4/4] 4096x4096x4096 not_recorded: the recording has no 4096x4096x4096" in ended.err
    assert lines(ended.out, "128x128x133 ")[0].split() == ["128x128x133", "unsupported"]
    assert "4 shapes: 2 tuned, 1 unsupported, 1 not_recorded;" in ended.out


def test_files_may_follow_one_option_or_repeat_it(cli: Cli, replay: str, tmp_path: Path) -> None:
    first, second = tmp_path / "a.txt", tmp_path / "b.csv"
    first.write_text("512 512 512\n")
    second.write_text("K,N,M\n1024,4096,2560\n")
    together = cli("run", "--shapes", first, second, "--device", replay)
    repeated = cli("run", "--shapes", first, "--shapes", second, "--device", replay)
    assert together.code == repeated.code == 0
    assert f"{first}: 1 shape\n{second}: 1 shape\n2 shapes on NVIDIA H200" in together.err
    assert "[2/2] 2560x4096x1024 " in together.err
    assert lines(together.out, "2560x") == lines(repeated.out, "2560x")


def test_second_run_tunes_nothing_again(cli: Cli, shape_file: Write, replay: str) -> None:
    listing = shape_file("512 512 512\n")
    first = cli("run", "--shapes", listing, "--device", replay)
    second = cli("run", "--shapes", listing, "--device", replay)
    assert (first.code, second.code) == (0, 0)
    assert "(tuned before)" in second.err
    assert lines(first.out, "512x512x512") == lines(second.out, "512x512x512")


def test_json_holds_the_answers_and_nothing_else_is_on_stdout(
    cli: Cli, shape_file: Write, replay: str, database: Path
) -> None:
    ended = cli("run", "--shapes", shape_file(MIXED), "--device", replay, "--json")
    body = json.loads(ended.out)
    assert (ended.code, body["exit_code"]) == (3, 3)
    assert body["device"] == {"name": "NVIDIA H200", "key": "sm90-132sm-141gb"}
    assert body["database"] == str(database)
    assert [shape["state"] for shape in body["shapes"]] == [
        "tuned",
        "tuned",
        "unsupported",
        "not_recorded",
    ]
    tuned, unsupported = body["shapes"][0], body["shapes"][2]
    assert tuned["answer"]["shape"] == {"m": 512, "n": 512, "k": 512}
    assert tuned["answer"]["source"] == "replay"
    assert tuned["counts"]["compile_refused"] == 1
    assert unsupported["answer"] is None
    assert "multiple of 8" in unsupported["detail"]


def test_column_major_output_is_another_problem(cli: Cli, shape_file: Write, replay: str) -> None:
    ended = cli("run", "--shapes", shape_file("512 512 512\n"), "--device", replay, "--d", "col")
    assert (ended.code, "not_recorded" in ended.out) == (3, True)


def test_database_can_be_a_path_and_is_named_in_what_comes_next(
    cli: Cli, shape_file: Write, replay: str, tmp_path: Path, database: Path
) -> None:
    listing, path = shape_file("512 512 512\n"), tmp_path / "new folder" / "own.db"
    ended = cli("run", "--shapes", listing, "--device", replay, "--db", path)
    assert (ended.code, path.exists(), database.exists()) == (0, True, False)
    assert f"Next: `tuner best 512 512 512 --db '{path}'`" in ended.out
    assert cli("best", 512, 512, 512, "--db", path).code == 0


def test_parent_folders_of_the_default_database_are_created(
    cli: Cli,
    shape_file: Write,
    replay: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TUNER_DATABASE_URL")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    ended = cli("run", "--shapes", shape_file("512 512 512\n"), "--device", replay)
    assert ended.code == 0
    assert (tmp_path / "share" / "gemm-tuner" / "tuner.db").is_file()


@pytest.mark.usefixtures("fake_gpu")
def test_shape_beyond_the_memory_says_what_it_needs_and_the_rest_go_on(
    cli: Cli, shape_file: Write
) -> None:
    listing = shape_file("1048576 1048576 64\n65536 65536 64\n16777216 128 64\n")
    ended = cli("run", "--shapes", listing, "--device", "cuda:0", "--trials", 3)
    assert ended.code == 3
    need = GemmShape(1048576, 1048576, 64).operand_bytes
    assert need > 2**40
    assert f"[1/3] 1048576x1048576x64 does not fit: it needs {need} bytes." in ended.err
    assert "3 shapes: 2 tuned, 1 does_not_fit;" in ended.out


@pytest.mark.usefixtures("fake_gpu")
def test_k_off_the_tile_is_tuned_where_rows_are_multiples_of_16_bytes_and_else_unsupported(
    cli: Cli, shape_file: Write
) -> None:
    listing = shape_file(
        "128 128 133\n256 256 192\n7168 2048 103\n4096 7168 576\n256 256 20\n256 256 24\n"
    )
    ended = cli("run", "--shapes", listing, "--device", "cuda:0", "--trials", 2, "--json")
    states = {shape["k"]: shape["state"] for shape in json.loads(ended.out)["shapes"]}
    assert (ended.code, states) == (
        3,
        {
            133: "unsupported",
            192: "tuned",
            103: "unsupported",
            576: "tuned",
            20: "unsupported",
            24: "tuned",
        },
    )
    assert "256x256x20 is unsupported: " in ended.err
    assert "Pad K with zeros to 24." in ended.err


@pytest.mark.usefixtures("fake_gpu")
def test_tiny_shapes_are_tuned_or_refused_with_the_rule(cli: Cli, shape_file: Write) -> None:
    listing = shape_file("8 1 4096\n1 128 1\n4 128 9216\n1 1 1\n")
    ended = cli("run", "--shapes", listing, "--device", "cuda:0", "--trials", 2, "--json")
    states = [shape["state"] for shape in json.loads(ended.out)["shapes"]]
    assert (ended.code, states) == (3, ["tuned", "unsupported", "tuned", "unsupported"])


@pytest.mark.usefixtures("fake_gpu")
def test_public_list_with_k_of_1_ends_with_a_state_for_every_shape(cli: Cli) -> None:
    dlrm = Path(__file__).parent.parent.parent / "benchmarks" / "shapes" / "rocblas-bf16-dlrm.txt"
    run = ["run", "--shapes", dlrm, "--device", "cuda:0", "--trials", 1, "--json"]
    shapes = json.loads(cli(*run).out)["shapes"]
    assert len(shapes) == 74
    for shape in shapes:
        assert shape["state"] == ("unsupported" if shape["k"] % 8 else "tuned")


def test_shape_whose_candidates_all_fail_stands_between_two_that_are_tuned(
    cli: Cli, shape_file: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WrongAt1024(FakeDevice):
        def verify(self, entrant: Entrant) -> Sampled:
            if self._problem is not None and self._problem.shape.m == 1024:
                return Sampled(entrant.contender, TrialState.WRONG_RESULT, detail="error 7.5")
            return super().verify(entrant)

    use_fake(monkeypatch, Faults(), device=WrongAt1024())
    listing = shape_file("512 512 512\n1024 1024 1024\n2048 2048 2048\n")
    ended = cli("run", "--shapes", listing, "--device", "cuda:0", "--trials", 5)
    assert ended.code == 3
    assert (
        "[2/3] 1024x1024x1024 no_valid_config: no candidate was right and measurable."
    ) in ended.err
    assert "3 shapes: 2 tuned, 1 no_valid_config; attempts: 10 ok, 5 wrong_result." in ended.out
    best = cli("best", 1024, 1024, 1024)
    assert best.code == 3
    assert "was tuned and no config is fit to serve: 5 wrong_result." in best.err


def test_compiler_that_cannot_start_ends_the_run_with_its_sentence(
    cli: Cli, shape_file: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = FakeCompiler(failing=lambda _: CompileError("the compiler cannot be loaded."))
    use_fake(monkeypatch, Faults(), broken)
    ended = cli("run", "--shapes", shape_file("512 512 512\n"), "--device", "cuda:0")
    assert ended.code == 4
    assert "the compiler cannot be loaded." in ended.err
    assert "No shape was finished." in ended.out


@pytest.mark.usefixtures("fake_gpu")
def test_run_is_recorded_with_its_command_and_exit_code(
    cli: Cli, shape_file: Write, database: Path
) -> None:
    import sqlite3
    from contextlib import closing

    listing = shape_file("512 512 512\n128 128 133\n")
    cli("run", "--shapes", listing, "--device", "cuda:0", "--trials", 2)
    with closing(sqlite3.connect(database)) as connection:
        (row,) = connection.execute("SELECT command, source, exit_code FROM runs").fetchall()
    assert row == (f"tuner run --shapes {listing} --device cuda:0 --trials 2", "measured", 3)


def test_states_in_the_summary_are_the_vocabulary() -> None:
    assert [state.value for state in ShapeState] == [
        "tuned",
        "no_valid_config",
        "unsupported",
        "does_not_fit",
        "not_recorded",
    ]


def test_help_states_the_number_of_trials_that_the_study_uses(cli: Cli) -> None:
    assert f"Configs to try per shape. Default: {Budget().trials}." in " ".join(
        cli("run", "--help").out.replace("│", " ").split()
    )


def test_summary_says_how_busy_the_device_was_and_what_was_screened_and_raced(
    cli: Cli, shape_file: Write, replay: str
) -> None:
    listing = shape_file("512 512 512\n2560x4096x1024\n")
    run = ["run", "--shapes", listing, "--device", replay, "--trials", 14]
    ended = cli(*run)
    (told,) = lines(ended.out, "Device: busy ")
    (counted,) = lines(ended.out, "2 shapes: 2 tuned; ")
    right = counted.partition("attempts: ")[2].partition(" ok")[0]
    assert f"{right} configs screened, 16 raced; 0 of " in told
    assert told.endswith("rounds rejected as throttled.")
    again = json.loads(cli(*run, "--json").out)["usage"]
    assert (again["screened"], again["raced"], again["rounds"], again["busy"]) == (0, 0, 0, 0)


def test_json_holds_the_usage_of_the_device(cli: Cli, shape_file: Write, replay: str) -> None:
    run = ["run", "--shapes", shape_file("512 512 512\n"), "--device", replay, "--json"]
    usage = json.loads(cli(*run).out)["usage"]
    assert usage["screened"] == 12
    assert usage["raced"] == 8
    assert usage["rejected_rounds"] == 0
    worked = usage["verify_seconds"] + usage["measure_seconds"]
    assert usage["busy"] == pytest.approx(worked / usage["wall_seconds"], abs=1e-3)
