"""A layer is tuned at a few Ms, and the winners of all of them race at each."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.device.fake import TOOLCHAIN, FakeCompiler, FakeDevice, Faults
from tests.study.cases import tools
from tests.study.doubles import MemoryRows
from tuner.config import KernelConfig
from tuner.device.protocol import Entrant
from tuner.errors import DeviceError
from tuner.lookup.cross_races import Span, span_of
from tuner.lookup.layer import at_m
from tuner.lookup.layer_plan import MOST_MS, first_ms
from tuner.lookup.layer_rule import layers_of
from tuner.lookup.race import Race, races_of
from tuner.shape import GemmShape, Problem
from tuner.study import Budget, Event, LayerTask, Remark, ShapeEnded, ShapeStarted, run_layers
from tuner.study.cross_race import winners
from tuner.trial import PROTOCOL_COOL, PROTOCOL_HOT, Sampled, ShapeState

KEY = Problem(GemmShape(1, 2112, 7168), 132)
TASK = LayerTask(KEY, Span(16, 256))
QUICK = Budget(trials=6, batch=4, finalists=2, rounds_hot=5, rounds_cool=5)


def races_by_m(rows: MemoryRows, key: Problem = KEY) -> dict[int, list[Race]]:
    found: dict[int, list[Race]] = {}
    for m in sorted({row.problem.shape.m for row in rows.rows}):
        problem = at_m(key, m)
        raced = [r for r in rows.rows if r.problem == problem and r.race]
        counted = [r for r in raced if r.protocol in (PROTOCOL_HOT, PROTOCOL_COOL)]
        found[m] = races_of(counted)
    return found


def crossed(rows: MemoryRows) -> dict[int, list[Race]]:
    return {m: [r for r in of_m if span_of(r.id)] for m, of_m in races_by_m(rows).items()}


def kernels(race: Race) -> set[KernelConfig]:
    return {row.contender.config for row in race.measurements if row.contender.config}


@pytest.fixture(scope="module")
def tuned() -> MemoryRows:
    rows = MemoryRows()
    outcomes = run_layers([TASK], tools(FakeDevice(), rows), QUICK)
    assert {o.state for o in outcomes} == {ShapeState.TUNED}
    return rows


def test_at_most_a_dozen_ms_are_tuned_and_the_planned_ones_are(tuned: MemoryRows) -> None:
    ms = [o.problem.shape.m for o in tuned.outcomes]
    assert len(ms) == len(set(ms)) <= MOST_MS
    assert set(first_ms(KEY, 16, 256)) <= set(ms)
    assert (min(ms), max(ms)) == (16, 256)


def test_further_ms_come_after_those_that_were_planned(tuned: MemoryRows) -> None:
    ms = [o.problem.shape.m for o in tuned.outcomes]
    planned = first_ms(KEY, 16, 256)
    assert ms[: len(planned)] == list(planned)
    assert len(ms) == MOST_MS
    assert all(16 < m < 256 for m in ms[len(planned) :])


def test_the_winners_of_every_m_race_at_every_m_hot_and_cool_as_ordinary_rows(
    tuned: MemoryRows,
) -> None:
    races = races_by_m(tuned)
    own = {m: [r for r in of_m if not span_of(r.id)] for m, of_m in races.items()}
    for m, of_m in crossed(tuned).items():
        assert Counter(race.protocol for race in of_m) == {PROTOCOL_HOT: 1, PROTOCOL_COOL: 1}
        assert {span_of(race.id) for race in of_m} == {TASK.span}
        assert {len(row.samples_us) for race in of_m for row in race.measurements} == {3}
        for race in of_m:
            assert any(row.contender.name == "cublas" for row in race.measurements)
            assert len(kernels(race)) >= 2
            assert kernels(race) & kernels(own[m][0])
    shared = set.intersection(*(kernels(of_m[0]) for of_m in crossed(tuned).values()))
    assert shared


def test_the_rows_make_a_layer_without_gaps_from_end_to_end(tuned: MemoryRows) -> None:
    layer = layers_of(KEY, races_by_m(tuned))[0]
    assert all(layer.interval(m) for m in range(16, 257))
    assert layer.interval(15) is layer.interval(257) is None


def test_the_same_command_again_measures_nothing(tuned: MemoryRows) -> None:
    rows = MemoryRows()
    rows.rows, rows.outcomes = list(tuned.rows), list(tuned.outcomes)
    device = FakeDevice()
    outcomes = run_layers([TASK], tools(device, rows), QUICK)
    assert device.calls == []
    assert len(outcomes) == len(tuned.outcomes)


def test_ms_that_were_crossed_stay_when_another_wins_by_now(tuned: MemoryRows) -> None:
    rows = MemoryRows()
    rows.outcomes = list(tuned.outcomes)
    # A bench that came in between says of one M that another finalist is best.
    own = [r for r in races_by_m(tuned)[64] if not span_of(r.id)]
    before = winners(at_m(KEY, 64), tools(FakeDevice(), tuned))
    turned = [
        replace(
            row,
            race=f"bench {race.protocol}",
            samples_us=(30.0 if row.contender.config in before else 10.0,) * 9,
        )
        for race in own
        for row in race.measurements
        if row.contender.name != "cublaslt"
    ]
    rows.rows = [*tuned.rows, *turned]
    assert winners(at_m(KEY, 64), tools(FakeDevice(), rows)) != before
    outcomes = run_layers([TASK], tools(FakeDevice(), rows), QUICK)
    assert {o.problem for o in outcomes} == {o.problem for o in tuned.outcomes}
    assert len(rows.outcomes) == len(tuned.outcomes)
    layer = layers_of(KEY, races_by_m(rows))[0]
    assert all(layer.interval(m) for m in range(16, 257))


@pytest.mark.parametrize("stop_after", [1, 4, 6])
def test_an_interrupted_cross_race_goes_on_where_it_stopped(
    tuned: MemoryRows, stop_after: int
) -> None:
    rows = MemoryRows()
    rows.outcomes = list(tuned.outcomes)
    kept = [row for row in tuned.rows if not (row.race and span_of(row.race))]
    rows.rows = kept
    device = Interrupted(stop_after)
    with pytest.raises(KeyboardInterrupt):
        run_layers([TASK], tools(device, rows), QUICK)
    run_layers([TASK], tools(FakeDevice(), rows), QUICK)
    ends = [(layer.terms, layer.intervals) for layer in layers_of(KEY, races_by_m(rows))]
    assert ends == [(layer.terms, layer.intervals) for layer in layers_of(KEY, races_by_m(tuned))]


class Interrupted(FakeDevice):
    """The user presses Ctrl-C in one of the races."""

    def __init__(self, races: int) -> None:
        super().__init__()
        self._left = races

    def race(self, entrants: Sequence[Entrant], protocol: str, rounds: int) -> list[Sampled]:
        if self._left == 0:
            raise KeyboardInterrupt
        self._left -= 1
        return super().race(entrants, protocol, rounds)


def test_what_has_no_winner_is_left_out_and_said(tuned: MemoryRows) -> None:
    class NoRace(FakeDevice):
        def race(self, *_: object) -> list[Sampled]:
            raise DeviceError("cuBLAS is out of order.")

    rows = MemoryRows()
    rows.outcomes = list(tuned.outcomes)
    rows.rows = [row for row in tuned.rows if not (row.race and span_of(row.race))]
    told: list[Event] = []
    run_layers([TASK], tools(NoRace(), rows), QUICK, told.append)
    remarks = [event.text for event in told if isinstance(event, Remark)]
    assert len(remarks) == len(tuned.outcomes)
    assert remarks[0].startswith("layer N=2112 K=7168, M 16..256: no cross race at M=16: ")
    assert layers_of(KEY, races_by_m(rows)) == []


def test_a_layer_whose_every_candidate_fails_ends_without_cross_races() -> None:
    rows = MemoryRows()
    task = LayerTask(KEY, Span(16, 18))
    failing = FakeDevice(Faults(all_wrong=True))
    outcomes = run_layers([task], tools(failing, rows), QUICK)
    assert {o.state for o in outcomes} == {ShapeState.NO_VALID_CONFIG}
    assert not any(row.race for row in rows.rows)


def test_positions_count_through_all_layers() -> None:
    tasks = [LayerTask(KEY, Span(16, 17)), LayerTask(replace(KEY, sms=66), Span(16, 17))]
    told: list[Event] = []
    compiler = FakeCompiler()
    run_layers(tasks, tools(FakeDevice(), None, compiler), QUICK, told.append)
    begun = [(e.position, e.total) for e in told if isinstance(e, ShapeStarted)]
    assert begun == [(1, 4), (2, 4), (3, 4), (4, 4)]
    ended = [(e.position, e.outcome.problem.sms) for e in told if isinstance(e, ShapeEnded)]
    assert ended == [(1, 132), (2, 132), (3, 66), (4, 66)]


def test_a_kernel_of_another_toolchain_is_tuned_anew(tuned: MemoryRows) -> None:
    rows = MemoryRows()
    rows.rows, rows.outcomes = list(tuned.rows), list(tuned.outcomes)
    newer = replace(TOOLCHAIN, kernel_hash="newer")
    task = LayerTask(KEY, Span(16, 17))
    run_layers([task], tools(FakeDevice(), rows, FakeCompiler(toolchain=newer)), QUICK)
    made = [r for r in rows.rows if r.toolchain == newer and r.race and span_of(r.race)]
    assert {row.problem.shape.m for row in made} == {16, 17}


def test_cross_races_compile_only_what_a_winner_needs(tuned: MemoryRows) -> None:
    rows, compiler = MemoryRows(), FakeCompiler()
    rows.outcomes = list(tuned.outcomes)
    rows.rows = [row for row in tuned.rows if not (row.race and span_of(row.race))]
    run_layers([TASK], tools(FakeDevice(), rows, compiler), QUICK)
    raced = {c.variant for of_m in crossed(tuned).values() for race in of_m for c in kernels(race)}
    beside = set(compiler.submitted) - raced
    assert len(beside) <= 1  # the trusted one
