"""A device, a library or a user that ends a call: what was measured is kept."""

from pathlib import Path

import pytest

from tests.device.fake import FakeDevice, FakeFactory, Faults
from tests.study.cases import OTHER, PROBLEM, SMALL, THIRD, first_variants, screened, tools, variant
from tests.study.doubles import MemoryRows
from tuner.device.deadlines import Deadlines
from tuner.device.process import DeviceProcess
from tuner.errors import DeviceCrashed, DeviceError, DeviceUnavailable
from tuner.study import run_all, tune
from tuner.trial import PROTOCOL_COOL, PROTOCOL_HEAT, PROTOCOL_HOT, ShapeState, TrialState


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


def test_a_shape_on_which_cublaslt_fails_is_tuned_against_cublas() -> None:
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
