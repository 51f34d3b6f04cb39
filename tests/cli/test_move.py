"""`tuner export`, `import` and `merge` as a shell meets them."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.store.examples import CUBLAS, DEVICE_KEY, kernel, measurement, outcome, race
from tuner.store.engine import open_store
from tuner.trial import Measurement

TIMES = {CUBLAS: [200.0] * 8, kernel(): [150.0] * 8}


def filled(path: Path, *rows: Measurement) -> Path:
    with open_store(f"sqlite:///{path}") as store:
        store.add(rows)
        store.finish_shape(outcome(run_id=""))
    return path


@pytest.fixture
def team(tmp_path: Path) -> Path:
    return filled(tmp_path / "team.db", *race("r", TIMES), measurement(worker="ann"))


def content(text: str) -> str:
    """The hash at the end of the last line."""
    return text.rstrip().rstrip(".").split()[-1]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.db"])
def test_an_export_imports_elsewhere_under_the_same_content_hash(
    cli: Cli, team: Path, tmp_path: Path, name: str
) -> None:
    out = tmp_path / name
    exported = cli("export", out, "--db", team)
    assert (exported.code, exported.err) == (0, "")
    assert exported.out.startswith(f"{out}: 3 measurements, 1 outcome; content ")
    brought = cli("import", out)
    assert (brought.code, brought.err) == (0, "")
    assert "3 measurements, 1 outcome read; new: 3 measurements, 1 outcome." in brought.out
    assert content(brought.out) == content(exported.out)
    again = cli("import", out)
    assert "new: nothing new." in again.out
    assert content(again.out) == content(exported.out)


def test_merging_in_both_orders_prints_one_content_hash(
    cli: Cli, team: Path, tmp_path: Path
) -> None:
    bob = filled(tmp_path / "bob.db", measurement(worker="ann"), measurement(worker="bob"))
    one = cli("merge", tmp_path / "one.db", team, bob)
    other = cli("merge", tmp_path / "other.db", bob, team)
    assert (one.code, other.code) == (0, 0)
    assert content(one.out) == content(other.out)
    assert f"{bob}: 2 measurements, 1 outcome read; new: 1 measurement." in one.out
    into = json.loads(cli("merge", bob, team, "--json").out)
    assert into["content_hash"] == content(one.out)
    assert into["sources"][0]["added"] == {"measurements": 2}


def test_a_bad_row_is_named_the_rest_goes_in_and_the_exit_code_says_so(
    cli: Cli, team: Path, tmp_path: Path
) -> None:
    out = tmp_path / "rows.jsonl"
    cli("export", out, "--db", team)
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join([*lines[:2], "M N K\n", *lines[3:]]))
    ended = cli("import", out)
    assert ended.code == 3
    assert f"{out}:3: this is not JSON" in ended.err
    assert f"{out}: it was changed since it was exported: 3 of 4 rows could be used" in ended.err
    assert "new: 2 measurements, 1 outcome, 1 row skipped." in ended.out


def test_many_bad_rows_are_counted_after_the_first(cli: Cli, team: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    cli("export", out, "--db", team)
    out.write_text(out.read_text() + "x\n" * 25)
    ended = cli("import", out)
    assert ended.err.count("this is not JSON") == 10
    assert f"{out}: 15 more rows skipped." in ended.err


def test_a_file_that_cannot_be_used_does_not_stop_the_others(
    cli: Cli, team: Path, tmp_path: Path
) -> None:
    good, bad = tmp_path / "rows.jsonl", tmp_path / "random.jsonl"
    cli("export", good, "--db", team)
    bad.write_bytes(b"\xff\x00" * 500)
    ended = cli("import", tmp_path / "missing.jsonl", bad, tmp_path, good)
    assert ended.code == 3
    assert f"{tmp_path / 'missing.jsonl'} cannot be read: No such file" in ended.err
    assert f"{bad} is no file of rows" in ended.err
    assert f"{tmp_path} cannot be read: Is a directory" in ended.err
    assert "new: 3 measurements" in ended.out
    none = cli("import", bad, tmp_path / "missing.jsonl")
    assert none.code == 2


def test_the_shipped_recording_can_be_imported(cli: Cli, recording: Path) -> None:
    ended = cli("import", recording)
    assert (ended.code, ended.err) == (0, "")
    assert cli("best", "512", "512", "512").code == 0


def test_an_export_of_a_recording_imports_again(cli: Cli, recording: Path, tmp_path: Path) -> None:
    cli("import", recording)
    cli("export", tmp_path / "again.jsonl.gz")
    ended = cli("import", tmp_path / "again.jsonl.gz", "--db", tmp_path / "other.db")
    assert (ended.code, ended.err) == (0, "")


def test_answers_for_others_are_written(cli: Cli, team: Path, tmp_path: Path) -> None:
    table = cli("export", tmp_path / "best.csv", "--db", team)
    assert (table.code, table.out) == (0, f"{tmp_path / 'best.csv'}: 1 answer.\n")
    files = cli("export", tmp_path / "v", "--format", "vllm", "--db", team, "--device", DEVICE_KEY)
    assert (files.code, files.out) == (0, f"{tmp_path / 'v'}: 1 answer in 1 file.\n")
    assert [p.name for p in (tmp_path / "v").iterdir()] == [
        "N=2112,K=72,device_name=NVIDIA_H200,dtype=bf16.json"
    ]


def test_an_unknown_device_and_a_missing_database_are_named(
    cli: Cli, team: Path, tmp_path: Path
) -> None:
    unknown = cli("export", tmp_path / "x.jsonl", "--db", team, "--device", "h100")
    assert unknown.code == 2
    assert DEVICE_KEY in unknown.err
    missing = cli("export", tmp_path / "x.jsonl", "--db", tmp_path / "none.db")
    assert missing.code == 5
    assert f"there is no database at {tmp_path / 'none.db'}" in missing.err
    assert not (tmp_path / "x.jsonl").exists()
    assert not (tmp_path / "none.db").exists()
    merged = cli("merge", tmp_path / "into.db", tmp_path / "none.db")
    assert merged.code == 2
    assert not (tmp_path / "none.db").exists()


def test_an_export_and_a_merge_know_a_password_and_do_not_print_it(
    cli: Cli, tmp_path: Path
) -> None:
    url = "postgresql://u:secret@127.0.0.1:1/none"
    for arguments in (("export", tmp_path / "x", "--db", url), ("merge", tmp_path / "a.db", url)):
        ended = cli(*arguments)
        assert ended.code in (2, 5)
        assert "127.0.0.1" in ended.err
        assert "secret" not in ended.out + ended.err
