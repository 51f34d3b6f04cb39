"""Snapshots: the same answers are the same bytes, and other bytes are never taken for them."""

import json
import random
from dataclasses import replace

import pytest

from tests.store.examples import CUBLAS, DEVICE_KEY, PROBLEM, kernel, race
from tuner.lookup import Answer, Book, Miss, Race, choose, find
from tuner.lookup.snapshot import (
    InvalidSnapshot,
    Snapshot,
    build_snapshot,
    compare,
    read_snapshot,
)
from tuner.shape import GemmShape, Problem
from tuner.trial import PROTOCOL_COOL, PROTOCOL_HOT

NARROW = replace(PROBLEM, shape=GemmShape(16, 2112, 72))


def answer(problem: Problem = PROBLEM, block_n: int = 128, us: float = 150.0) -> Answer:
    rows = race("r", {CUBLAS: [200.0] * 8, kernel(block_n): [us] * 8}, problem=problem)
    found = choose([Race("r", PROTOCOL_HOT, tuple(rows))])
    assert found is not None
    return found


def snapshot(*answers: Answer) -> Snapshot:
    return build_snapshot(DEVICE_KEY, "NVIDIA H200", [(a, {}) for a in answers])


def test_the_order_of_answers_does_not_change_the_id() -> None:
    one, other = answer(), answer(NARROW)
    assert snapshot(one, other).id == snapshot(other, one).id
    assert snapshot(one).id != snapshot(other).id
    assert len(snapshot(one).id) == 64


def test_what_differs_between_readers_is_not_part_of_it() -> None:
    assert snapshot(replace(answer(), stale=True)).id == snapshot(answer()).id
    (entry,) = snapshot(answer()).entries
    assert not {"stale", "match", "device"} & set(entry)


def test_an_answer_is_found_by_every_part_of_its_problem() -> None:
    made = snapshot(answer(), answer(NARROW))
    found = made.find(NARROW)
    assert found is not None
    assert found["shape"] == {"m": 16, "n": 2112, "k": 72}
    for other in (
        replace(NARROW, sms=112),
        replace(NARROW, d="col"),
        replace(NARROW, epilogue="gelu"),
        replace(NARROW, dtype="fp8"),
    ):
        assert made.find(other) is None


def test_a_protocol_asked_for_has_its_own_answer_or_none() -> None:
    pair = (answer(), {PROTOCOL_HOT: answer(block_n=256)})
    made = build_snapshot(DEVICE_KEY, "NVIDIA H200", [pair])
    hot = made.find(PROBLEM, PROTOCOL_HOT)
    assert hot is not None
    assert hot["config"]["block_n"] == 256
    assert made.find(PROBLEM, PROTOCOL_COOL) is None


def test_its_own_bytes_read_back_as_it() -> None:
    made = snapshot(answer())
    read = read_snapshot(made.body, made.id)
    assert (read.id, read.device_key, read.device_name) == (made.id, DEVICE_KEY, "NVIDIA H200")
    assert read.entries == made.entries


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.999])
def test_a_snapshot_cut_off_is_refused(share: float) -> None:
    made = snapshot(answer())
    with pytest.raises(InvalidSnapshot, match="was changed"):
        read_snapshot(made.body[: int(len(made.body) * share)], made.id)


@pytest.mark.parametrize("seed", range(8))
def test_random_bytes_in_a_snapshot_are_refused(seed: int) -> None:
    rng = random.Random(seed)
    made = snapshot(answer())
    body = bytearray(made.body)
    at = rng.randrange(len(body) - 8)
    body[at : at + 8] = rng.randbytes(8)
    with pytest.raises(InvalidSnapshot, match="was changed"):
        read_snapshot(bytes(body), made.id)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"format": "gemm-tuner-snapshot/2"}',
        b'{"format": "gemm-tuner-snapshot/1"}',
        b'{"format": "gemm-tuner-snapshot/1", "device": {}, "entries": [{}]}',
        b'{"format": "gemm-tuner-snapshot/1", "device": 3, "entries": 4}',
        b'{"format": "gemm-tuner-snapshot/1", "device": {"key": "k", "name": "n"}, "entries": [3]}',
        b"[" * 100_000,
    ],
)
def test_bytes_of_another_kind_are_refused_under_their_own_hash(body: bytes) -> None:
    with pytest.raises(InvalidSnapshot):
        read_snapshot(body, Snapshot(body).id)


def test_a_comparison_tells_what_came_went_changed_and_was_measured_anew() -> None:
    third = replace(PROBLEM, shape=GemmShape(32, 2112, 72))
    fourth = replace(PROBLEM, shape=GemmShape(48, 2112, 72))
    before = snapshot(answer(), answer(NARROW), answer(third))
    after = snapshot(answer(block_n=256), answer(third, us=149.0), answer(fourth))
    told = {change.problem.split()[0]: change.kind for change in compare(before, after)}
    assert told == {
        "16x2112x72": "removed",
        "32x2112x72": "remeasured",
        "48x2112x72": "added",
        "4096x2112x72": "changed",
    }
    assert compare(before, before) == []


def test_the_body_is_canonical_json() -> None:
    body = snapshot(answer()).body
    again = json.dumps(json.loads(body), sort_keys=True, separators=(",", ":")).encode()
    assert again == body


def test_why_a_problem_was_refused_is_told_to_readers_and_changes_the_id() -> None:
    miss = Miss("no_valid_config", "it was tuned in vain.", {"wrong_result": 3})
    plain = snapshot(answer())
    made = build_snapshot(DEVICE_KEY, "NVIDIA H200", [(answer(), {})], refused={NARROW: miss})
    assert made.id != plain.id
    assert (plain.refused, read_snapshot(made.body, made.id).refused) == ({}, {NARROW: miss})
    book = Book.from_snapshot(made)
    assert find(NARROW, {DEVICE_KEY: book}, device_key=DEVICE_KEY) == miss


@pytest.mark.parametrize("told", [3, [3], [{}], [{"state": "bogus"}]])
def test_a_refusal_of_another_form_is_refused(told: object) -> None:
    body = json.dumps({**json.loads(snapshot(answer()).body), "refused": told}).encode()
    with pytest.raises(InvalidSnapshot, match="not of this form"):
        read_snapshot(body, Snapshot(body).id)
