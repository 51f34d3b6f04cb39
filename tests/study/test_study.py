"""The pipeline over a fake device: what it finds, what it survives and what it never loses."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.device.fake import TOOLCHAIN, FakeCompiler, FakeDevice, FakeFactory, Faults, true_us
from tests.study.doubles import MemoryRows
from tuner.config import KernelConfig, KernelVariant
from tuner.device.deadlines import Deadlines
from tuner.device.process import DeviceProcess
from tuner.device.protocol import Device, Entrant
from tuner.errors import CompileError, DeviceCrashed, DeviceError, DeviceUnavailable
from tuner.search.seeds import seeds
from tuner.search.space import menu
from tuner.shape import GemmShape, Problem
from tuner.study import (
    Budget,
    Event,
    RaceStarted,
    ShapeEnded,
    ShapeStarted,
    Tools,
    TrialDone,
    run_all,
    tune,
)
from tuner.study.pipeline import HEAT_ROUNDS
from tuner.trial import (
    PROTOCOL_COOL,
    PROTOCOL_HEAT,
    PROTOCOL_HOT,
    PROTOCOL_SCREEN,
    Measurement,
    Sampled,
    ShapeState,
    Toolchain,
    TrialState,
)

# Skinny shapes: their menus are short, so the tests are quick.
PROBLEM = Problem(GemmShape(64, 2112, 7168), 132)
OTHER = Problem(GemmShape(64, 2048, 4096), 132)
THIRD = Problem(GemmShape(32, 2112, 7168), 132)
SQUARE = Problem(GemmShape(1024, 1024, 1024), 132)
SMALL = Budget(trials=24, batch=8, finalists=4, rounds_hot=5, rounds_cool=3)
FIRST = seeds(PROBLEM, menu(PROBLEM))[0].variant


def tools(
    device: Device, rows: MemoryRows | None = None, compiler: FakeCompiler | None = None
) -> Tools:
    return Tools(device, compiler or FakeCompiler(), rows or MemoryRows(), run_id="run-1")


def first_variants(count: int) -> list[KernelVariant]:
    """What a search of PROBLEM measures first."""
    rows = MemoryRows()
    tune(PROBLEM, tools(FakeDevice(), rows), replace(SMALL, trials=2 * count))
    return list(dict.fromkeys(v for row in rows.rows if (v := variant(row))))[:count]


def variant(row: Measurement) -> KernelVariant | None:
    return row.contender.config.variant if row.contender.config else None


def screened(rows: Iterable[Measurement]) -> list[Measurement]:
    return [row for row in rows if row.protocol == PROTOCOL_SCREEN]


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
            "kernel": 4,
            "cublas": 1,
            "cublaslt": len(algorithms),
        }
        assert {r.contender.algorithm for r in race if r.contender.algorithm} == algorithms
        assert {len(row.samples_us) for row in race} == {rounds}
        assert len({row.race for row in race}) == 1
        assert race[0].race is not None
    heats = [row for row in rows.rows if row.protocol == PROTOCOL_HEAT]
    assert {row.contender.name for row in heats} == {"kernel"}
    assert {len(row.samples_us) for row in heats} == {HEAT_ROUNDS}
    # Two heats, two races, and None for what was screened.
    assert len({row.race for row in rows.rows}) == 5


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


class Interrupting(FakeDevice):
    """Interrupts the user's run at screen number `at`."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at

    def screen(self, entrant):  # type: ignore[no-untyped-def]
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        return super().screen(entrant)


def test_an_interrupt_loses_at_most_the_running_trial_and_the_next_run_goes_on_from_there() -> None:
    rows = MemoryRows()
    with pytest.raises(KeyboardInterrupt):
        run_all([PROBLEM], tools(Interrupting(at=11), rows), SMALL)
    assert len(rows.rows) == 10
    assert rows.outcomes == []
    device = FakeDevice()
    (outcome,) = run_all([PROBLEM], tools(device, rows), SMALL)
    assert outcome.state is ShapeState.TUNED
    assert outcome.trials == 24
    assert sum(name == "screen" for name, _ in device.calls) == 14
    configs = [row.contender.config for row in screened(rows.rows)]
    assert len(set(configs)) == len(configs)


def faults_of(kind: str, variants: frozenset[KernelVariant]) -> Faults:
    return Faults(**{kind: variants})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "state", "detail"),
    [
        ("sticky", TrialState.CRASHED, "illegal address"),
        ("raises", TrialState.CRASHED, "KeyError"),
        ("wrong", TrialState.WRONG_RESULT, "error 7.5"),
        ("nan", TrialState.IMPLAUSIBLE, "not positive finite"),
        ("too_fast", TrialState.IMPLAUSIBLE, "is less than"),
    ],
)
def test_a_failing_config_is_a_stored_row_and_the_shape_is_tuned_without_it(
    kind: str, state: TrialState, detail: str
) -> None:
    rows = MemoryRows()
    device = FakeDevice(faults_of(kind, frozenset({FIRST})))
    outcome = tune(PROBLEM, tools(device, rows), SMALL)
    assert outcome.state is ShapeState.TUNED
    failed = [row for row in rows.rows if row.state is not TrialState.OK]
    assert [(variant(row), row.state) for row in failed] == [(FIRST, state)]
    assert detail in failed[0].detail
    assert failed[0].samples_us == ()
    assert outcome.counts == {"ok": 23, state.value: 1}
    raced = {variant(row) for row in rows.rows if row.race}
    assert FIRST not in raced


def test_a_wrong_config_is_never_timed() -> None:
    device = FakeDevice(Faults(wrong=frozenset({FIRST})))
    tune(PROBLEM, tools(device), SMALL)
    timed = {
        c.variant for name, c in device.calls if name == "screen" and isinstance(c, KernelConfig)
    }
    assert FIRST not in timed


def test_a_shape_whose_every_time_is_nan_ends_with_no_config_between_two_good_ones() -> None:
    class NanFor(FakeDevice):
        def screen(self, entrant):  # type: ignore[no-untyped-def]
            self.faults = Faults(all_nan=self._problem == OTHER)
            return super().screen(entrant)

    rows = MemoryRows()
    outcomes = run_all([PROBLEM, OTHER, THIRD], tools(NanFor(), rows), SMALL)
    assert [o.state for o in outcomes] == [
        ShapeState.TUNED,
        ShapeState.NO_VALID_CONFIG,
        ShapeState.TUNED,
    ]
    assert outcomes[1].counts == {"implausible": 24}
    assert not any(row.race for row in rows.rows if row.problem == OTHER)


def test_a_variant_that_killed_the_device_is_not_tried_again_on_any_shape_of_the_run() -> None:
    bad = frozenset(first_variants(4))
    assert bad <= {c.variant for c in menu(OTHER)}
    rows = MemoryRows()
    device = FakeDevice(Faults(sticky=bad))
    run_all([PROBLEM, OTHER], tools(device, rows), SMALL)
    tried = Counter(
        c.variant for name, c in device.calls if name == "verify" and isinstance(c, KernelConfig)
    )
    assert {tried[v] for v in bad} == {1}


def test_failures_known_from_a_stored_neighbour_are_not_tried_again_by_a_later_run() -> None:
    bad = frozenset(first_variants(4))
    rows = MemoryRows()
    run_all([PROBLEM], tools(FakeDevice(Faults(sticky=bad)), rows), SMALL)
    device = FakeDevice(Faults(sticky=bad))
    run_all([OTHER], tools(device, rows), SMALL)
    tried = {
        c.variant for name, c in device.calls if name == "verify" and isinstance(c, KernelConfig)
    }
    assert not tried & bad


@pytest.mark.parametrize(
    ("failure", "state"),
    [
        (TrialState.COMPILE_REFUSED, TrialState.COMPILE_REFUSED),
        (TrialState.COMPILE_TIMEOUT, TrialState.COMPILE_TIMEOUT),
        (ValueError("ptxas lost its mind"), TrialState.CRASHED),
    ],
)
def test_a_variant_without_a_cubin_is_a_row_and_never_reaches_the_device(
    failure: TrialState | Exception, state: TrialState
) -> None:
    rows, device = MemoryRows(), FakeDevice()
    compiler = FakeCompiler(lambda v: failure if v == FIRST else None)
    outcome = tune(PROBLEM, tools(device, rows, compiler), SMALL)
    assert outcome.state is ShapeState.TUNED
    assert [row.state for row in rows.rows if variant(row) == FIRST] == [state]
    verified = {c.variant for name, c in device.calls if isinstance(c, KernelConfig)}
    assert FIRST not in verified


def test_when_nothing_compiles_the_shape_ends_with_no_config_and_a_count() -> None:
    trusted = KernelVariant(128, 128, stages=4)
    compiler = FakeCompiler(lambda v: None if v == trusted else TrialState.COMPILE_REFUSED)
    outcome = tune(PROBLEM, tools(FakeDevice(), compiler=compiler), SMALL)
    assert outcome.state is ShapeState.NO_VALID_CONFIG
    assert set(outcome.counts) <= {"compile_refused", "ok"}
    assert outcome.counts["compile_refused"] >= SMALL.trials


def test_a_compiler_that_cannot_work_at_all_stops_the_run() -> None:
    compiler = FakeCompiler(lambda _: CompileError("no compiler here; install one."))
    with pytest.raises(CompileError, match="no compiler here"):
        run_all([PROBLEM, OTHER], tools(FakeDevice(), compiler=compiler), SMALL)


def test_shapes_that_cannot_run_end_with_their_reason_and_the_others_go_on() -> None:
    odd = Problem(GemmShape(128, 128, 133), 132)
    huge = Problem(GemmShape(65536, 65536, 8192), 132)
    rows = MemoryRows()
    device = FakeDevice(Faults(memory_bytes=2**30))
    outcomes = run_all([odd, huge, PROBLEM], tools(device, rows), SMALL)
    assert [o.state for o in outcomes] == [
        ShapeState.UNSUPPORTED,
        ShapeState.DOES_NOT_FIT,
        ShapeState.TUNED,
    ]
    assert "Pad K with zeros to 136" in outcomes[0].detail
    assert "needs 10737418240 bytes" in outcomes[1].detail
    assert [o.trials for o in outcomes[:2]] == [0, 0]


def test_a_reference_that_nobody_agrees_with_ends_the_shape_with_that_sentence() -> None:
    outcome = tune(PROBLEM, tools(FakeDevice(Faults(disagrees=True))), SMALL)
    assert outcome.state is ShapeState.NO_VALID_CONFIG
    assert outcome.detail == "the trusted config and the reference disagree."


def test_a_finalist_that_breaks_only_the_race_is_taken_out_and_the_race_is_run() -> None:
    class BreaksLater(FakeDevice):
        """One finalist works alone until it was raced, then breaks the device."""

        def race(self, entrants, protocol, rounds):  # type: ignore[no-untyped-def]
            victim = next(e.contender.config for e in entrants if e.contender.config)
            if not self.faults.hang_in_race:
                broken = frozenset({victim.variant})
                self.faults = Faults(hang_in_race=broken, sticky=broken)
            return super().race(entrants, protocol, rounds)

    rows = MemoryRows()
    outcome = tune(PROBLEM, tools(BreaksLater(), rows), SMALL)
    assert outcome.state is ShapeState.TUNED
    (crashed,) = {variant(r) for r in rows.rows if r.state is TrialState.CRASHED}
    raced = [row for row in rows.rows if row.race]
    assert crashed not in {variant(row) for row in raced}
    assert {row.protocol for row in raced} == {PROTOCOL_HEAT, PROTOCOL_HOT, PROTOCOL_COOL}


def test_a_shape_on_which_cublaslt_fails_is_tuned_against_cublas_and_the_failure_is_stored() -> (
    None
):
    class WithoutLt(FakeDevice):
        def race(self, entrants, protocol, rounds):  # type: ignore[no-untyped-def]
            if any(e.contender.name == "cublaslt" for e in entrants):
                raise DeviceCrashed("cublasLtMatmul failed.")
            return super().race(entrants, protocol, rounds)

    rows = MemoryRows()
    outcome = tune(PROBLEM, tools(WithoutLt(), rows), SMALL)
    assert outcome.state is ShapeState.TUNED
    assert outcome.counts == {"ok": 24}
    libraries = [r for r in rows.rows if r.contender.name != "kernel"]
    failed = {(r.protocol, r.race) for r in libraries if r.state is TrialState.CRASHED}
    assert {r.contender.name for r in libraries if r.state is TrialState.CRASHED} == {"cublaslt"}
    raced = [r for r in libraries if r.state is TrialState.OK]
    assert [(r.contender.name, r.protocol) for r in raced] == [
        ("cublas", PROTOCOL_HOT),
        ("cublas", PROTOCOL_COOL),
    ]
    assert (PROTOCOL_HOT, raced[0].race) in failed


def test_a_device_out_of_memory_ends_the_shape_and_bans_no_variant() -> None:
    class Full(FakeDevice):
        def screen(self, entrant):  # type: ignore[no-untyped-def]
            if self._problem == PROBLEM:
                raise DeviceError("the GPU ran out of memory.")
            return super().screen(entrant)

    rows = MemoryRows()
    full, other = run_all([PROBLEM, OTHER], tools(Full(), rows), SMALL)
    assert (full.state, full.detail) == (ShapeState.NO_VALID_CONFIG, "the GPU ran out of memory.")
    assert other.state is ShapeState.TUNED
    assert {row.state for row in rows.rows} == {TrialState.OK}
    (mended,) = run_all([PROBLEM], tools(FakeDevice(), rows), SMALL)
    assert mended.state is ShapeState.TUNED


def test_no_device_stops_the_run_with_what_was_finished_stored() -> None:
    class Unplugged(FakeDevice):
        def prepare(self, problem, trusted):  # type: ignore[no-untyped-def]
            if problem == OTHER:
                raise DeviceUnavailable("the GPU fell off the bus.")
            return super().prepare(problem, trusted)

    rows = MemoryRows()
    with pytest.raises(DeviceUnavailable):
        run_all([PROBLEM, OTHER, THIRD], tools(Unplugged(), rows), SMALL)
    assert [o.problem for o in rows.outcomes] == [PROBLEM]


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
    heats, finals = races[:2], races[2:]
    assert {e.protocol for e in heats} == {PROTOCOL_HEAT}
    assert all(4 <= e.finalists <= 24 for e in heats)
    assert [(e.protocol, e.finalists) for e in finals] == [(PROTOCOL_HOT, 4), (PROTOCOL_COOL, 4)]
    assert events[-1] == ShapeEnded(rows.outcomes[0], 1, 1, resumed=False)


def test_real_processes_hang_crash_and_are_killed_and_the_run_finishes_with_everything_kept(
    tmp_path: Path,
) -> None:
    """Hang, signal, outside kill and slowness in one shape, with a process that really dies."""
    hang, segfault, killed, slow = first_variants(4)
    faults = Faults(
        hang=frozenset({hang}),
        segfault=frozenset({segfault}),
        slow=frozenset({slow}),
        outside_kill={killed: tmp_path / "killed-once"},
    )
    rows = MemoryRows()
    with DeviceProcess(FakeFactory(faults), Deadlines(verify=0.5, screen=5)) as device:
        outcome = tune(PROBLEM, tools(device, rows), SMALL)
    states = {variant(row): row.state for row in reversed(screened(rows.rows))}
    assert states[hang] is TrialState.TIMEOUT
    assert states[segfault] is TrialState.CRASHED
    assert states[killed] is TrialState.OK
    assert states[slow] is TrialState.OK
    assert outcome.state is ShapeState.TUNED
    assert outcome.counts == {"ok": 22, "timeout": 1, "crashed": 1}


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


def test_a_shape_that_a_broken_device_cut_short_is_tuned_by_the_next_run() -> None:
    class Dying(FakeDevice):
        """Works for five screenings, then cannot even be prepared."""

        def prepare(self, problem, trusted):  # type: ignore[no-untyped-def]
            if sum(name == "screen" for name, _ in self.calls) >= 5:
                raise DeviceCrashed("CUDA reported an uncorrectable error.")
            return super().prepare(problem, trusted)

        def screen(self, entrant):  # type: ignore[no-untyped-def]
            sampled = super().screen(entrant)
            if sum(name == "screen" for name, _ in self.calls) >= 5:
                raise DeviceCrashed("CUDA reported an uncorrectable error.")
            return sampled

    rows = MemoryRows()
    (cut,) = run_all([PROBLEM], tools(Dying(), rows), SMALL)
    assert cut.state is ShapeState.NO_VALID_CONFIG
    assert "could not be prepared" in cut.detail
    assert cut.counts == {"ok": 4, "crashed": 1}
    (whole,) = run_all([PROBLEM], tools(FakeDevice(), rows), SMALL)
    assert whole.state is ShapeState.TUNED
    assert whole.trials == 24


def test_a_shape_that_has_no_valid_config_is_not_searched_again() -> None:
    rows, device = MemoryRows(), FakeDevice(Faults(all_wrong=True))
    (first,) = run_all([PROBLEM], tools(device, rows), SMALL)
    assert first.state is ShapeState.NO_VALID_CONFIG
    assert first.counts == {"wrong_result": 24}
    calls = len(device.calls)
    assert run_all([PROBLEM], tools(device, rows), SMALL) == [first]
    assert len(device.calls) == calls
