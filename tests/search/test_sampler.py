"""Ask and tell: no config twice, failures avoided, and better than drawing at random."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import optuna
import pytest

from tests.device.fake import TOOLCHAIN, true_us
from tuner.config import KernelConfig
from tuner.lookup.cost_model import estimate_us
from tuner.search.outlook import PER_SHAPE, hot_times, nearest_lessons
from tuner.search.sampler import Searcher
from tuner.search.seeds import nearest, ranked, seeds, winners
from tuner.search.space import menu, sample
from tuner.shape import GemmShape, Problem
from tuner.trial import (
    PROTOCOL_HEAT,
    PROTOCOL_HOT,
    PROTOCOL_SCREEN,
    Contender,
    Measurement,
    TrialState,
)

PROBLEM = Problem(GemmShape(2048, 2048, 2048), 132)
NEAR = Problem(GemmShape(2048, 2048, 4096), 132)
FAR = Problem(GemmShape(16, 8192, 128), 132)
SKINNY = Problem(GemmShape(64, 2112, 7168), 132)
MENU = menu(PROBLEM)


def row(
    config: KernelConfig,
    us: float | None,
    state: TrialState = TrialState.OK,
    problem: Problem = PROBLEM,
    protocol: str = PROTOCOL_SCREEN,
) -> Measurement:
    return Measurement(
        problem,
        "key",
        "name",
        protocol,
        Contender("kernel", config),
        TOOLCHAIN,
        state,
        () if us is None else (us,),
    )


def measured(configs: Iterable[KernelConfig], problem: Problem = PROBLEM) -> list[Measurement]:
    return [row(c, true_us(problem, c), problem=problem) for c in configs]


def explore(searcher: Searcher, problem: Problem, batches: Sequence[int]) -> list[Measurement]:
    rows = []
    for count in batches:
        asked = measured(searcher.ask(count), problem)
        for measurement in asked:
            searcher.tell(measurement)
        rows += asked
    return rows


def fastest(rows: Iterable[Measurement]) -> float:
    return min(r.median_us for r in rows if r.median_us)


def test_no_config_is_proposed_twice_and_the_menu_can_be_used_up() -> None:
    entries = menu(SKINNY)[:40]
    searcher = Searcher(SKINNY, entries)
    asked: list[KernelConfig] = []
    while batch := searcher.ask(7):
        asked += batch
        for config in batch[::2]:  # the others stay under way
            searcher.tell(row(config, estimate_us(SKINNY, config), problem=SKINNY))
    assert sorted(asked) == sorted(entries)


def test_the_same_rows_lead_to_the_same_proposals() -> None:
    known = measured(sample(PROBLEM, 10, seed=1))
    asked = [Searcher(PROBLEM, MENU, known=known).ask(20) for _ in range(2)]
    assert asked[0] == asked[1]


def test_known_rows_count_as_told_and_are_not_asked_for() -> None:
    known = measured(sample(PROBLEM, 30, seed=2))
    searcher = Searcher(PROBLEM, MENU, known=known)
    best = min(known, key=lambda r: r.median_us or 0)
    assert searcher.fastest(1) == [best.contender.config]
    assert not {r.contender.config for r in known} & set(searcher.ask(40))


@pytest.mark.parametrize(
    "state", [TrialState.COMPILE_REFUSED, TrialState.CRASHED, TrialState.WRONG_RESULT]
)
@pytest.mark.parametrize("where", [PROBLEM, NEAR], ids=["this shape", "another shape"])
def test_a_failed_variant_is_not_proposed_again_in_any_launch(
    state: TrialState, where: Problem
) -> None:
    first = Searcher(PROBLEM, MENU).ask(8)
    failures = [row(c, None, state, problem=where) for c in first]
    if where == PROBLEM:
        searcher = Searcher(PROBLEM, MENU, known=failures)
    else:
        searcher = Searcher(PROBLEM, MENU, lessons=failures)
    failed = {c.variant for c in first}
    asked = searcher.ask(24)
    assert len(asked) == 24
    assert not failed & {c.variant for c in asked}


def test_an_unstable_timing_rules_out_a_launch_and_not_its_variant() -> None:
    searcher = Searcher(PROBLEM, MENU)
    (config,) = searcher.ask(1)
    searcher.tell(row(config, None, TrialState.UNSTABLE))
    other = min(c for c in MENU if c.variant != config.variant)
    searcher.tell(row(other, 100.0))
    relaunched = replace(config, knobs=replace(config.knobs, group=1))
    searcher.tell(row(relaunched, 1.0))
    assert searcher.fastest(1)[0].variant == config.variant


def test_every_proposal_failing_ends_in_other_proposals_and_never_in_an_error() -> None:
    searcher = Searcher(SKINNY, menu(SKINNY))
    for _ in range(6):
        for config in searcher.ask(8):
            searcher.tell(row(config, None, TrialState.CRASHED, problem=SKINNY))
    assert searcher.fastest(5) == []
    assert searcher.ask_knobs(4, searcher.fastest(4)) == []
    assert len(searcher.ask(8)) == 8


def test_forty_eight_trials_find_more_than_random_ones_do() -> None:
    best = fastest(measured(MENU))
    found = fastest(explore(Searcher(PROBLEM, MENU), PROBLEM, (16, 16, 16)))
    # As `sample` draws them.
    drawn = [fastest(measured(random.Random(s).sample(MENU, 48))) / best for s in range(20)]
    assert found / best < sorted(drawn)[2]


def test_neighbouring_shapes_teach_what_the_model_gets_wrong() -> None:
    lessons = measured(sample(NEAR, 120, seed=3), NEAR)
    best = fastest(measured(MENU))
    alone = fastest(explore(Searcher(PROBLEM, MENU), PROBLEM, (16, 8)))
    taught = fastest(explore(Searcher(PROBLEM, MENU, lessons=lessons), PROBLEM, (16, 8)))
    assert taught <= alone
    assert taught / best < 1.03


def test_relaunches_stay_on_the_fastest_variants_and_build_on_the_better_launches() -> None:
    searcher = Searcher(PROBLEM, MENU)
    explore(searcher, PROBLEM, (16,))
    kept = {c.variant for c in searcher.fastest(4)}
    asked = searcher.ask_knobs(12, searcher.fastest(4))
    assert len(set(asked)) == 12
    assert {c.variant for c in asked} <= kept
    assert all(c.knobs not in {m.knobs for m in MENU if m.variant == c.variant} for c in asked)
    fast = row(asked[0], 0.5)
    searcher.tell(fast)
    knobs = asked[0].knobs
    later = searcher.ask_knobs(40, searcher.fastest(4))
    two_apart = [c for c in later if c.variant == asked[0].variant]
    default = next(m.knobs for m in MENU if m.variant == asked[0].variant)
    assert any(
        sum(getattr(c.knobs, f) != getattr(default, f) for f in ("raster", "promotion", "num_sms"))
        + ((c.knobs.evict_a, c.knobs.evict_b) != (default.evict_a, default.evict_b))
        >= 2
        for c in two_apart
    ), f"none of {len(two_apart)} launches builds on {knobs}"


def test_a_recording_restricts_relaunches_to_what_it_holds() -> None:
    entries = sample(PROBLEM, 20, seed=4)
    searcher = Searcher(PROBLEM, entries, exactly=True)
    asked = explore(searcher, PROBLEM, (30,))
    assert {r.contender.config for r in asked} == set(entries)
    assert searcher.ask_knobs(5, searcher.fastest(4)) == []


def test_finalists_may_hold_few_launches_of_one_variant() -> None:
    searcher = Searcher(PROBLEM, MENU)
    explore(searcher, PROBLEM, (16,))
    for config in searcher.ask_knobs(24, searcher.fastest(1)):
        searcher.tell(row(config, 0.001))
    finalists = searcher.fastest(6, per_variant=3)
    counts = [sum(f.variant == c.variant for f in finalists) for c in finalists]
    assert max(counts) == 3
    assert len(finalists) == 6


def test_a_menu_that_grew_since_the_rows_were_stored_is_no_obstacle() -> None:
    # Rows made when the menu had none of the later choices, and one whose tile is gone from it.
    early = measured(MENU[:5])
    searcher = Searcher(PROBLEM, MENU[10:], known=early)
    assert len(searcher.ask(20)) == 20
    assert searcher.fastest(1)[0] in MENU[:5]


def test_the_first_proposals_are_what_won_under_an_older_kernel() -> None:
    won = [MENU[len(MENU) // 2], MENU[3]]
    assert Searcher(PROBLEM, MENU, won=won).ask(2) == won


def test_a_winner_that_is_not_on_the_menu_is_passed_over() -> None:
    skinny = menu(SKINNY)
    strangers = [c for c in MENU if c.variant not in {s.variant for s in skinny}]
    assert seeds(skinny, [*strangers, skinny[7]]) == [skinny[7]]


def test_what_nothing_was_told_of_is_proposed_by_the_model_and_in_various_tiles() -> None:
    asked = Searcher(PROBLEM, MENU).ask(16)
    assert asked[0] in ranked(PROBLEM, MENU)[:3]
    assert len({(c.variant.block_m, c.variant.block_n, c.variant.schedule) for c in asked}) >= 3


def test_without_a_model_a_search_still_finds_what_is_fast() -> None:
    searcher = Searcher(PROBLEM, MENU, estimate=lambda _problem, _config: 1.0)
    found = fastest(explore(searcher, PROBLEM, (16, 16, 16)))
    assert found <= 1.1 * fastest(measured(MENU))


def test_times_of_other_protocols_are_brought_to_the_level_of_the_race() -> None:
    a, b, c = MENU[:3]
    rows = [
        row(a, 10.0, protocol=PROTOCOL_HOT),
        row(b, 12.0, protocol=PROTOCOL_HEAT),
        row(a, 20.0, protocol=PROTOCOL_HEAT),
        row(a, 5.0),
        row(c, 7.0),
    ]
    assert hot_times(rows) == {a: 10.0, b: 6.0, c: 14.0}


def test_lessons_are_the_fastest_configs_of_the_nearest_shapes_less_the_shapes_offset() -> None:
    # Twice as slow throughout as the model says: that is the shape's own, and teaches nothing.
    rows = [row(c, 2 * estimate_us(NEAR, c), problem=NEAR) for c in menu(NEAR)]
    rows += [row(c, None, TrialState.CRASHED, problem=NEAR) for c in menu(NEAR)[:3]]
    lessons = nearest_lessons(PROBLEM, rows)
    assert len(lessons) == PER_SHAPE
    assert max(abs(deviation) for _, _, deviation in lessons) < 1e-9
    assert {c for _, c, _ in lessons} == set(ranked(NEAR, menu(NEAR))[:PER_SHAPE])


def test_winners_come_from_this_shape_and_then_from_the_nearest() -> None:
    a, b, c, d = MENU[:4]
    rows = [
        row(a, 9.0, problem=FAR, protocol=PROTOCOL_HOT),
        row(b, 9.0, problem=NEAR, protocol=PROTOCOL_HOT),
        row(c, 5.0, problem=NEAR, protocol=PROTOCOL_HOT),
        row(d, 7.0, protocol=PROTOCOL_HOT),
        row(a, 0.1, problem=NEAR),  # a screening wins nothing
    ]
    assert winners(PROBLEM, rows) == [d, c, b, a]
    assert nearest(PROBLEM, [FAR, PROBLEM, NEAR]) == [NEAR, FAR]


Rule = Callable[[KernelConfig], bool]


@pytest.mark.parametrize(
    ("extents", "rule"),
    [
        ((4096, 4096, 4096), lambda c: c.variant.block_m * c.variant.block_n >= 128 * 112),
        ((512, 512, 512), lambda c: c.variant.block_m * c.variant.block_n <= 128 * 64),
        ((16, 4096, 14336), lambda c: c.variant.transposed_store),
        ((4096, 2112, 7168), lambda c: c.variant.block_n == 176),
    ],
    ids=["big tiles for big shapes", "small for small", "exchanged for skinny", "whole waves"],
)
def test_the_model_ranks_first_what_hardware_favours(
    extents: tuple[int, int, int], rule: Rule
) -> None:
    problem = Problem(GemmShape(*extents), 132)
    assert all(rule(c) for c in ranked(problem, menu(problem))[:5])


def test_a_search_says_nothing_on_the_console(capfd: pytest.CaptureFixture[str]) -> None:
    optuna.logging.set_verbosity(optuna.logging.INFO)
    searcher = Searcher(SKINNY, menu(SKINNY)[:10])
    for config in searcher.ask(4):
        searcher.tell(row(config, random.Random(1).random() + 1, problem=SKINNY))
    assert capfd.readouterr() == ("", "")
