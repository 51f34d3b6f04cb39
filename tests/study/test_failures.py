"""Candidates and shapes that fail: each leaves a row or a reason, and the run goes on."""

from collections import Counter
from dataclasses import replace

import pytest

from tests.device.fake import FakeCompiler, FakeDevice, Faults
from tests.study.cases import FIRST, OTHER, PROBLEM, SMALL, THIRD, first_variants, tools, variant
from tests.study.doubles import MemoryRows
from tuner.config import KernelConfig, KernelVariant
from tuner.errors import CompileError
from tuner.search.space import menu
from tuner.shape import GemmShape, Problem
from tuner.study import run_all, tune
from tuner.trial import ShapeState, TrialState


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


def test_what_failed_on_a_shape_nothing_like_this_one_is_not_tried_again_by_a_later_run() -> None:
    far = Problem(GemmShape(8, 8, 8), 132)
    rows = MemoryRows()
    tune(PROBLEM, tools(FakeDevice(Faults(sticky=frozenset({FIRST}))), rows), SMALL)
    (failed,) = (row for row in rows.rows if row.state is TrialState.CRASHED)
    later = MemoryRows()
    later.add([replace(failed, problem=far)])
    device = FakeDevice()
    run_all([PROBLEM], tools(device, later), SMALL)
    verified = {c.variant for call, c in device.calls if call == "verify"}  # type: ignore[attr-defined]
    assert FIRST not in verified
    assert len(verified) > 4


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


def test_a_shape_that_has_no_valid_config_is_not_searched_again() -> None:
    rows, device = MemoryRows(), FakeDevice(Faults(all_wrong=True))
    (first,) = run_all([PROBLEM], tools(device, rows), SMALL)
    assert first.state is ShapeState.NO_VALID_CONFIG
    assert first.counts == {"wrong_result": 24}
    calls = len(device.calls)
    assert run_all([PROBLEM], tools(device, rows), SMALL) == [first]
    assert len(device.calls) == calls
