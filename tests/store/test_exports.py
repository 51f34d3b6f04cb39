"""Files for others, and files that appear whole or not at all."""

import csv
import io
import json
import os
import resource
import signal
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest

from tests.forks import run_in_a_fork
from tests.store.examples import CUBLAS, DEVICE_KEY, PROBLEM, config, kernel, race
from tuner.cli.main import main
from tuner.config import KernelConfig
from tuner.errors import StoreError
from tuner.shape import GemmShape
from tuner.store.engine import open_store
from tuner.store.exports import export_lines, export_sqlite
from tuner.store.foreign_formats import CSV_COLUMNS, export_csv, export_vllm
from tuner.store.health import check_store
from tuner.store.output import OutputError, whole_file
from tuner.store.repository import Repository
from tuner.store.source import opened_source
from tuner.store.transfer import import_file

TIMES = {CUBLAS: [200.0] * 8, kernel(): [150.0] * 8}
WIDER = replace(PROBLEM, shape=GemmShape(5120, 2112, 72))


@pytest.fixture
def tuned(store: Repository) -> Repository:
    """Two M of one N, K, one of another K, and the first again in column-major order."""
    wider = {k: [1.5 * t for t in ts] for k, ts in TIMES.items()}
    other_k = replace(PROBLEM, shape=GemmShape(4096, 2112, 2048))
    store.add(
        [
            *race("r", TIMES),
            *race("w", wider, problem=WIDER),
            *race("k", TIMES, problem=other_k),
            *race("c", TIMES, problem=replace(PROBLEM, d="col")),
        ]
    )
    return store


def test_files_are_named_as_vllm_names_its_own_with_m_as_keys(
    tuned: Repository, tmp_path: Path
) -> None:
    done = export_vllm(tuned, tmp_path / "configs", [DEVICE_KEY])
    assert [path.name for path in done.paths] == [
        "N=2112,K=2048,device_name=NVIDIA_H200,dtype=bf16.json",
        "N=2112,K=72,device_name=NVIDIA_H200,dtype=bf16,d=col.json",
        "N=2112,K=72,device_name=NVIDIA_H200,dtype=bf16.json",
    ]
    assert done.answers == 4
    by_m = json.loads(done.paths[2].read_text())
    assert list(by_m) == ["4096", "5120"]
    assert KernelConfig.from_dict(by_m["4096"]) == config()


def test_a_device_name_cannot_leave_the_folder(store: Repository, tmp_path: Path) -> None:
    store.add([replace(row, device_name="../../H200 \u2603/é,x") for row in race("r", TIMES)])
    (path,) = export_vllm(store, tmp_path / "configs", [DEVICE_KEY]).paths
    assert path.name == "N=2112,K=72,device_name=.._.._H200_____x,dtype=bf16.json"
    assert path.parent == tmp_path / "configs"


def test_an_sm_budget_is_in_the_name(store: Repository, tmp_path: Path) -> None:
    knobs = replace(config().knobs, num_sms=112)
    ours = replace(kernel(), config=replace(config(), knobs=knobs))
    times = {CUBLAS: [200.0] * 8, ours: [190.0] * 8}
    store.add(race("r", times, problem=replace(PROBLEM, sms=112)))
    (path,) = export_vllm(store, tmp_path, [DEVICE_KEY]).paths
    assert path.name == "N=2112,K=72,device_name=NVIDIA_H200,dtype=bf16,sms=112.json"


def test_csv_has_a_line_for_each_best_answer(tuned: Repository, tmp_path: Path) -> None:
    done = export_csv(tuned, tmp_path / "best.csv", [DEVICE_KEY])
    with done.paths[0].open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == done.answers == 4
    assert tuple(lines[0]) == CSV_COLUMNS
    found = next(
        line for line in lines if (line["m"], line["k"], line["d"]) == ("4096", "72", "row")
    )
    assert (found["median_us"], found["cublas_us"], found["use"]) == ("150.0", "200.0", "kernel")
    assert (found["block_m"], found["block_n"], found["num_sms"]) == ("128", "128", "132")
    assert found["device_name"] == "NVIDIA H200"


def test_an_unknown_device_is_named(tuned: Repository, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nothing is stored for the device 'h100'"):
        export_csv(tuned, tmp_path / "best.csv", ["h100"])
    assert list(tmp_path.glob("*best*")) == []


def test_what_stood_there_stays_if_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("before")

    def broken() -> None:
        with whole_file(path) as target:
            target.write_text("half")
            raise OSError(28, os.strerror(28))

    with pytest.raises(OutputError, match="No space left on device"):
        broken()
    assert path.read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_folder_in_the_way_and_a_missing_folder_are_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with open_store(url) as store:
        store.add(race("r", TIMES))
    with opened_source(url) as source:
        for write in (export_lines, export_sqlite):
            with pytest.raises(OutputError, match="is a folder; name a file in it"):
                write(source, tmp_path)
            with pytest.raises(OutputError, match="cannot be written"):
                write(source, tmp_path / "no" / "rows")
            with pytest.raises(OutputError, match="is the database itself"):
                write(source, tmp_path / "a.db")
    with pytest.raises(OutputError, match="cannot be written"), open_store(url) as store:
        export_vllm(store, tmp_path / "a.db", [DEVICE_KEY])


def with_small_files(*arguments: str) -> int:
    """A command whose files may not grow, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
    return main(arguments)


def as_nobody(*arguments: str) -> int:
    """A command that is not root's."""
    # What is imported late lies where another user may not look.
    with (
        tempfile.TemporaryDirectory() as folder,
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
    ):
        for out in ("warm.jsonl", "warm.db", "warm.csv"):
            main(["export", f"{folder}/{out}", "--db", arguments[-1]])
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    return main(arguments)


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that another user may enter, unlike pytest's."""
    with tempfile.TemporaryDirectory(prefix="tuner-exports-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


@pytest.fixture
def large(public_folder: Path) -> Path:
    """A database that no file of 40 kB can hold a copy of."""
    path = public_folder / "large.db"
    with open_store(f"sqlite:///{path}") as store:
        store.add([replace(r, detail="x" * 2000) for n in range(20) for r in race(str(n), TIMES)])
    path.chmod(0o666)
    return path


@pytest.mark.parametrize(
    "command", [("export", "out.jsonl"), ("export", "out.db"), ("db", "backup", "out.db")]
)
def test_a_full_disk_is_said_and_leaves_no_part_of_a_file(
    large: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    *verb, name = command
    out = large.parent / name
    out.write_text("before")
    ended = run_in_a_fork(tmp_path, with_small_files, *verb, str(out), "--db", str(large))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "Traceback" not in ended.stderr
    assert f"{out} cannot be written" in ended.stderr
    assert out.read_text() == "before"
    assert {p.name for p in large.parent.iterdir()} == {"large.db", name}


def test_an_import_on_a_full_disk_is_said_and_leaves_a_sound_database(
    large: Path, tmp_path: Path
) -> None:
    rows, into = large.with_name("rows.jsonl"), large.with_name("into.db")
    with opened_source(f"sqlite:///{large}") as source:
        export_lines(source, rows)
    ended = run_in_a_fork(tmp_path, with_small_files, "import", str(rows), "--db", str(into))
    assert (ended.returncode, ended.stdout) == (5, "")
    assert "Traceback" not in ended.stderr
    assert "free space" in ended.stderr
    with open_store(f"sqlite:///{into}") as store:
        assert import_file(store, rows).whole
    assert check_store(f"sqlite:///{into}").rows["measurements"] == 40


@pytest.mark.parametrize(
    "command",
    [
        ("export", "out.jsonl"),
        ("export", "out.db"),
        ("export", "out.csv"),
        ("export", "--format", "vllm", "out"),
    ],
)
def test_a_read_only_folder_is_said_and_stays_as_it_is(
    large: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    *verb, name = command
    folder = large.parent / "kept"
    folder.mkdir(mode=0o555)
    large.parent.chmod(0o777)
    ended = run_in_a_fork(tmp_path, as_nobody, *verb, str(folder / name), "--db", str(large))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "Traceback" not in ended.stderr
    assert f"{folder / name} cannot be written" in ended.stderr
    assert list(folder.iterdir()) == []
