"""Rows that move between databases: a set union, whatever the order and the way."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import permutations
from pathlib import Path

import pytest

from tests.forks import forks
from tests.store.examples import (
    CUBLAS,
    DEVICE_KEY,
    NOON,
    PROBLEM,
    kernel,
    measurement,
    outcome,
    race,
)
from tests.store.movers import bring
from tuner.hardware import DeviceIdentity
from tuner.store.content import content_hash
from tuner.store.engine import open_store
from tuner.store.exports import Exported, export_lines, export_sqlite
from tuner.store.repository import Repository
from tuner.store.source import opened_source
from tuner.store.transfer import Moved, import_file, merge, stored_hash
from tuner.trial import Measurement, TrialState

NewDatabase = Callable[[], str]
H200 = DeviceIdentity("NVIDIA H200", (9, 0), 132, 150_754_820_096, "GPU-1", "580.95", "13.1")
FAILURE = {"state": TrialState.TIMEOUT, "samples_us": (), "detail": "no answer in 5 s"}


def rows(worker: str, first: int, last: int) -> list[Measurement]:
    """Screenings told apart by their time."""
    return [
        measurement(
            worker=worker, run_id=f"run-{worker}", measured_at=NOON + timedelta(seconds=step)
        )
        for step in range(first, last)
    ]


def filled(url: str, measured: Sequence[Measurement], run: str | None = None) -> str:
    with open_store(url) as store:
        store.add(measured)
        if run:
            store.start_run(run, "tuner run", "measured", H200)
            store.finish_run(run, 0)
            store.finish_shape(outcome(run_id=run))
    return url


def hash_of(url: str) -> str:
    with open_store(url) as store:
        return stored_hash(store)


def exported(url: str, path: Path, device_key: str | None = None) -> Exported:
    write = export_sqlite if path.suffix == ".db" else export_lines
    with opened_source(url) as source:
        return write(source, path, device_key)


def imported(url: str, path: Path) -> Moved:
    with open_store(url) as store:
        return import_file(store, path)


def attempts(url: str) -> list[Measurement]:
    with open_store(url) as store:
        return store.attempts(PROBLEM, DEVICE_KEY, sources=["measured", "replay", "import"])


def test_two_databases_with_overlap_merged_in_both_orders_have_one_content_hash(
    new_database: NewDatabase,
) -> None:
    shared = [*rows("both", 0, 40), measurement(**FAILURE)]
    alice = filled(new_database(), [*shared, *rows("alice", 0, 30)], "run-alice")
    bob = filled(new_database(), [*shared, *rows("bob", 10, 30)], "run-bob")
    assert hash_of(alice) != hash_of(bob)
    seen = []
    for order in ([alice, bob], [bob, alice]):
        with open_store(target := new_database()) as store:
            added = [merge(store, url).added["measurements"] for url in order]
        seen.append((hash_of(target), sum(added), len(attempts(target))))
    assert seen[0] == seen[1]
    assert seen[0][1:] == (41 + 30 + 20, 41 + 30 + 20)
    with open_store(alice) as store:
        assert merge(store, bob).added["measurements"] == 20
    with open_store(bob) as store:
        assert merge(store, alice).added["measurements"] == 30
    assert hash_of(alice) == hash_of(bob) == seen[0][0]


def test_a_merge_told_twice_changes_nothing(new_database: NewDatabase) -> None:
    source = filled(new_database(), rows("w", 0, 25), "run-w")
    target = filled(new_database(), rows("v", 0, 5))
    with open_store(target) as store:
        first = merge(store, source)
        content, watermark = stored_hash(store), store.watermark()
        second = merge(store, source)
        assert first.added == {"measurements": 25, "shape_outcomes": 1, "runs": 1}
        assert (second.added, second.whole) == ({}, True)
        assert (stored_hash(store), store.watermark()) == (content, watermark)


def test_a_database_merged_into_itself_stays_as_it_is(new_database: NewDatabase) -> None:
    url = filled(new_database(), rows("w", 0, 5), "run-w")
    before = hash_of(url)
    with open_store(url) as store:
        assert merge(store, url).added == {}
    assert hash_of(url) == before


def test_three_sources_give_one_content_hash_in_all_orders(tmp_path: Path) -> None:
    sources = [
        filled(f"sqlite:///{tmp_path / name}.db", rows(name, 0, 3)) for name in ("a", "b", "c")
    ]
    hashes = set()
    for number, order in enumerate(permutations(sources)):
        with open_store(f"sqlite:///{tmp_path / f'into-{number}.db'}") as store:
            for url in order:
                merge(store, url)
            hashes.add(stored_hash(store))
    assert len(hashes) == 1


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.db"])
def test_a_file_gives_back_every_row_as_it_was(
    new_database: NewDatabase, tmp_path: Path, name: str
) -> None:
    told = [
        *race("r1", {CUBLAS: [200.0, 201.0], kernel(): [190.0, 191.0]}, worker="w1"),
        measurement(source="replay", run_id="run-2", worker="näme \u2028 snow\u2603"),
        measurement(**FAILURE),
    ]
    source = filled(new_database(), told, "run-w")
    done = exported(source, tmp_path / name)
    moved = imported(target := new_database(), tmp_path / name)
    assert moved.whole
    assert moved.content_hash == done.content_hash == hash_of(source) == hash_of(target)
    assert sorted(attempts(target), key=str) == sorted(attempts(source), key=str)
    with open_store(target) as store, open_store(source) as original:
        assert store.shapes(DEVICE_KEY) == original.shapes(DEVICE_KEY)
        assert store.devices() == original.devices()
        assert store.best(PROBLEM, DEVICE_KEY) == original.best(PROBLEM, DEVICE_KEY)


def test_sqlite_and_postgres_name_the_same_rows_by_the_same_hash(
    postgres_database_url: str, tmp_path: Path
) -> None:
    told = [*rows("w", 0, 10), measurement(**FAILURE)]
    ours = filled(f"sqlite:///{tmp_path / 'a.db'}", told, "run-w")
    theirs = filled(postgres_database_url, told, "run-w")
    assert hash_of(ours) == hash_of(theirs)


def test_rows_keep_their_source_and_worker_and_a_run_tells_of_the_import(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    source = filled(new_database(), rows("gpu-7", 0, 3), "run-gpu-7")
    done = exported(source, tmp_path / "rows.jsonl")
    imported(target := new_database(), tmp_path / "rows.jsonl")
    imported(target, tmp_path / "rows.jsonl")
    assert {(row.source, row.worker, row.run_id) for row in attempts(target)} == {
        ("measured", "gpu-7", "run-gpu-7")
    }
    with opened_source(target) as opened, opened.moment() as connection:
        runs = connection.exec_driver_sql(
            "SELECT source, command, device_key, exit_code FROM runs ORDER BY source"
        ).all()
    assert [tuple(run) for run in runs] == [
        (
            "import",
            f"tuner import {tmp_path / 'rows.jsonl'} (content {done.content_hash})",
            DEVICE_KEY,
            0,
        ),
        ("measured", "tuner run", DEVICE_KEY, 0),
    ]


def test_a_run_that_one_database_saw_end_has_ended_in_both_orders(
    new_database: NewDatabase,
) -> None:
    begun, ended = new_database(), new_database()
    for url in (begun, ended):
        with open_store(url) as store:
            store.start_run("run-1", "tuner run", "measured", H200)
    with open_store(ended) as store:
        store.finish_run("run-1", 3)
    for first, second in ((begun, ended), (ended, begun)):
        with open_store(target := new_database()) as store:
            merge(store, first)
            merge(store, second)
        with opened_source(target) as source, source.moment() as connection:
            codes = connection.exec_driver_sql("SELECT exit_code FROM runs WHERE id = 'run-1'")
            assert codes.all() == [(3,)]


def test_one_device_is_exported_alone(new_database: NewDatabase, tmp_path: Path) -> None:
    other = "sm90-114sm-80gb"
    h100 = replace(PROBLEM, sms=114)
    far = [measurement(device_key=other, device_name="NVIDIA H100 PCIe", problem=h100)]
    source = filled(new_database(), [*rows("w", 0, 4), *far])
    for name in ("rows.jsonl", "rows.db"):
        done = exported(source, tmp_path / name, other)
        assert done.rows["measurements"] == 1
        with open_store(target := new_database()) as store:
            assert import_file(store, tmp_path / name).whole
            assert [d.key for d in store.devices()] == [other]
            assert stored_hash(store) == stored_hash(store, other) == done.content_hash
        with open_store(source) as store:
            assert stored_hash(store, other) == done.content_hash
        assert hash_of(target) == done.content_hash


def test_the_header_names_format_schema_counts_and_content(tmp_path: Path) -> None:
    source = filled(f"sqlite:///{tmp_path / 'a.db'}", rows("w", 0, 4), "run-w")
    done = exported(source, tmp_path / "rows.jsonl")
    header = json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[0])
    assert header["format"] == "gemm-tuner-rows/1"
    assert header["schema"] == "0003"
    assert header["content_hash"] == done.content_hash
    assert [header[n] for n in ("measurements", "shape_outcomes", "runs")] == [4, 1, 1]
    assert header["exported_from"] == str(tmp_path / "a.db")


def test_a_content_hash_depends_on_the_set_of_rows_alone() -> None:
    a, b, c = ("00" * 32, "11" * 32, "ff" * 32)
    assert content_hash([a, b, c]) == content_hash([c, a, b, a])
    assert content_hash([a, b]) != content_hash([a, c])
    assert content_hash([]) == content_hash(iter(()))


def test_processes_that_import_one_file_at_once_store_each_row_once(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    source = filled(f"sqlite:///{tmp_path / 'a.db'}", rows("w", 0, 300), "run-w")
    done = exported(source, tmp_path / "rows.jsonl")
    target = new_database()
    context = forks()
    told = context.Queue()
    movers = [
        context.Process(target=bring, args=(target, tmp_path / "rows.jsonl", told))
        for _ in range(4)
    ]
    for mover in movers:
        mover.start()
    ended = [told.get(timeout=60) for _ in movers]
    for mover in movers:
        mover.join(60)
    assert [whole for whole, _ in ended] == [True] * 4
    assert sum(added for _, added in ended) == 300
    assert hash_of(target) == done.content_hash


def test_rows_already_in_a_repository_are_not_counted_as_new(store: Repository) -> None:
    store.add(rows("w", 0, 5))
    before = stored_hash(store)
    store.add(rows("w", 0, 5))
    assert stored_hash(store) == before
