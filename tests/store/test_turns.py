"""What a driver makes of the problems that others tune."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.device.fake import H200, TOOLCHAIN, FakeCompiler, FakeDevice
from tests.store.drivers import BUDGET, SHAPES
from tuner.store.leases import Leases
from tuner.store.repository import Repository
from tuner.study import Event, Remark, ShapeEnded, Tools, run_all, tune
from tuner.study import run as study_run
from tuner.study.turns import Alone
from tuner.trial import ShapeOutcome, ShapeState

FIRST, SECOND = SHAPES[:2]


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_run, "WAIT_S", 0.02)


def ended(state: ShapeState, detail: str) -> ShapeOutcome:
    return ShapeOutcome(FIRST, H200.key, H200.name, TOOLCHAIN, state, detail, run_id="another")


def tools(store: Repository) -> Tools:
    leases = Leases(store, "this driver")
    return Tools(FakeDevice(), FakeCompiler(), store, "mine", leases=leases)


def test_a_problem_of_another_driver_comes_last_and_is_taken_as_that_one_left_it(
    store: Repository,
) -> None:
    theirs = ended(ShapeState.DOES_NOT_FIT, "needs 999 GiB.")
    lease = Leases(store, "another").claim(FIRST, H200.key, TOOLCHAIN, "measured")
    assert lease is not None
    events: list[Event] = []
    with ThreadPoolExecutor(1) as pool, lease:
        run = pool.submit(run_all, [FIRST, SECOND], tools(store), BUDGET, events.append)
        while not any(isinstance(event, Remark) for event in events):
            assert not run.done()
        store.finish_shape(theirs)
        outcomes = run.result(30)
    # In the order of the list, whatever the order in which they ended.
    assert [outcome.run_id for outcome in outcomes] == ["another", "mine"]
    assert outcomes[0] == theirs
    order = [event.position for event in events if isinstance(event, ShapeEnded)]
    assert order == [2, 1]
    (remark,) = [event for event in events if isinstance(event, Remark)]
    assert remark.text == "waiting for other drivers, which tune what is left: 1."
    assert store.attempts(FIRST, H200.key, sources=["measured"]) == []


def test_a_problem_that_another_driver_gives_up_is_tuned_here(store: Repository) -> None:
    old = ended(ShapeState.DOES_NOT_FIT, "needs 999 GiB.")
    store.finish_shape(old)
    lease = Leases(store, "another").claim(FIRST, H200.key, TOOLCHAIN, "measured")
    assert lease is not None
    events: list[Event] = []
    with ThreadPoolExecutor(1) as pool:
        with lease:
            run = pool.submit(run_all, [FIRST], tools(store), BUDGET, events.append)
            while not events:
                assert not run.done()
        (outcome,) = run.result(30)
    # What was stored before this run says nothing of how that driver ended.
    assert (outcome.state, outcome.run_id) == (ShapeState.TUNED, "mine")


class Lost(Alone):
    def is_held(self) -> bool:
        return False


def test_a_late_result_is_still_wanted_where_nobody_else_has_ended_the_problem(
    store: Repository,
) -> None:
    events: list[Event] = []
    outcome = tune(FIRST, tools(store), BUDGET, events.append, lease=Lost())
    assert outcome.run_id == "mine"
    assert store.outcome(FIRST, H200.key, TOOLCHAIN, "measured") == outcome
    assert not any(isinstance(event, Remark) for event in events)
    assert store.best(FIRST, H200.key) is not None
