"""The pipeline over a fake device: what it finds, in what order, and when it is done."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tests.device.fake import TOOLCHAIN, FakeCompiler, FakeDevice, true_us
from tests.study.cases import OTHER, PROBLEM, SMALL, SQUARE, screened, tools, variant
from tests.study.doubles import MemoryRows
from tuner.device.protocol import Entrant
from tuner.search.finalists import LAST_HEAT
from tuner.search.space import menu
from tuner.study import (
    Budget,
    Event,
    RaceStarted,
    ShapeEnded,
    ShapeStarted,
    TrialDone,
    run_all,
    tune,
)
from tuner.trial import PROTOCOL_COOL, PROTOCOL_HEAT, PROTOCOL_HOT, Sampled, ShapeState, Toolchain


def test_a_shape_ends_tuned_with_screens_and_two_races_against_both_libraries() -> None:
    rows = MemoryRows()
    outcome = tune(PROBLEM, tools(FakeDevice(), rows), SMALL)
    assert outcome.state is ShapeState.TUNED
    assert outcome.counts == {"ok": 24}
    assert outcome.trials == 24
    assert outcome.compiled == len({variant(row) for row in screened(rows.rows)})
    assert rows.outcomes == [outcome]
    hot, cool = "tile=128x256 stages=4", "tile=128x128 stages=6"
    for protocol, rounds, algorithms in (
        (PROTOCOL_HOT, 5, {hot}),
        (PROTOCOL_COOL, 3, {hot, cool}),
    ):
        race = [row for row in rows.rows if row.protocol == protocol]
        assert Counter(row.contender.name for row in race) == {
            "kernel": 4 + 3,
            "cublas": 1,
            "cublaslt": len(algorithms),
        }
        assert {r.contender.algorithm for r in race if r.contender.algorithm} == algorithms
        assert {len(row.samples_us) for row in race} == {rounds}
        assert len({row.race for row in race}) == 1
        assert race[0].race is not None
    heats = [row for row in rows.rows if row.protocol == PROTOCOL_HEAT]
    assert {row.contender.name for row in heats} == {"kernel"}
    assert {len(row.samples_us) for row in heats} == {rounds for _, rounds in LAST_HEAT}
    # Two heats, the last in two laps, two races, and None for what was screened.
    assert len({row.race for row in rows.rows}) == 6


def test_the_finalists_are_the_fastest_that_were_screened() -> None:
    rows = MemoryRows()
    tune(PROBLEM, tools(FakeDevice(), rows), SMALL)
    by_time = sorted(screened(rows.rows), key=lambda row: row.median_us or 0)
    raced = {row.contender.config for row in rows.rows if row.protocol == PROTOCOL_HOT}
    assert by_time[0].contender.config in raced


def test_relaunches_of_the_best_variants_compile_nothing() -> None:
    rows, compiler = MemoryRows(), FakeCompiler()
    tune(PROBLEM, tools(FakeDevice(), rows, compiler), SMALL)
    attempts = screened(rows.rows)
    early = {variant(row) for row in attempts[:16]}
    assert {variant(row) for row in attempts[16:]} <= early
    assert len({row.contender.config for row in attempts}) == 24


def test_the_default_search_comes_within_two_percent_of_the_best_of_the_whole_menu() -> None:
    rows = MemoryRows()
    tune(SQUARE, tools(FakeDevice(), rows), Budget())
    configs = [row.contender.config for row in screened(rows.rows)]
    found = min(true_us(SQUARE, c) for c in configs if c)
    assert found <= 1.02 * min(true_us(SQUARE, c) for c in menu(SQUARE))
    assert len(configs) == 96


def test_a_second_run_skips_done_shapes_and_measures_nothing() -> None:
    rows, device = MemoryRows(), FakeDevice()
    first = run_all([PROBLEM, OTHER], tools(device, rows), SMALL)
    calls, count = len(device.calls), len(rows.rows)
    events: list[Event] = []
    second = run_all([PROBLEM, OTHER], tools(device, rows), SMALL, events.append)
    assert second == first
    assert (len(device.calls), len(rows.rows)) == (calls, count)
    assert [e.resumed for e in events if isinstance(e, ShapeEnded)] == [True, True]


def test_a_row_of_another_kernel_or_another_source_does_not_count_as_done() -> None:
    rows = MemoryRows()
    tune(PROBLEM, tools(FakeDevice(), rows), SMALL)
    changed = FakeCompiler(toolchain=Toolchain("kernel-hash-2", TOOLCHAIN.nvrtc_version))
    again = tune(PROBLEM, tools(FakeDevice(), rows, changed), SMALL)
    assert again.toolchain.kernel_hash == "kernel-hash-2"
    assert again.trials == 24
    replayed = replace(tools(FakeDevice(), rows), source="replay")
    assert tune(PROBLEM, replayed, SMALL).trials == 24


def test_what_won_under_the_old_kernel_is_among_the_first_tried_under_the_new_one() -> None:
    rows = MemoryRows()
    tune(PROBLEM, tools(FakeDevice(), rows), Budget(trials=40))
    hot = [r for r in rows.rows if r.protocol == PROTOCOL_HOT and r.contender.config]
    winner = min(hot, key=lambda row: row.median_us or 0)
    changed = FakeCompiler(toolchain=Toolchain("kernel-hash-2", TOOLCHAIN.nvrtc_version))
    before = len(rows.rows)
    tune(PROBLEM, tools(FakeDevice(), rows, changed), SMALL)
    assert variant(winner) in {variant(row) for row in rows.rows[before : before + 4]}


def test_the_time_limit_ends_a_search_early_and_the_shape_is_still_raced() -> None:
    outcome = tune(PROBLEM, tools(FakeDevice()), replace(SMALL, seconds_per_shape=1e-6))
    assert outcome.state is ShapeState.TUNED
    assert outcome.trials == 1


def test_events_tell_of_shapes_trials_and_races_in_order() -> None:
    events: list[Event] = []
    rows = MemoryRows()
    run_all([PROBLEM], tools(FakeDevice(), rows), SMALL, events.append)
    assert isinstance(events[0], ShapeStarted)
    trials = [e for e in events if isinstance(e, TrialDone)]
    assert [e.done for e in trials] == list(range(1, 25))
    assert {e.planned for e in trials} == {24}
    best = [e.best.median_us for e in trials if e.best and e.best.median_us]
    assert best == sorted(best, reverse=True)
    assert len(best) == 24
    races = [e for e in events if isinstance(e, RaceStarted)]
    heats, finals = races[:3], races[3:]
    assert {e.protocol for e in heats} == {PROTOCOL_HEAT}
    assert all(4 <= e.finalists <= 24 for e in heats)
    assert [(e.protocol, e.finalists) for e in finals] == [(PROTOCOL_HOT, 7), (PROTOCOL_COOL, 7)]
    assert events[-1] == ShapeEnded(rows.outcomes[0], 1, 1, resumed=False)


def test_a_config_that_wins_only_on_a_hot_card_is_among_the_finalists() -> None:
    """A screening finds the card cool; the heats are there for what it ranks too low."""

    class HotAndCool(FakeDevice):
        def race(self, entrants: Sequence[Entrant], protocol: str, rounds: int) -> list[Sampled]:
            raced = super().race(entrants, protocol, rounds)
            if protocol != PROTOCOL_HOT:
                return raced
            fastest = min(min(s.samples_us) for s in raced)
            return [
                replace(s, samples_us=(0.9 * fastest,) * rounds)
                if s.contender.config and s.contender.config.variant == lucky
                else s
                for s in raced
            ]

    plain = MemoryRows()
    tune(PROBLEM, tools(FakeDevice(), plain), SMALL)
    ranked = sorted(screened(plain.rows), key=lambda r: r.median_us or 0.0)
    lucky = variant(ranked[-1])
    rows = MemoryRows()
    tune(PROBLEM, tools(HotAndCool(), rows), SMALL)
    hot = [r for r in rows.rows if r.protocol == PROTOCOL_HOT and r.contender.config]
    assert variant(min(hot, key=lambda r: r.median_us or 0.0)) == lucky
