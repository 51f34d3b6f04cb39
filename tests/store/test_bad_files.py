"""What is wrong with a file of rows is named; the rest goes in, and nothing is left broken."""

import gzip
import json
import os
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.store.examples import CUBLAS, NOON, config, kernel, measurement
from tests.store.exported import COUNT, stored
from tuner.config import KernelVariant
from tuner.store.engine import open_store
from tuner.store.exports import export_lines
from tuner.store.repository import Repository
from tuner.store.source import opened_source
from tuner.store.transfer import import_file
from tuner.trial import Contender, TrialState
from tuner.trial_json import InvalidRow, to_json


def with_line(path: Path, number: int, line: str | bytes) -> None:
    """Put something else in the place of a line, counted from 1."""
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number - 1] = (line if isinstance(line, bytes) else line.encode()) + b"\n"
    path.write_bytes(b"".join(lines))


def row(**changes: Any) -> str:
    return json.dumps({**to_json(measurement(measured_at=NOON)), **changes})


BAD_ROWS: dict[str, tuple[str | bytes, str]] = {
    "no JSON": ("M N K", "this is not JSON"),
    "half a row": (row()[:200], "this is not JSON"),
    "a list": ("[1, 2]", "one JSON object"),
    "another object": ("{}", "lacks"),
    "random bytes": (bytes(range(128, 256)), "not UTF-8"),
    "nested too deep": ("[" * 100_000 + "]" * 100_000, "nested too deep"),
    "an unknown field": (row(colour="red"), "unknown fields ['colour']"),
    "not a number": (row(samples_us=[float("nan")]), "NaN is not a JSON number"),
    "a negative time": (row(samples_us=[-1.0]), "positive finite times"),
    "no time": (row(samples_us=[]), "0 samples"),
    "a time beyond every float": (row(samples_us=[10**400]), "int too large"),
    "a size beyond 2^31": (row(m=2**31), "m must be between 1 and"),
    "a size of 5,000 digits": (row().replace("4096", "9" * 5000, 1), "4300"),
    "an SM budget beyond 64 bits": (row(sms=2**64), "beyond 64 bits"),
    "a time before time": (row(measured_at="0001-01-01T00:00:00+09:00"), "out of range"),
    "no time zone": (row(measured_at="2026-03-01T12:00:00"), "measured_at cannot be"),
    "a state of another version": (row(state="melted"), "state cannot be 'melted'"),
    "a source of another version": (row(source="dreamt"), "source cannot be 'dreamt'"),
    "an output layout of another version": (row(d="diagonal"), "d cannot be 'diagonal'"),
    "a config of another version": (
        row(config={**config().to_dict(), "raster": "spiral"}),
        "raster cannot be 'spiral'",
    ),
    "a config with a field of another version": (
        row(config={**config().to_dict(), "warp_colour": 3}),
        "unknown fields ['warp_colour']",
    ),
    "a config lacking a field of this version": (
        row(config={k: v for k, v in config().to_dict().items() if k != "store"}),
        "lacks the fields ['store']",
    ),
    "a row lacking a field of this version": (
        json.dumps({k: v for k, v in json.loads(row()).items() if k != "epilogue"}),
        "lacks ['epilogue']",
    ),
    "a time faster than physics": (row(samples_us=[0.5]), "faster than the device can compute"),
    "a library faster than physics": (
        row(samples_us=[0.5], contender="cublas", config=None),
        "faster than the device can compute",
    ),
    "a config too big for the card": (
        row(config={**config(256).to_dict(), "block_m": 256, "stages": 8}),
        "no sm_90 device can have run this config",
    ),
    "a half-told run": ('{"run": {"id": "x"}}', "must have the fields"),
    "an outcome that is no object": ('{"outcome": 3}', "must have the fields"),
    "a second header": ('{"format": "gemm-tuner-rows/1"}', "a second header"),
    "NUL bytes": ("\x00" * 300, "this is not JSON"),
}


@pytest.mark.parametrize("what", BAD_ROWS)
def test_a_bad_row_is_named_and_skipped_and_the_rest_goes_in(
    store: Repository, rows_file: Path, what: str
) -> None:
    line, reason = BAD_ROWS[what]
    with_line(rows_file, 5, line)
    moved = import_file(store, rows_file)
    (refused,) = moved.refused
    assert refused.where == f"{rows_file}:5"
    assert reason in refused.reason
    assert "\n" not in str(refused)
    assert len(stored(store)) == moved.added["measurements"] == COUNT - 1
    assert moved.changed is not None


def test_a_failure_with_a_config_that_cannot_run_is_kept_as_knowledge(
    store: Repository, rows_file: Path
) -> None:
    wide = config(256).to_dict() | {"block_m": 256, "stages": 8}
    with_line(rows_file, 5, row(config=wide, state="compile_refused", samples_us=[]))
    assert import_file(store, rows_file).refused == ()
    assert [r.state for r in stored(store)].count(TrialState.COMPILE_REFUSED) == 1


def test_a_line_longer_than_any_row_is_named_and_not_kept_in_memory(
    store: Repository, rows_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.store.row_files.LONGEST_LINE_BYTES", 4000)
    with_line(rows_file, 5, row(detail="x" * 9000))
    moved = import_file(store, rows_file)
    assert "longer than 4000 bytes" in moved.refused[0].reason
    assert moved.added["measurements"] == COUNT - 1


@pytest.mark.parametrize("share", [0.45, 0.51, 0.77, 0.999])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_cut_off_gives_its_whole_rows_and_says_so(
    store: Repository, rows_file: Path, tmp_path: Path, share: float, compressed: bool
) -> None:
    whole = rows_file.read_bytes()
    content = gzip.compress(whole, 1) if compressed else whole
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(content[: int(len(content) * share)])
    moved = import_file(store, cut)
    assert not moved.whole
    assert str(cut) in str(moved.refused[-1])
    # Of a compressed file only the last bytes, which check the rest, may be missing.
    assert len(stored(store)) == moved.added.get("measurements", 0) < COUNT + compressed


@pytest.mark.parametrize("length", [1, 3, 12, 40])
def test_a_compressed_file_without_even_a_header_is_refused(
    store: Repository, rows_file: Path, length: int
) -> None:
    cut = rows_file.with_name("cut.jsonl.gz")
    cut.write_bytes(gzip.compress(rows_file.read_bytes())[:length])
    with pytest.raises(InvalidRow, match=re.escape(str(cut))):
        import_file(store, cut)
    assert stored(store) == []


def test_a_row_that_went_missing_is_told_by_the_content_hash(
    store: Repository, rows_file: Path
) -> None:
    lines = rows_file.read_text().splitlines(keepends=True)
    rows_file.write_text("".join(lines[:6] + lines[7:]))
    moved = import_file(store, rows_file)
    assert moved.refused == ()
    assert moved.changed is not None
    assert f"{COUNT - 1} of {COUNT} rows could be used" in moved.changed
    assert len(stored(store)) == COUNT - 1


def test_a_number_that_was_changed_is_told_by_the_content_hash(
    store: Repository, rows_file: Path
) -> None:
    rows_file.write_text(rows_file.read_text().replace("166.5", "150.5", 1))
    moved = import_file(store, rows_file)
    assert moved.refused == ()
    assert moved.changed is not None
    assert "content hash is" in moved.changed


def test_lines_in_another_order_are_the_same_content(store: Repository, rows_file: Path) -> None:
    header, *lines = rows_file.read_text().splitlines(keepends=True)
    random.Random(7).shuffle(lines)
    rows_file.write_text("".join([header, *lines, lines[0], "\n"]))
    assert import_file(store, rows_file).whole
    assert len(stored(store)) == COUNT


@pytest.mark.parametrize("header", ["{", "[]", "{}", '{"format": ', "\x00\x01"])
def test_a_damaged_header_is_named_and_the_rows_go_in(
    store: Repository, rows_file: Path, header: str
) -> None:
    with_line(rows_file, 1, header)
    moved = import_file(store, rows_file)
    assert moved.refused[0].where == f"{rows_file}:1"
    assert len(stored(store)) == COUNT


def test_a_file_of_a_newer_format_is_refused_with_both_named(
    store: Repository, rows_file: Path
) -> None:
    with_line(rows_file, 1, '{"format": "gemm-tuner-rows/2", "device": null}')
    with pytest.raises(InvalidRow, match=r"gemm-tuner-rows/2.*reads gemm-tuner-rows/1") as raised:
        import_file(store, rows_file)
    assert f"{rows_file}:1" in str(raised.value)
    assert stored(store) == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n\n",
        b"M N K\n1 2 3\n",
        os.urandom(5000),
        b"\x1f\x8b",
        b"\x00" * 999,
        b"x\n" * 9999,
    ],
)
def test_a_file_that_is_no_file_of_rows_is_refused_untouched(
    store: Repository, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "other.jsonl"
    path.write_bytes(content)
    with pytest.raises(InvalidRow) as raised:
        import_file(store, path)
    assert str(path) in str(raised.value)
    assert path.read_bytes() == content
    assert stored(store) == []


@pytest.mark.parametrize("seed", range(6))
def test_random_bytes_over_a_file_never_end_in_anything_but_named_lines(
    rows_file: Path, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    content = bytearray(rows_file.read_bytes())
    # The header stays, so that the rest is tried.
    start = content.index(b"\n") + 1
    for _ in range(3):
        at = rng.randrange(start, len(content) - 40)
        content[at : at + 40] = rng.randbytes(40)
    rows_file.write_bytes(content)
    with open_store(f"sqlite:///{tmp_path / 'into.db'}") as store:
        moved = import_file(store, rows_file)
        assert not moved.whole
        assert len(stored(store)) == moved.added["measurements"] >= COUNT - 6


def test_identity_of_every_kind_of_contender_survives(store: Repository, tmp_path: Path) -> None:
    v = KernelVariant(128, 256, 3, consumers=2)
    told = [
        measurement(contender=Contender("kernel", replace(config(), variant=v))),
        measurement(contender=kernel()),
        measurement(contender=Contender("cublaslt", algorithm="tile=20 stages=35")),
        measurement(contender=CUBLAS),
    ]
    with open_store(f"sqlite:///{tmp_path / 'a.db'}") as original:
        original.add(told)
    with opened_source(f"sqlite:///{tmp_path / 'a.db'}") as source:
        export_lines(source, tmp_path / "rows.jsonl")
    assert import_file(store, tmp_path / "rows.jsonl").whole
    assert sorted(map(str, stored(store))) == sorted(map(str, told))
