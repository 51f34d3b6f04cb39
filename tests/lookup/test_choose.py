"""The rules that make one config the best."""

import json
from dataclasses import replace
from datetime import timedelta
from itertools import permutations
from math import sqrt
from random import Random
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.examples import (
    CUBLAS,
    CUBLASLT,
    NOON,
    PROBLEM,
    TOOLCHAIN,
    config,
    dependent,
    kernel,
    race,
    splitting,
)
from tuner.lookup import Answer, Library, Numerics, Race, choose, numerics_of
from tuner.trial import (
    PROTOCOL_COOL,
    PROTOCOL_HOT,
    PROTOCOL_SCREEN,
    Conditions,
    Contender,
    Measurement,
    Source,
    Toolchain,
    TrialState,
    paired_ratio,
)

A, B, C = kernel(64), kernel(128), kernel(256)
ROUNDS = 15
NEW = Toolchain("newer", "13.0.88")


def around(us: float, seed: int = 0) -> list[float]:
    """Rounds whose median is `us`, within a tenth of a percent."""
    random = Random(seed)
    noise = sorted(random.uniform(-0.001, 0.001) for _ in range(ROUNDS))
    rounds = [us * (1 + n - median(noise)) for n in noise]
    random.shuffle(rounds)
    return rounds


def raced(
    times_us: dict[Contender, float],
    protocol: str = PROTOCOL_HOT,
    name: str = "",
    **changes: Any,
) -> Race:
    """A race in which contenders took about so long."""
    samples = {who: around(us, seed) for seed, (who, us) in enumerate(times_us.items())}
    name = name or protocol
    return Race(name, protocol, tuple(race(name, samples, protocol, **changes)))


def both(hot: dict[Contender, float], cool: dict[Contender, float], **changes: Any) -> list[Race]:
    return [raced(hot, PROTOCOL_HOT, **changes), raced(cool, PROTOCOL_COOL, **changes)]


def chosen(races: list[Race], protocol: str | None = None, **known: Any) -> Answer:
    answer = choose(races, protocol, **known)
    assert answer is not None
    return answer


def test_the_best_geometric_mean_of_hot_and_cool_wins() -> None:
    # Ratios: A 1.25 and 1.05, B 1.10 and 1.20 (1.149 against 1.146).
    races = both(
        {CUBLAS: 100, A: 100 / 1.25, B: 100 / 1.10}, {CUBLAS: 90, A: 90 / 1.05, B: 90 / 1.20}
    )
    answer = chosen(races)
    assert answer.config == B.config
    assert answer.speedup == pytest.approx(sqrt(1.10 * 1.20), rel=2e-3)
    assert answer.use == "kernel"
    assert answer.library is None


def test_a_config_that_loses_to_cublas_in_one_protocol_is_passed_over() -> None:
    # A is better by the mean (1.14 against 1.03) but 2 % slower than cuBLAS when cool.
    races = both(
        {CUBLAS: 100, A: 100 / 1.33, B: 100 / 1.03}, {CUBLAS: 90, A: 90 / 0.98, B: 90 / 1.03}
    )
    assert chosen(races).config == B.config
    assert chosen(races, PROTOCOL_HOT).config == A.config
    assert chosen(races, PROTOCOL_COOL).config == B.config


def test_where_every_config_loses_somewhere_the_best_is_named_and_cublas_is_to_be_used() -> None:
    races = both(
        {CUBLAS: 100, A: 100 / 1.20, B: 100 / 1.01}, {CUBLAS: 90, A: 90 / 0.97, B: 90 / 0.98}
    )
    answer = chosen(races)
    assert answer.config == A.config
    assert answer.speedup == pytest.approx(sqrt(1.20 * 0.97), rel=2e-3)
    assert answer.use == "cublas"
    assert answer.library == Library("13.1.0.3", None)


def test_a_faster_cublaslt_algorithm_is_to_be_used_with_its_attributes() -> None:
    races = both({CUBLAS: 100, CUBLASLT: 95, A: 97}, {CUBLAS: 90, CUBLASLT: 85, A: 88})
    answer = chosen(races)
    assert answer.config == A.config
    assert answer.use == "cublaslt"
    assert answer.library == Library("13.1.0.3", "tile=20 stages=35")
    assert answer.timings[0].cublaslt_best_us == pytest.approx(95, rel=1e-6)


def test_an_algorithm_that_loses_to_cublas_in_one_protocol_is_not_to_be_used() -> None:
    races = both({CUBLAS: 100, CUBLASLT: 80, A: 99}, {CUBLAS: 90, CUBLASLT: 91, A: 89})
    assert chosen(races).use == "kernel"
    assert chosen(races, PROTOCOL_HOT).use == "cublaslt"


def test_an_algorithm_raced_under_one_protocol_is_shown_there_but_not_recommended() -> None:
    other = Contender("cublaslt", algorithm="tile=15")
    races = both({CUBLAS: 100, CUBLASLT: 80, A: 99}, {CUBLAS: 90, other: 80, A: 89})
    answer = chosen(races)
    assert answer.use == "kernel"
    assert [t.cublaslt_best_us for t in answer.timings] == [
        pytest.approx(80, rel=1e-6),
        pytest.approx(80, rel=1e-6),
    ]


def test_equal_speeds_are_won_by_the_kernel_over_cublaslt() -> None:
    rounds = around(90)
    samples = {CUBLAS: around(100, 1), CUBLASLT: rounds, A: rounds}
    answer = chosen([Race("r", PROTOCOL_HOT, tuple(race("r", samples)))])
    assert answer.use == "kernel"


def test_a_ratio_is_taken_within_the_round_not_between_medians() -> None:
    # The card slows down in the middle of the race; within each round we are 10 % faster.
    pace = [1.0] * 5 + [3.0] * 4 + [1.0] * 2
    samples = {
        CUBLAS: [100 * p for p in pace],
        A: [100 / 1.1 * p for p in pace],
        B: [99.0] * 5 + [297.0] * 4 + [1.0] * 2,
    }
    answer = chosen([Race("r", PROTOCOL_HOT, tuple(race("r", samples)))])
    assert answer.config == A.config
    assert answer.speedup == pytest.approx(paired_ratio(samples[CUBLAS], samples[A]))
    assert answer.speedup == pytest.approx(1.1)


def test_ties_are_decided_by_a_fixed_order_and_listed() -> None:
    slower = kernel(32)
    races = [raced({CUBLAS: 100, C: 80.0, B: 80.01, A: 80.02, slower: 85.0})]
    answer = chosen(races)
    assert answer.config == A.config
    assert answer.ties == (B.config, C.config)


def test_half_a_percent_apart_is_no_tie_however_noisy() -> None:
    random = Random(1)
    samples = {
        CUBLAS: [100.0] * ROUNDS,
        A: [80.8 + random.uniform(-20, 20) for _ in range(ROUNDS)],
        C: [80.0 + random.uniform(-20, 20) for _ in range(ROUNDS)],
    }
    gap = paired_ratio(samples[CUBLAS], samples[A]) / paired_ratio(samples[CUBLAS], samples[C])
    assert abs(gap - 1) > 0.005
    answer = chosen([Race("r", PROTOCOL_HOT, tuple(race("r", samples)))])
    assert answer.ties == ()


def test_intervals_apart_are_no_tie_however_close() -> None:
    samples = {CUBLAS: [100.0] * ROUNDS, A: [80.2] * ROUNDS, C: [80.0] * ROUNDS}
    answer = chosen([Race("r", PROTOCOL_HOT, tuple(race("r", samples)))])
    assert (answer.config, answer.ties) == (C.config, ())


def test_a_tie_with_a_config_that_loses_somewhere_is_no_tie() -> None:
    races = both({CUBLAS: 100, A: 95.0, C: 99.0}, {CUBLAS: 90, A: 90.3, C: 87.0})
    answer = chosen(races)
    assert (answer.config, answer.ties) == (C.config, ())


def test_times_baseline_and_interval_are_those_of_the_race() -> None:
    hot = raced({CUBLAS: 100, CUBLASLT: 98, A: 80})
    answer = chosen([hot])
    times = dict(zip((CUBLAS, CUBLASLT, A), (m.samples_us for m in hot.measurements), strict=True))
    (timing,) = answer.timings
    assert timing.protocol == PROTOCOL_HOT
    assert timing.median_us == median(times[A])
    assert timing.cublas_us == median(times[CUBLAS])
    assert timing.cublaslt_best_us == median(times[CUBLASLT])
    assert timing.tflops == pytest.approx(PROBLEM.shape.flops / median(times[A]) / 1e6)
    assert timing.samples == ROUNDS
    ordered = sorted(times[A])
    assert timing.ci95_us == (ordered[3], ordered[11])
    assert timing.speedup == answer.speedup == paired_ratio(times[CUBLAS], times[A])


def test_without_a_cublaslt_row_its_baseline_is_unknown() -> None:
    assert chosen([raced({CUBLAS: 100, A: 80})]).timings[0].cublaslt_best_us is None


def test_the_fastest_of_several_algorithms_is_the_baseline() -> None:
    other = Contender("cublaslt", algorithm="tile=15")
    (timing,) = chosen([raced({CUBLAS: 100, CUBLASLT: 98, other: 93, A: 80})]).timings
    assert timing.cublaslt_best_us == pytest.approx(93, rel=1e-6)


def test_without_a_protocol_hot_is_shown_and_both_are_given() -> None:
    answer = chosen(both({CUBLAS: 100, A: 80}, {CUBLAS: 90, A: 75}))
    assert [t.protocol for t in answer.timings] == [PROTOCOL_HOT, PROTOCOL_COOL]
    assert answer.measurement == answer.timings[0]
    assert answer.speedup == pytest.approx(
        sqrt(answer.timings[0].speedup * answer.timings[1].speedup)
    )


@pytest.mark.parametrize("protocol", [PROTOCOL_HOT, PROTOCOL_COOL])
def test_a_shape_raced_under_one_protocol_is_answered_from_that_one(protocol: str) -> None:
    answer = chosen([raced({CUBLAS: 100, A: 80}, protocol)])
    assert [t.protocol for t in answer.timings] == [protocol]


def test_a_config_raced_under_both_protocols_comes_before_a_faster_one_raced_under_one() -> None:
    races = both({CUBLAS: 100, A: 80, B: 90}, {CUBLAS: 90, B: 88})
    assert chosen(races).config == B.config


def test_a_protocol_that_was_never_raced_has_no_answer() -> None:
    assert choose([raced({CUBLAS: 100, A: 80})], PROTOCOL_COOL) is None
    assert choose([raced({CUBLAS: 100, A: 80})], "eager-warml2-hot/1") is None


def test_screenings_are_never_an_answer_by_default() -> None:
    assert choose([raced({CUBLAS: 100, A: 80}, PROTOCOL_SCREEN)]) is None


def test_several_races_are_pooled_round_by_round() -> None:
    first = raced({CUBLAS: 100, A: 80}, name="1")
    second = raced({CUBLAS: 200, A: 190, B: 150}, name="2")
    answer = chosen([first, second])
    assert answer.config == B.config
    only = chosen([first, replace(second, measurements=second.measurements[:2])])
    pooled_us = first.measurements[1].samples_us + second.measurements[1].samples_us
    baseline_us = first.measurements[0].samples_us + second.measurements[0].samples_us
    assert only.timings[0].samples == 2 * ROUNDS
    assert only.timings[0].median_us == median(pooled_us)
    assert only.speedup == paired_ratio(baseline_us, pooled_us)


def test_the_baseline_is_of_the_races_that_the_config_ran_in() -> None:
    answer = chosen(
        [
            raced({CUBLAS: 100, CUBLASLT: 70, A: 95}, name="1"),
            raced({CUBLAS: 200, B: 150}, name="2"),
        ]
    )
    assert answer.config == B.config
    assert answer.timings[0].cublas_us == pytest.approx(200, rel=1e-6)
    assert answer.timings[0].cublaslt_best_us is None


def test_an_a_a_pair_counts_once() -> None:
    a, b = around(100, 1), around(102, 2)
    rows = race("r", {CUBLAS: a, A: around(80)}) + race("r", {CUBLAS: b})
    (timing,) = chosen([Race("r", PROTOCOL_HOT, tuple(rows))]).timings
    assert timing.cublas_us == pytest.approx(101, rel=2e-3)
    assert timing.samples == ROUNDS


@pytest.mark.parametrize(
    "races",
    [
        [],
        [raced({A: 80})],
        [raced({CUBLAS: 100, CUBLASLT: 90})],
        [Race("r", PROTOCOL_HOT, ())],
        [Race("r", PROTOCOL_HOT, tuple(race("r", {CUBLAS: [100.0] * 3, A: [80.0] * 2})))],
        [raced({CUBLAS: 100, A: 80}, state=TrialState.UNSTABLE)],
        [Race("r", PROTOCOL_HOT, tuple(race("r", {CUBLAS: [100.0], A: [float("nan")]})))],
        [Race("r", PROTOCOL_HOT, tuple(race("r", {CUBLAS: [0.0], A: [80.0]})))],
        [Race("r", PROTOCOL_HOT, tuple(race("r", {CUBLAS: [1e300], A: [1e-300]})))],
        [Race("r", PROTOCOL_HOT, tuple(race("r", {CUBLAS: [], A: []})))],
    ],
    ids=[
        "nothing", "no baseline", "no kernel", "no rows", "rounds missing", "unstable", "nan",
        "no time", "absurd", "no samples",
    ],
)  # fmt: skip
def test_what_proves_nothing_is_no_answer(races: list[Race]) -> None:
    assert choose(races) is None


def test_a_failed_contender_does_not_spoil_the_race() -> None:
    good = raced({CUBLAS: 100, A: 90})
    bad = race("r", {B: [1.0] * ROUNDS}, state=TrialState.WRONG_RESULT)
    answer = chosen([replace(good, measurements=(*bad, *good.measurements))])
    assert answer.config == A.config


def test_a_replayed_row_serves_only_where_nothing_was_measured() -> None:
    replayed = raced({CUBLAS: 100, A: 50}, name="1", source="replay", toolchain=NEW)
    measured = raced({CUBLAS: 100, B: 90}, name="2")
    assert chosen([replayed, measured], current=NEW).config == B.config
    answer = chosen([replayed])
    assert (answer.config, answer.source) == (A.config, "replay")


@pytest.mark.parametrize("source", ["measured", "import", "replay"])
def test_the_source_is_told(source: Source) -> None:
    assert chosen([raced({CUBLAS: 100, A: 80}, source=source)]).source == source


def test_imported_rows_stand_beside_measured_ones() -> None:
    races = [
        raced({CUBLAS: 100, A: 80}, name="1", source="import"),
        raced({CUBLAS: 100, B: 90}, name="2"),
    ]
    assert chosen(races).config == A.config


def test_the_current_toolchain_comes_before_a_faster_row_of_another() -> None:
    old = raced({CUBLAS: 100, A: 70}, name="1")
    new = raced({CUBLAS: 100, B: 90}, name="2", toolchain=NEW, measured_at=NOON + timedelta(days=1))
    assert chosen([old, new], current=NEW).config == B.config
    assert chosen([old, new], current=TOOLCHAIN).config == A.config
    assert chosen([old, new]).config == B.config
    assert chosen([old, new], current=Toolchain("newest", "14")).config == B.config


def test_rows_of_two_toolchains_are_never_pooled() -> None:
    hot = raced({CUBLAS: 100, A: 80}, PROTOCOL_HOT)
    cool = raced({CUBLAS: 100, A: 80}, PROTOCOL_COOL, toolchain=NEW)
    answer = chosen([hot, cool], current=TOOLCHAIN)
    assert [t.protocol for t in answer.timings] == [PROTOCOL_HOT]


@pytest.mark.parametrize(
    ("known", "stale"),
    [
        ({}, False),
        ({"current": TOOLCHAIN}, False),
        ({"current": NEW}, True),
        ({"current": Toolchain(TOOLCHAIN.kernel_hash, "14.0")}, True),
        ({"current_driver": "580.95"}, False),
        ({"current_driver": "590.10"}, True),
        ({"current": TOOLCHAIN, "current_driver": "580.95"}, False),
    ],
)
def test_what_was_made_with_another_kernel_compiler_or_driver_is_stale(
    known: dict[str, Any], stale: bool
) -> None:
    answer = chosen([raced({CUBLAS: 100, A: 80})], **known)
    assert answer.stale is stale
    assert answer.config == A.config


def test_races_under_the_current_driver_come_before_older_ones() -> None:
    new_driver = Conditions(driver="590.10", cublas_version="13.2")
    races = [
        raced({CUBLAS: 100, A: 70}, name="1"),
        raced({CUBLAS: 100, B: 90}, name="2", conditions=new_driver),
    ]
    answer = chosen(races, current_driver="590.10")
    assert (answer.config, answer.stale) == (B.config, False)
    assert chosen(races).config == A.config


def test_only_a_kernel_that_does_not_split_k_is_invariant() -> None:
    assert numerics_of(A) == numerics_of(dependent()) == "invariant"
    for contender in (splitting(), CUBLAS, CUBLASLT):
        assert numerics_of(contender) == "deterministic"


def test_a_dependent_launch_is_passed_over_where_plain_ones_are_asked_for() -> None:
    fast = dependent(64)
    races = both({CUBLAS: 100, fast: 70, A: 80, B: 90}, {CUBLAS: 90, fast: 60, A: 70, B: 80})
    assert chosen(races).config == fast.config
    assert chosen(races, plain=True).config == A.config
    assert chosen(races, PROTOCOL_COOL, plain=True).config == A.config
    assert choose([raced({CUBLAS: 100, fast: 70})], plain=True) is None


def test_a_dependent_launch_is_no_tie_of_a_plain_one_that_was_asked_for() -> None:
    races = [raced({CUBLAS: 100, A: 80.02, dependent(64): 80.0, B: 80.01})]
    assert chosen(races).ties == (dependent(64).config, B.config)
    assert (chosen(races, plain=True).config, chosen(races, plain=True).ties) == (
        A.config,
        (B.config,),
    )


def test_the_plain_answer_is_beside_the_libraries_like_any_other() -> None:
    races = both({CUBLAS: 100, dependent(): 90, A: 105}, {CUBLAS: 90, dependent(): 80, A: 95})
    assert chosen(races).use == "kernel"
    answer = chosen(races, plain=True)
    assert (answer.config, answer.use) == (A.config, "cublas")


def test_invariant_numerics_have_the_best_config_that_does_not_split_k() -> None:
    fast = splitting(64)
    races = both({CUBLAS: 100, fast: 70, A: 80, B: 90}, {CUBLAS: 90, fast: 60, A: 70, B: 80})
    for numerics in (None, "deterministic"):
        answer = chosen(races, numerics=numerics)
        assert (answer.config, answer.numerics) == (fast.config, "deterministic")
    answer = chosen(races, numerics="invariant")
    assert (answer.config, answer.numerics, answer.ties) == (A.config, "invariant", ())
    assert choose([raced({CUBLAS: 100, fast: 70})], numerics="invariant") is None


def test_invariant_numerics_recommend_no_library_however_fast() -> None:
    races = [raced({CUBLAS: 100, CUBLASLT: 60, splitting(): 80, A: 110})]
    assert chosen(races).use == "cublaslt"
    answer = chosen(races, numerics="invariant")
    assert (answer.config, answer.use, answer.library) == (A.config, "kernel", None)


def test_both_demands_hold_together() -> None:
    times = {CUBLAS: 100.0, splitting(): 60.0, dependent(): 70.0, B: 80.0, A: 90.0}
    answer = chosen([raced(times)], plain=True, numerics="invariant")
    assert answer.config == B.config


def test_a_demand_that_the_newest_kernel_cannot_meet_is_met_by_an_older_one() -> None:
    old = raced({CUBLAS: 100, A: 80}, name="1")
    new = raced({CUBLAS: 100, splitting(): 60}, name="2", toolchain=NEW)
    assert chosen([old, new], current=NEW).config == splitting().config
    answer = chosen([old, new], current=NEW, numerics="invariant")
    assert (answer.config, answer.stale) == (A.config, True)


TIMES = st.floats(50, 150)
CONTENDERS = st.sampled_from(
    [CUBLAS, CUBLASLT, A, B, C, kernel(128, 4), dependent(64), splitting(64)]
)


@st.composite
def some_races(draw: st.DrawFn) -> list[Race]:
    races = []
    for number in range(draw(st.integers(1, 4))):
        protocol = draw(st.sampled_from([PROTOCOL_HOT, PROTOCOL_COOL]))
        entrants = draw(st.lists(CONTENDERS, min_size=1, max_size=5))
        rounds = draw(st.integers(1, 8))
        rows: list[Measurement] = []
        for entrant in [CUBLAS, *entrants]:
            samples = draw(st.lists(TIMES, min_size=rounds, max_size=rounds))
            at = NOON + timedelta(seconds=draw(st.integers(0, 3)))
            toolchain = TOOLCHAIN if number % 2 else NEW
            changes = {"measured_at": at, "toolchain": toolchain}
            rows += race(str(number), {entrant: samples}, protocol, **changes)
        races.append(Race(str(number), protocol, tuple(rows)))
    return races


@given(some_races(), st.randoms(use_true_random=False))
def test_the_order_in_which_rows_arrive_does_not_matter(races: list[Race], random: Random) -> None:
    shuffled = [
        replace(r, measurements=tuple(random.sample(r.measurements, len(r.measurements))))
        for r in random.sample(races, len(races))
    ]
    assert choose(shuffled) == choose(races)
    assert choose(shuffled, PROTOCOL_HOT, NEW, "580.95") == choose(
        races, PROTOCOL_HOT, NEW, "580.95"
    )


@settings(max_examples=200)
@given(some_races())
def test_following_the_answer_is_never_a_loss_in_any_race_it_rests_on(races: list[Race]) -> None:
    answer = choose(races)
    if answer is None:
        return
    if answer.use == "kernel":
        assert all(timing.speedup >= 1 for timing in answer.timings)
    if answer.use != "cublaslt":
        assert answer.library is None or answer.library.algorithm is None
    assert (answer.use == "kernel") == (answer.library is None)
    assert answer.config not in answer.ties
    assert len(set(answer.ties)) == len(answer.ties)


@given(some_races(), st.booleans(), st.sampled_from([None, "deterministic", "invariant"]))
def test_an_answer_keeps_every_demand(
    races: list[Race], plain: bool, numerics: Numerics | None
) -> None:
    answer = choose(races, plain=plain, numerics=numerics)
    if answer is None:
        return
    assert choose(races) is not None
    for found in (answer.config, *answer.ties):
        assert not (plain and found.knobs.dependent_launch)
        assert numerics != "invariant" or found.knobs.split_k == 1
    if numerics == "invariant":
        assert (answer.numerics, answer.use) == ("invariant", "kernel")


@given(some_races())
def test_an_answer_is_strict_json_with_finite_numbers(races: list[Race]) -> None:
    answer = choose(races)
    if answer is not None:
        text = json.dumps(answer.to_json(), allow_nan=False)
        assert json.loads(text) == answer.to_json()


def test_every_order_of_equal_configs_gives_the_same_winner() -> None:
    rounds = around(80)
    for order in permutations([A, B, C]):
        samples = {CUBLAS: around(100, 1), **dict.fromkeys(order, rounds)}
        answer = chosen([Race("r", PROTOCOL_HOT, tuple(race("r", samples)))])
        assert answer.config == config(64)
        assert answer.ties == (config(128), config(256))
