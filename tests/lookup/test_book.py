"""A book is what a snapshot holds, on every term, and finds the shapes nearest to any other."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lookup.measured import (
    H200,
    NARROW,
    PINGPONG,
    SPLIT,
    SQUARE,
    known,
    launched,
    measured,
    problem,
)
from tests.store.examples import CUBLAS, race
from tuner.lookup import Answer, Book, Race, Terms, answers_on_terms, choose, find
from tuner.lookup.distance import distance
from tuner.lookup.neighbours import REACH, Neighbours
from tuner.lookup.snapshot import (
    FIRST_FORMAT,
    InvalidSnapshot,
    Snapshot,
    build_snapshot,
    compare,
    read_snapshot,
)
from tuner.lookup.terms import ALL_TERMS
from tuner.shape import GemmShape, Problem
from tuner.trial import PROTOCOL_COOL, PROTOCOL_HOT, Contender

ASKED = problem(64, 256, 16384)
CONFIGS = {
    launched(SPLIT, ASKED, dependent=True): (9.0, 9.5),
    launched(SPLIT, ASKED): (9.4, 9.4),
    launched(NARROW, ASKED, dependent=True): (9.6, 9.7),
    launched(PINGPONG, ASKED): (9.8, 9.9),
    launched(SQUARE, ASKED): (9.9, 9.8),
}


def races() -> list[Race]:
    """Four winners: with and without dependent launch, with and without splitting K."""
    found = []
    for index, protocol in enumerate((PROTOCOL_HOT, PROTOCOL_COOL)):
        rounds = {Contender("kernel", c): [us[index]] * 9 for c, us in CONFIGS.items()}
        rows = race(protocol, {**rounds, CUBLAS: [10.0] * 9}, protocol, problem=ASKED)
        found.append(Race(protocol, protocol, tuple(rows)))
    return found


def snapshot(*answers: Any) -> Snapshot:
    made = build_snapshot(H200, "NVIDIA H200", answers)
    return read_snapshot(made.body, made.id)


def first_format(made: Snapshot) -> Snapshot:
    """The same as the first release wrote it: answers for protocols only, each in full."""
    body = json.loads(made.body)
    protocols = (PROTOCOL_HOT, PROTOCOL_COOL)
    entries = [
        {**entry, "under": {p: entry["under"][p] for p in protocols}} for entry in made.entries
    ]
    del body["layers"]
    text = json.dumps({**body, "format": FIRST_FORMAT, "entries": entries}, sort_keys=True)
    old = Snapshot(text.encode())
    return read_snapshot(old.body, old.id)


@pytest.mark.parametrize("terms", ALL_TERMS, ids=lambda t: t.label or "any")
def test_every_answer_travels_in_a_snapshot_and_comes_back_the_same(terms: Terms) -> None:
    chosen = choose(races(), terms.protocol, plain=terms.plain, numerics=terms.numerics)
    found = answers_on_terms(races())
    assert found is not None
    book = Book.from_snapshot(snapshot(found))
    assert chosen is not None
    assert book.exact(ASKED, terms) == chosen
    entry = snapshot(found).find(ASKED, terms.protocol, plain=terms.plain, numerics=terms.numerics)
    assert entry is not None
    assert entry["config"] == chosen.config.to_dict()


def test_answers_on_other_terms_differ_and_equal_ones_are_told_once() -> None:
    found = answers_on_terms(races())
    assert found is not None
    best, under = found
    winners = {under[label].config for label in ("plain", "invariant", "plain invariant")}
    assert len({best.config, *winners}) == 4
    plain_only = measured(ASKED, launched(NARROW, ASKED))
    (entry,) = json.loads(snapshot(plain_only).body)["entries"]
    assert entry["under"]["plain invariant"] == ""
    assert entry["under"][f"{PROTOCOL_HOT} plain"] == PROTOCOL_HOT


def test_a_snapshot_of_the_first_format_answers_all_that_its_best_configs_meet() -> None:
    square, deep = known()[0], answers_on_terms(races())
    assert deep is not None
    made = snapshot(square, deep)
    book = Book.from_snapshot(first_format(made))
    for terms in ALL_TERMS:
        expected = square[1].get(terms.label, square[0])
        assert book.exact(square[0].problem, terms) == expected
    assert book.exact(ASKED, Terms()) == deep[0]
    assert book.exact(ASKED, Terms(plain=True)) is None
    assert compare(first_format(made), made) == []


def test_an_entry_of_another_version_is_absent_and_the_others_are_not() -> None:
    body = json.loads(snapshot(*known()[:2]).body)
    body["entries"][0]["config"]["from_the_future"] = 7
    changed = Snapshot(json.dumps(body).encode())
    book = Book.from_snapshot(read_snapshot(changed.body, changed.id))
    first, second = book.problems
    assert book.exact(first, Terms()) is None
    assert isinstance(find(first, {H200: book}, device_key=H200, plain=True), Answer)
    assert book.exact(second, Terms()) is not None


@pytest.mark.parametrize(
    "damage",
    [
        {"layers": [{"n": 1}]},
        {"layers": 3},
        {"entries": [{}]},
        {"device": None},
    ],
    ids=str,
)
def test_what_is_no_snapshot_is_refused(damage: dict[str, Any]) -> None:
    body = {**json.loads(snapshot(*known()[:1]).body), **damage}
    changed = Snapshot(json.dumps(body).encode())
    with pytest.raises(InvalidSnapshot, match="not of this form"):
        read_snapshot(changed.body, changed.id)


extents = st.integers(0, 30).map(lambda e: int(2 ** (e / 2)))
shapes = st.builds(lambda m, n, k: Problem(GemmShape(m, n, k), 132), extents, extents, extents)


@settings(max_examples=100, deadline=None)
@given(st.sets(shapes, max_size=40), shapes, st.integers(1, 12), st.sampled_from([1.0, 5.0, REACH]))
def test_the_nearest_are_found_as_if_all_were_compared(
    tuned: set[Problem], asked: Problem, count: int, reach: float
) -> None:
    away = sorted((distance(asked, p), p) for p in tuned)
    expected = [(d, p) for d, p in away if d <= reach][:count]
    assert Neighbours(tuned).within(asked, reach, count) == expected


def test_distance_counts_doublings_and_knows_column_major_products() -> None:
    one = problem(512, 1024, 2048)
    assert distance(one, problem(1024, 1024, 512)) == 3.0
    assert distance(one, problem(512, 1024, 2048, sms=66)) == 1.0
    assert distance(one, replace(problem(1024, 512, 2048), d="col")) == 0.0
