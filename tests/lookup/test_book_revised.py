"""A book that was revised answers as one that was made anew, and the old one as before."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from tests.lookup.measured import (
    H200,
    NARROW,
    PINGPONG,
    SQUARE,
    Answers,
    book,
    known,
    launched,
    measured,
    problem,
)
from tests.lookup.test_layer import interval, layer
from tuner.lookup import Answer, Book, Miss, find, neighbours
from tuner.lookup.distance import distance
from tuner.lookup.terms import ALL_TERMS, Terms
from tuner.shape import Problem
from tuner.trial import Toolchain

ASKED = [
    *[problem(4096, 4096, 4096), problem(2048, 2048, 2048), problem(3000, 3000, 3000)],
    *[problem(17, 8192, 8192), problem(64, 64, 64), problem(128, 4096, 512)],
    *[replace(problem(1500, 1500, 1500), d="col"), problem(1000, 1001, 1000)],
]
COME = problem(3072, 3072, 3072)
REFUSAL = Miss("no_valid_config", "Tuned, and nothing is fit to serve.", {"crashed": 2})


def found(of: Book) -> list[Answer | Miss]:
    return [
        find(asked, {H200: of}, device_key=H200, protocol=terms.protocol, plain=terms.plain)
        for asked in ASKED
        for terms in ALL_TERMS
    ]


def without(answers: Sequence[Answers], gone: Problem) -> list[Answers]:
    return [one for one in answers if one[0].problem != gone]


def test_problems_that_come_change_and_go_are_as_in_a_book_made_anew() -> None:
    before, gone, changes = book(known()), ASKED[1], ASKED[0]
    as_before = found(before)
    new = measured(COME, launched(SQUARE, COME))
    other = measured(changes, launched(PINGPONG, changes), launched(NARROW, changes), us=(150, 300))
    after = before.revised({COME: new, changes: other, gone: None})
    expected = [new, other, *without(without(known(), gone), changes)]
    assert found(after) == found(book(expected))
    assert found(before) == as_before
    assert (len(after), gone in after, COME in after) == (len(before), False, True)
    assert after.problems == book(expected).problems


def test_refusal_takes_the_place_of_an_answer_and_an_answer_that_of_a_refusal() -> None:
    asked = ASKED[0]
    refused = book(known()).revised({asked: REFUSAL})
    assert find(asked, {H200: refused}, device_key=H200) == REFUSAL
    again = refused.revised({asked: known()[0]})
    assert find(asked, {H200: again}, device_key=H200) == known()[0][0]


def test_answers_that_did_not_change_are_the_same_objects_stale_ones_too() -> None:
    old = Book(H200, "NVIDIA H200", known(), current=Toolchain("another", "1"))
    kept = old.exact(ASKED[1], Terms())
    assert kept is not None
    assert kept.stale
    assert old.revised({ASKED[0]: None}).exact(ASKED[1], Terms()) is kept


def test_layers_stay_unless_others_are_given() -> None:
    one = layer(interval(1, 64, NARROW, 16))
    with_one = Book(H200, "NVIDIA H200", known(), [one])
    assert with_one.revised({COME: None}).layers == [one]
    assert with_one.revised({}, []).layers == []


@pytest.mark.parametrize("kind", ["fp8", "bf16"])
def test_first_problem_of_a_kind_is_found(kind: str) -> None:
    answer, others = known()[0]
    asked = replace(answer.problem, dtype=kind)
    one = (replace(answer, problem=asked), others)
    grown = Book(H200, "NVIDIA H200").revised({asked: one})
    assert find(asked, {H200: grown}, device_key=H200) == one[0]
    assert [p for _, p in grown.near(asked, Terms(), 1.0, 1)] != []


@pytest.mark.parametrize("few", [0, 10**6])
def test_near_problems_are_the_same_cell_by_cell_and_one_by_one(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "FEW", few)
    rng = Random(1)

    def anywhere() -> Problem:
        m, n, k = (max(1, int(2 ** rng.uniform(0, 15))) for _ in range(3))
        return problem(m, n, 8 * k, rng.choice([132, 64]))

    tuned = list(dict.fromkeys(anywhere() for _ in range(300)))
    grown = neighbours.Neighbours(tuned[:200]).changed(tuned[:20], tuned[200:])
    for _ in range(60):
        asked, reach, count = anywhere(), rng.uniform(0, neighbours.REACH), rng.randint(1, 20)
        apart = sorted((distance(asked, one), one) for one in tuned[20:])
        expected = [near for near in apart if near[0] <= reach][:count]
        assert grown.within(asked, reach, count) == expected
