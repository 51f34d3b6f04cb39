"""What is not understood ends with one sentence and exit code 2, before anything starts."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

MALFORMED = Path(__file__).parent.parent / "data" / "malformed"

REFUSED = {
    "two-columns.txt": "two-columns.txt:1: 2 fields where three are expected: M N K",
    "separators.txt": "separators.txt:2: '128_7168_2048' is not a whole number",
    "words.txt": "words.txt:1: 'K' is not a whole number",
    "utf16.txt": "utf16.txt:1: the file is UTF-16. Save it as UTF-8.",
    "not-utf8.txt": "not-utf8.txt:1: byte 0xf6 is not UTF-8",
    "nul.txt": "nul.txt:2: a NUL byte, so the file is not text.",
    "kn-order.csv": "kn-order.csv:1: no column M.",
    "batched-first.csv": "batched-first.csv:1: unknown column 'B'.",
    "extra-column.txt": "extra-column.txt:1: 4 fields where three are expected: M N K",
    "huge.txt": "huge.txt:2: '2147483648' is outside 1..2147483647",
    "zero-negative.txt": "zero-negative.txt:1: '0' is outside 1..2147483647",
    "cut-off.txt": "cut-off.txt:3: 2 fields where three are expected: M N K",
    "header-only.csv": "header-only.csv: no shapes. Write one `M N K` a line.",
    "comments-only.txt": "comments-only.txt: no shapes. Write one `M N K` a line.",
    "empty.txt": "empty.txt: no shapes. Write one `M N K` a line.",
    "absent.txt": "absent.txt: there is no such file.",
}


@pytest.mark.parametrize("command", ["run", "bench"])
@pytest.mark.parametrize("name", REFUSED)
def test_refused_shape_file_starts_nothing_and_makes_no_database(
    command: str, name: str, cli: Cli, replay: str, database: Path
) -> None:
    ended = cli(command, "--shapes", MALFORMED / name, "--device", replay)
    assert ended.code == 2
    assert REFUSED[name] in ended.err
    assert ended.err.endswith("Nothing was started.\n")
    assert ended.out == ""
    assert not database.parent.exists()


def test_directory_as_shape_file_is_refused(cli: Cli, database: Path) -> None:
    ended = cli("run", "--shapes", MALFORMED, "--device", "replay")
    assert (ended.code, "is a directory. Name the shape files in it." in ended.err) == (2, True)
    assert not database.exists()


def test_every_bad_line_of_every_file_is_reported_at_once(cli: Cli) -> None:
    ended = cli("run", "--shapes", MALFORMED / "words.txt", MALFORMED / "zero-negative.txt")
    for line in range(1, 5):
        assert f"words.txt:{line}: " in ended.err
        assert f"zero-negative.txt:{line}: " in ended.err
    assert "words.txt: 4 lines refused, 1 accepted." in ended.err


@pytest.mark.usefixtures("no_gpu")
def test_without_gpu_and_device_it_stops_at_once_and_names_both_ways_on(
    cli: Cli, shape_file: Callable[[str], Path], database: Path
) -> None:
    ended = cli("run", "--shapes", shape_file("512 512 512\n"))
    assert ended.code == 4
    assert "Use `--device replay` to play recorded measurements" in ended.err
    assert "a machine with an H100 or H200" in ended.err
    assert not database.exists()


@pytest.mark.parametrize("name", ["rtx", "cuda:x", "cuda:-1", "cuda:0 ", "replay:", "", "CPU"])
def test_device_name_that_is_not_understood_is_refused_with_the_forms_there_are(
    name: str, cli: Cli, shape_file: Callable[[str], Path]
) -> None:
    ended = cli("run", "--shapes", shape_file("512 512 512\n"), "--device", name)
    assert ended.code == 2
    assert "is not a device; use cuda:N for a GPU, or replay" in ended.err


def test_recording_that_is_not_there_is_an_unusable_device(
    cli: Cli, shape_file: Callable[[str], Path], tmp_path: Path
) -> None:
    listing = shape_file("512 512 512\n")
    for name in ("replay:nobody", f"replay:{tmp_path / 'absent.jsonl.gz'}", f"replay:{listing}"):
        ended = cli("run", "--shapes", listing, "--device", name)
        assert ended.code == 4
        assert "recording" in ended.err


def test_damaged_database_is_left_alone_and_ends_with_code_5(
    cli: Cli, shape_file: Callable[[str], Path], replay: str, database: Path
) -> None:
    database.parent.mkdir()
    database.write_text("not a database")
    ended = cli("run", "--shapes", shape_file("512 512 512\n"), "--device", replay)
    assert ended.code == 5
    assert f"{database} is not a SQLite database; it was left as it is." in ended.err
    assert database.read_text() == "not a database"


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["run", "--shapes"],
        ["run", "--shapes", "a.txt", "--trials", "0"],
        ["run", "--shapes", "a.txt", "--seconds-per-shape", "soon"],
        ["run", "--shapes", "a.txt", "--d", "diagonal"],
        ["run", "--shapes", "a.txt", "--nonsense"],
        ["bench", "--shapes", "a.txt", "--rounds", "1"],
        ["bench", "--shapes", "a.txt", "--protocol", "lukewarm"],
        ["serve", "--port", "65536"],
        ["best"],
        ["best", "4096", "4096"],
        ["best", "4096", "4096", "0"],
        ["best", "4096", "4096", "1e3"],
        ["best", "4096", "4096", "9" * 5000],
        ["db", "destroy"],
        ["frobnicate"],
    ],
)
def test_bad_usage_ends_with_code_2_and_says_why(arguments: list[str], cli: Cli) -> None:
    ended = cli(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert 10 < len(ended.err) < 1000


def test_realtime_is_for_replay_only(cli: Cli, shape_file: Callable[[str], Path]) -> None:
    listing = shape_file("512 512 512\n")
    ended = cli("run", "--shapes", listing, "--device", "cuda:0", "--realtime")
    assert (ended.code, "--realtime" in ended.err) == (2, True)
