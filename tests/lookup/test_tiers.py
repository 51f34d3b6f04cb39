"""Whatever is asked: a legal config, the same each time, its origin and how sure it is."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lookup.measured import (
    H100_PCIE,
    H200,
    NARROW,
    PINGPONG,
    SPLIT,
    SQUARE,
    book,
    known,
    launched,
    measured,
    problem,
)
from tuner.legality import faults
from tuner.lookup import Answer, Book, Miss, Terms, find, proposals, tiers
from tuner.lookup.neighbours import REACH
from tuner.lookup.terms import ALL_TERMS
from tuner.lookup.tiers import MODEL_REACH, SIBLING
from tuner.shape import MAX_EXTENT, GemmShape, Problem
from tuner.trial import PROTOCOL_COOL, PROTOCOL_HOT, Toolchain

KNOWN = known()
BOOKS = {H200: book(KNOWN)}
ELSEWHERE = {H200: BOOKS[H200], H100_PCIE: book([], H100_PCIE)}

extents = st.one_of(st.integers(1, 300), st.integers(1, 20_000), st.integers(1, MAX_EXTENT))
problems = st.builds(
    lambda m, n, k, sms, d: Problem(GemmShape(m, n, k), sms, d=d),
    extents,
    extents,
    st.one_of(extents, st.integers(1, 8192).map(lambda k: 8 * k)),
    st.one_of(st.just(132), st.integers(1, 132)),
    st.sampled_from(["row", "col"]),
)
terms = st.sampled_from(ALL_TERMS)


def asked_on(terms: Terms) -> dict[str, Any]:
    return {"protocol": terms.protocol, "plain": terms.plain, "numerics": terms.numerics}


def look_up(asked: Problem, books: Any = BOOKS, key: str = H200, **rest: Any) -> Answer:
    found = find(asked, books, device_key=key, **rest)
    assert isinstance(found, Answer), found
    return found


def miss(asked: Problem, books: Any = BOOKS, key: str = H200, **rest: Any) -> Miss:
    found = find(asked, books, device_key=key, **rest)
    assert isinstance(found, Miss), found
    assert found.detail.endswith(".")
    return found


@settings(max_examples=150, deadline=None)
@given(problems, terms, st.randoms())
def test_an_answer_is_legal_keeps_to_the_terms_and_is_the_same_each_time(
    asked: Problem, terms: Terms, random: Any
) -> None:
    on = asked_on(terms)
    shuffled = random.sample(KNOWN, len(KNOWN))
    found = find(asked, BOOKS, device_key=H200, **on)
    assert found == find(asked, BOOKS, device_key=H200, **on)
    assert found == find(asked, {H200: book(shuffled)}, device_key=H200, **on)
    if isinstance(found, Miss):
        assert asked.shape.k % 8 or found.state in ("unsupported", "never_tuned")
        return
    for config in (found.config, *found.ties):
        assert faults(config, asked) == []
        assert terms.admit(config)
    assert (found.problem, found.device_key) == (asked, H200)
    assert found.use == "kernel" or not terms.invariant
    body = found.to_json()
    json.dumps(body, allow_nan=False)
    sure = found.confidence
    if found.match.tier != "exact":
        assert (sure.samples, body["measurement"]) == (0, None)
        assert sure.expected_regret is not None
        assert 0 <= sure.expected_regret.mean <= sure.expected_regret.p95
        low, high = sure.ci95_us or (0.0, 0.0)
        assert 0 < low < high
    if found.match.tier == "nearest":
        assert 0 <= (sure.distance if sure.distance is not None else -1) <= REACH
        assert found.match.from_shape is not None


@pytest.mark.parametrize("terms", ALL_TERMS, ids=lambda t: t.label or "any")
def test_what_was_measured_is_answered_exactly(terms: Terms) -> None:
    for (best, under), match in product(KNOWN, ("any", "exact")):
        on = asked_on(terms)
        expected = under.get(terms.label) if terms.label else best
        if expected is None:
            continue
        found = look_up(best.problem, match=match, **on)
        assert found == expected
        assert found.match.tier == "exact"
        assert found.confidence.samples == 9
        assert (found.confidence.expected_regret, found.confidence.distance) == (None, 0.0)


@settings(max_examples=50, deadline=None)
@given(problems)
def test_exact_takes_nothing_else(asked: Problem) -> None:
    if asked not in BOOKS[H200]:
        assert miss(asked, match="exact").state in ("never_tuned", "unsupported")


def test_exact_says_which_terms_no_raced_config_meets() -> None:
    deep = problem(64, 256, 16384)
    only_split = {H200: book([measured(deep, launched(SPLIT, deep))])}
    refused = miss(deep, only_split, match="exact", numerics="invariant")
    assert refused.state == "no_valid_config"
    assert "is invariant" in refused.detail
    assert look_up(deep, only_split, numerics="invariant").match.tier == "model"


def test_a_near_shape_lends_its_config_and_is_named() -> None:
    """Case 49, and 7: small and large M, M between and beyond them, a fused layer's N."""
    layer = [(m, launched(NARROW, problem(m, 8192, 8192))) for m in (1, 2, 4, 8)]
    layer += [(m, launched(SQUARE, problem(m, 8192, 8192))) for m in (1024, 2048)]
    books = {H200: book([measured(problem(m, 8192, 8192), config) for m, config in layer])}
    for m, family in ((9, NARROW), (2001, SQUARE), (4096, SQUARE)):
        found = look_up(problem(m, 8192, 8192), books)
        assert found.match.tier == "nearest"
        assert found.match.from_shape in [GemmShape(m, 8192, 8192) for m, _ in layer]
        assert found.config.variant == family
    fused = look_up(problem(2048, 8448, 8192), books)
    assert fused.match.from_shape == GemmShape(2048, 8192, 8192)
    assert fused.confidence.distance == pytest.approx(0.0444, abs=1e-3)


def test_a_huge_m_does_not_get_the_config_of_a_small_one() -> None:
    few = [problem(m, 4096, 4096) for m in (1, 2, 4, 8)]
    books = {H200: book([measured(p, launched(NARROW, p)) for p in few])}
    found = look_up(problem(65536, 4096, 4096), books)
    assert found.match.tier == "model"
    assert found.config.variant.block_m * found.config.variant.block_n >= 128 * 128


def test_beyond_every_stated_distance_there_is_no_answer() -> None:
    asked = problem(1, 1, 8)
    refused = miss(asked, {H200: book([])})
    assert refused.state == "never_tuned"
    assert f"within {REACH:g} doublings" in refused.detail
    assert f"more than {MODEL_REACH:g}" in refused.detail


def test_the_same_product_in_the_other_memory_order_is_launched_alike() -> None:
    tuned = problem(384, 3584, 1024)
    books = {H200: book([measured(tuned, launched(PINGPONG, tuned))])}
    asked = replace(problem(3584, 384, 1024), d="col")
    found = look_up(asked, books)
    assert found.config == launched(PINGPONG, tuned)
    assert (found.match.tier, found.confidence.distance) == ("nearest", 0.0)
    assert found.match.from_shape == asked.shape


def test_another_hopper_part_lends_what_fits_this_one() -> None:
    """Cases 50 and 53: a part nobody tuned on, by its key; its SMs are fewer."""
    asked = problem(4096, 4096, 4096, sms=114)
    for books in (BOOKS, ELSEWHERE):
        found = look_up(asked, books, key=H100_PCIE)
        assert found.match.tier == "sibling"
        assert found.device_key == H100_PCIE
        assert found.config.knobs.num_sms <= 114
        assert found.confidence.distance is not None
        assert found.confidence.distance > SIBLING
        assert found.confidence.expected_regret is not None
        assert found.confidence.expected_regret.cases == 0


def test_its_own_close_shapes_come_before_another_part() -> None:
    close = problem(4000, 4096, 4096, sms=114)
    own = measured(close, launched(PINGPONG, close), device_key=H100_PCIE)
    books = {**BOOKS, H100_PCIE: book([own], H100_PCIE)}
    found = look_up(problem(4096, 4096, 4096, sms=114), books, key=H100_PCIE)
    assert (found.match.tier, found.match.from_shape) == ("nearest", close.shape)


@pytest.mark.parametrize(
    "key",
    [
        *("NVIDIA H200", "NVIDIA_H200", "NVIDIA H100 80GB HBM3", "H100/PCIe", "☃", "", "x" * 4000),
        *("sm80-108sm-80gb", "sm120-188sm-96gb", "sm90-132sm-141gb ", "sm90--1sm-141gb"),
    ],
)
def test_no_device_is_guessed_from_a_name_and_none_but_hopper_borrows(key: str) -> None:
    refused = miss(problem(4096, 4096, 4096), key=key)
    assert refused.state == "unknown_device"
    assert H200 in refused.detail
    assert len(refused.detail) < 400


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (problem(128, 128, 133), "multiple of 8"),
        (problem(MAX_EXTENT, MAX_EXTENT, 2**31 - 8), "does not fit"),
        (problem(MAX_EXTENT, 8192, 8), "does not fit"),
        (problem(4096, 4096, 4096, sms=133), "132 multiprocessors"),
    ],
    ids=str,
)
def test_what_the_device_cannot_run_is_refused_with_the_reason(asked: Problem, said: str) -> None:
    for match in ("any", "exact"):
        refused = miss(asked, match=match)
        assert refused.state == "unsupported"
        assert said in refused.detail


def test_a_problem_that_was_tuned_in_vain_is_not_answered_by_guessing() -> None:
    asked, why = (
        problem(4096, 4096, 4000),
        Miss("no_valid_config", "All were wrong.", {"crashed": 9}),
    )
    for answers in (KNOWN, []):
        refusing = Book(H200, "x", answers, refused={asked: why})
        assert refusing  # also where it holds nothing but refusals
        assert find(asked, {H200: refusing}, device_key=H200) == why


def test_stale_is_told_of_measured_and_of_borrowed_answers() -> None:
    """Case 47."""
    current = {H200: Book(H200, "x", KNOWN, current=Toolchain("edited", "13.0.88"))}
    assert look_up(problem(4096, 4096, 4096), current).stale
    assert look_up(problem(4096, 4096, 4000), current).stale
    assert not look_up(problem(4096, 4096, 4000)).stale


def test_a_protocol_that_was_not_raced_is_answered_as_predicted() -> None:
    asked = problem(512, 512, 512)
    best, under = measured(asked, launched(NARROW, asked))
    hot = {H200: book([(best, {PROTOCOL_HOT: under[PROTOCOL_HOT]})])}
    assert look_up(asked, hot, protocol=PROTOCOL_HOT).match.tier == "exact"
    found = look_up(asked, hot, protocol=PROTOCOL_COOL)
    assert (found.match.tier, found.confidence.distance) == ("nearest", 0.0)


def test_the_kernel_is_recommended_only_where_it_is_expected_to_lead() -> None:
    near, asked = problem(4096, 4096, 4096), problem(4096, 4096, 4000)
    leading = {H200: book([measured(near, launched(SQUARE, near))])}
    losing, under = measured(near, launched(SQUARE, near))
    behind = {H200: book([(replace(losing, speedup=0.97, use="cublas"), under)])}
    assert look_up(asked, leading).use == "kernel"
    assert look_up(asked, behind).use == "cublas"
    assert look_up(asked, behind, numerics="invariant").use == "kernel"
    assert look_up(asked, {H200: book([])}).use == "cublas"  # nothing measured says it leads


def test_the_distances_that_the_document_states_are_those_in_use() -> None:
    text = (Path(__file__).parents[2] / "docs" / "look-ups.md").read_text()
    for stated in (
        f"tuned on this device, at most {REACH:g} doublings away",
        f"within {SIBLING:g} doubling |",
        f"at most {MODEL_REACH:g} doublings from every shape it was scored on",
        f"the {tiers.LENDERS} nearest tuned shapes",
        f"by {100 * proposals.PER_DOUBLING:g} % a doubling",
        f"a handicap of {100 * proposals.UNPROVEN:g} %",
    ):
        assert stated in text
    assert proposals.CLOSE == 0.5  # "within half a doubling"
