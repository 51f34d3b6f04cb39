"""Finalists that race a second time as dependent launches, and are no candidates of the search."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.device.fake import FakeCompiler, FakeDevice, Faults
from tests.device.recordings import recorded_rows, write_recording
from tests.study.cases import OTHER, PROBLEM, SMALL, first_variants, screened, tools, variant
from tests.study.doubles import MemoryRows
from tuner.config import KernelConfig
from tuner.device.protocol import Entrant
from tuner.device.replay import RecordedCompiler, ReplayDevice
from tuner.study import Tools, pipeline, run_all, tune
from tuner.study.twins import is_twin, twin_of
from tuner.trial import (
    PROTOCOL_COOL,
    PROTOCOL_HEAT,
    PROTOCOL_HOT,
    Measurement,
    Sampled,
    ShapeState,
    TrialState,
)


class NeverWaits(FakeDevice):
    """Every dependent launch reads what its predecessor has not written yet."""

    def verify(self, entrant: Entrant) -> Sampled:
        verified = super().verify(entrant)
        config = entrant.contender.config
        if config and config.knobs.dependent_launch:
            return Sampled(entrant.contender, TrialState.WRONG_RESULT, detail="the chain is wrong")
        return verified


class InterruptedRace(FakeDevice):
    """Interrupts the user's run at the race after the heats."""

    def race(self, entrants: Sequence[Entrant], protocol: str, rounds: int) -> list[Sampled]:
        if any(e.contender.name == "cublas" for e in entrants):
            raise KeyboardInterrupt
        return super().race(entrants, protocol, rounds)


class InterruptedTwin(FakeDevice):
    """Interrupts the user's run at the second dependent launch."""

    def verify(self, entrant: Entrant) -> Sampled:
        verified = [c for name, c in self.calls if name == "verify"]
        if any(isinstance(c, KernelConfig) and c.knobs.dependent_launch for c in verified):
            raise KeyboardInterrupt
        return super().verify(entrant)


def attempted(rows: MemoryRows) -> tuple[list[Measurement], list[Measurement]]:
    """Attempts of the search, and twins."""
    rows_of = screened(rows.rows)
    return [r for r in rows_of if not is_twin(r)], [r for r in rows_of if is_twin(r)]


def configs(rows: Sequence[Measurement]) -> list[KernelConfig]:
    return [row.contender.config for row in rows if row.contender.config]


def test_the_first_finalists_race_beside_their_twins_within_the_budget() -> None:
    rows, compiler = MemoryRows(), FakeCompiler()
    outcome = tune(PROBLEM, tools(FakeDevice(), rows, compiler), SMALL)
    search, twins = attempted(rows)
    assert (outcome.trials, len(search), len(twins)) == (24, 21, 3)
    assert set(configs(twins)) <= {twin_of(c) for c in configs(search)}
    assert {variant(r) for r in twins} <= {variant(r) for r in search}
    for protocol in (PROTOCOL_HOT, PROTOCOL_COOL):
        raced = configs([r for r in rows.rows if r.protocol == protocol])
        plain = [c for c in raced if not c.knobs.dependent_launch]
        assert len(plain) == 4
        assert raced[4:] == configs(twins) == [twin_of(c) for c in plain[:3]]
    heats = configs([r for r in rows.rows if r.protocol == PROTOCOL_HEAT])
    assert not any(c.knobs.dependent_launch for c in heats)


def test_a_budget_too_small_for_a_twin_is_spent_on_the_search() -> None:
    rows = MemoryRows()
    tune(PROBLEM, tools(FakeDevice(), rows), replace(SMALL, trials=7))
    search, twins = attempted(rows)
    assert (len(search), len(twins)) == (7, 0)


def test_trials_set_aside_for_twins_that_too_few_configs_can_have_go_to_the_search() -> None:
    class OnlyOneWorks(FakeDevice):
        def verify(self, entrant: Entrant) -> Sampled:
            config = entrant.contender.config
            self.faults = Faults(all_wrong=config not in (only, twin_of(only)))
            return super().verify(entrant)

    first = MemoryRows()
    tune(PROBLEM, tools(FakeDevice(), first), SMALL)
    only = configs(screened(first.rows))[0]
    rows = MemoryRows()
    outcome = tune(PROBLEM, tools(OnlyOneWorks(), rows), SMALL)
    search, twins = attempted(rows)
    assert (len(search), configs(twins)) == (23, [twin_of(only)])
    assert outcome.counts == {"ok": 2, "wrong_result": 22}
    assert outcome.state is ShapeState.TUNED


@pytest.mark.parametrize(("limit", "twins"), [(1000.0, 4), (30.0, 0)])
def test_twins_are_tried_after_the_search_had_its_share_of_the_time_and_never_after_all_of_it(
    limit: float, twins: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class TakesTenSeconds(FakeDevice):
        def screen(self, entrant: Entrant) -> Sampled:
            now.append(now[-1] + 10)
            return super().screen(entrant)

        def race(self, entrants: Sequence[Entrant], protocol: str, rounds: int) -> list[Sampled]:
            now.append(now[-1] + 10)
            return super().race(entrants, protocol, rounds)

    now = [0.0]
    monkeypatch.setattr(pipeline, "time", SimpleNamespace(monotonic=lambda: now[-1]))
    rows = MemoryRows()
    budget = replace(SMALL, trials=96, seconds_per_shape=limit)
    outcome = tune(PROBLEM, tools(TakesTenSeconds(), rows), budget)
    search, tried = attempted(rows)
    # It looks at the clock before each attempt, and has 70 % of the limit.
    assert len(search) in (int(0.7 * limit) // 10, int(0.7 * limit) // 10 + 1)
    assert len(tried) == twins
    assert outcome.state is ShapeState.TUNED


@pytest.mark.parametrize(("device", "left"), [(InterruptedTwin, 2), (InterruptedRace, 0)])
def test_a_twin_that_is_stored_is_raced_and_not_measured_again(
    device: type[FakeDevice], left: int
) -> None:
    rows = MemoryRows()
    with pytest.raises(KeyboardInterrupt):
        run_all([PROBLEM], tools(device(), rows), SMALL)
    again = FakeDevice()
    (outcome,) = run_all([PROBLEM], tools(again, rows), SMALL)
    search, twins = attempted(rows)
    assert (outcome.trials, len(search), len(twins)) == (24, 21, 3)
    assert len({*configs(search), *configs(twins)}) == 24
    assert sum(name == "screen" for name, _ in again.calls) == left
    hot = configs([r for r in rows.rows if r.protocol == PROTOCOL_HOT])
    assert set(configs(twins)) < set(hot)


def test_stored_twins_are_neither_proposed_nor_varied_by_a_later_search() -> None:
    rows = MemoryRows()
    with pytest.raises(KeyboardInterrupt):
        run_all([PROBLEM], tools(InterruptedRace(), rows), SMALL)
    (outcome,) = run_all([PROBLEM], tools(FakeDevice(), rows), replace(SMALL, trials=48))
    run_all([OTHER], tools(FakeDevice(), rows), SMALL)
    search, twins = attempted(rows)
    mine = [r for r in twins if r.problem == PROBLEM]
    assert outcome.trials == 48
    assert 3 <= len(mine) <= 4 + 3
    assert len([r for r in twins if r.problem == OTHER]) == 3
    searched = {(r.problem, c) for r in search if (c := r.contender.config)}
    for row in twins:
        assert row.contender.config is not None
        plain = replace(row.contender.config.knobs, dependent_launch=False)
        assert (row.problem, replace(row.contender.config, knobs=plain)) in searched


def test_a_wrong_chain_speaks_against_twins_of_the_variant_and_not_against_its_plain_launch() -> (
    None
):
    expected = first_variants(4)
    rows = MemoryRows()
    first, second = run_all([PROBLEM, OTHER], tools(NeverWaits(), rows), SMALL)
    assert [first.state, second.state] == [ShapeState.TUNED, ShapeState.TUNED]
    search, twins = attempted(rows)
    assert {r.state for r in twins} == {TrialState.WRONG_RESULT}
    assert {r.state for r in search} == {TrialState.OK}
    assert not any(is_twin(r) for r in rows.rows if r.race)
    refused = [variant(r) for r in twins]
    assert len(set(refused)) == len(refused) > 1
    later = MemoryRows()
    later.add([replace(r, problem=OTHER) for r in twins if r.problem == PROBLEM])
    device = FakeDevice()
    run_all([PROBLEM], tools(device, later), SMALL)
    plain = {c.variant for name, c in device.calls if name == "verify"}  # type: ignore[attr-defined]
    assert set(expected) <= plain
    assert not {variant(r) for r in attempted(later)[1] if r.problem == PROBLEM} & {
        variant(r) for r in twins if r.problem == PROBLEM
    }


def test_recorded_dependent_launches_are_candidates_like_any_other(tmp_path: Path) -> None:
    recorded = recorded_rows(PROBLEM, dependent=5)
    replay = ReplayDevice(write_recording(tmp_path / "twins.jsonl.gz", recorded))
    rows = MemoryRows()
    played = Tools(replay, RecordedCompiler(replay), rows, "run-1", source="replay", menu=replay)
    budget = replace(SMALL, trials=len(replay.recorded_configs(PROBLEM)))
    (outcome,) = run_all([PROBLEM], played, budget)
    assert outcome.state is ShapeState.TUNED
    search, twins = attempted(rows)
    assert (outcome.trials, len(search), len(twins)) == (19, 14, 5)
    assert {*configs(search), *configs(twins)} == set(replay.recorded_configs(PROBLEM))
    raced = configs([r for r in rows.rows if r.protocol == PROTOCOL_HOT])
    by_time = sorted(screened(rows.rows), key=lambda r: r.median_us or float("inf"))
    assert by_time[0].contender.config in raced
    assert len(raced) == SMALL.finalists
