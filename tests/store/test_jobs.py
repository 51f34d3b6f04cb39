"""A job is one worker's at a time, outlives the workers that take it, and always ends."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from tests.store.examples import DEVICE_KEY, PROBLEM, TOOLCHAIN, outcome
from tests.store.test_leases import process_that_ended, shift
from tuner.shape import GemmShape, Problem
from tuner.store.job_rows import Job
from tuner.store.jobs import Claimed, Jobs
from tuner.store.leases import Leases
from tuner.store.misses import Misses, Tally, most_promising
from tuner.store.owners import Owner
from tuner.store.repository import Repository
from tuner.trial import Source, Toolchain

OTHER = Problem(GemmShape(64, 64, 64), 132)


def claim(
    store: Repository,
    owner: str,
    device_key: str = DEVICE_KEY,
    toolchain: Toolchain = TOOLCHAIN,
    source: Source = "measured",
) -> Claimed | None:
    return Jobs(store).claim(Leases(store, owner), device_key, toolchain, source)


def claim_miss(store: Repository, owner: str) -> Claimed | None:
    return Jobs(store).claim_miss(Leases(store, owner), DEVICE_KEY, TOOLCHAIN, "measured")


def only(store: Repository, run_id: str) -> Job:
    (job,) = Jobs(store).of_run(run_id)
    return job


def test_jobs_are_taken_in_their_order_by_one_worker_each_and_say_how_they_ended(
    store: Repository,
) -> None:
    jobs = Jobs(store)
    run_id = jobs.ask([PROBLEM, OTHER, PROBLEM], DEVICE_KEY)
    assert [(j.problem, j.state) for j in jobs.of_run(run_id)] == [
        (PROBLEM, "queued"),
        (OTHER, "queued"),
    ]
    first, second, third = (claim(store, f"host/place/{n}/nonce") for n in (1, 2, 3))
    assert first is not None
    assert second is not None
    assert third is None
    assert (first.job.problem, second.job.problem) == (PROBLEM, OTHER)
    assert (first.job.state, first.job.worker, first.job.claims) == ("running", "host:1", 1)
    with first.lease:
        assert jobs.end(first, "tuned")
    with second.lease:
        assert jobs.end(second, "unsupported", "K must be a multiple of 8.")
    assert not jobs.end(second, "tuned")
    ended = jobs.of_run(run_id)
    assert [(j.state, j.detail) for j in ended] == [
        ("tuned", ""),
        ("unsupported", "K must be a multiple of 8."),
    ]
    assert all(
        j.asked_at <= j.started_at <= j.ended_at for j in ended if j.started_at and j.ended_at
    )
    assert jobs.unended(9) == []
    assert {j.id for j in jobs.ended(9)} == {j.id for j in ended}
    assert jobs.of_run("nobody") == []
    assert claim(store, "another") is None


def test_a_job_for_another_device_or_whose_problem_another_driver_tunes_is_not_claimed(
    store: Repository,
) -> None:
    jobs = Jobs(store)
    jobs.ask([PROBLEM, OTHER], DEVICE_KEY)
    assert claim(store, "w", device_key="sm90-114sm-80gb") is None
    driver = Leases(store, "tuner run").claim(PROBLEM, DEVICE_KEY, TOOLCHAIN, "measured")
    assert driver is not None
    taken = claim(store, "w")
    assert taken is not None
    assert taken.job.problem == OTHER
    assert claim(store, "w2") is None
    with driver:
        pass
    late = claim(store, "w2")
    assert late is not None
    assert late.job.problem == PROBLEM


@pytest.mark.parametrize("toolchain", [TOOLCHAIN, replace(TOOLCHAIN, kernel_hash="edited")])
def test_the_job_of_a_worker_that_died_is_free_when_its_lease_is_and_not_before(
    store: Repository, toolchain: Toolchain
) -> None:
    run_id = Jobs(store).ask([PROBLEM], DEVICE_KEY)
    dead = claim(store, "dead")
    assert dead is not None
    shift(store, seconds=-59)
    # A worker with another kernel needs another lease, and must not have the job either.
    assert claim(store, "heir", toolchain=toolchain) is None
    assert only(store, run_id).state == "running"
    shift(store, seconds=-2)
    assert only(store, run_id).state == "queued"
    heir = claim(store, "heir", toolchain=toolchain)
    assert heir is not None
    assert (heir.job.run_id, heir.job.claims) == (run_id, 2)
    # The first one wakes up: it may not end what is the other's by now.
    assert not Jobs(store).end(dead, "tuned")
    assert not Jobs(store).give_back(dead, "late.", blamed=True)
    assert Jobs(store).end(heir, "tuned")


def test_the_job_of_a_worker_that_was_killed_here_is_free_at_once(store: Repository) -> None:
    Jobs(store).ask([PROBLEM], DEVICE_KEY)
    me = Owner.this_process()
    assert claim(store, str(replace(me, pid=process_that_ended()))) is not None
    assert claim(store, str(me)) is not None
    assert claim(store, "another") is None


def test_a_job_that_kills_its_workers_is_given_up_and_the_next_one_is_taken(
    store: Repository,
) -> None:
    jobs = Jobs(store)
    run_id = jobs.ask([PROBLEM], DEVICE_KEY)
    for worker in ("first", "second", "third"):
        assert claim(store, worker) is not None
        shift(store, hours=-1)
    jobs.ask([OTHER], DEVICE_KEY)
    taken = claim(store, "fourth")
    assert taken is not None
    assert taken.job.problem == OTHER
    given_up = only(store, run_id)
    assert given_up.state == "failed"
    assert given_up.detail == (
        "given up after 3 workers left it unfinished; the last: its worker ended without a word."
    )


def test_a_job_given_back_is_queued_and_only_some_reasons_count_against_it(
    store: Repository,
) -> None:
    jobs = Jobs(store)
    run_id = jobs.ask([PROBLEM], DEVICE_KEY)
    for blamed, claims in ((False, 0), (True, 1), (False, 1), (True, 2), (True, 3)):
        taken = claim(store, "w")
        assert taken is not None
        with taken.lease:
            assert jobs.give_back(taken, "the device is gone.", blamed=blamed)
        assert (only(store, run_id).state, only(store, run_id).claims) == ("queued", claims)
    assert claim(store, "w") is None
    assert only(store, run_id).detail.endswith("the last: the device is gone.")


def test_twelve_threads_asked_for_thirty_jobs_do_each_once(store: Repository) -> None:
    jobs = Jobs(store)
    problems = [Problem(GemmShape(m, 64, 64), 132) for m in range(1, 31)]
    jobs.ask(problems, DEVICE_KEY)
    Misses(store).add({(OTHER, DEVICE_KEY, "model"): Tally(9, 0.9)})
    done: list[int] = []

    def work(number: int) -> None:
        while taken := claim(store, f"w{number}") or claim_miss(store, f"w{number}"):
            with taken.lease:
                store.finish_shape(outcome(problem=taken.job.problem, run_id=str(number)))
                assert jobs.end(taken, "tuned")
            done.append(taken.job.problem.shape.m)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(work, range(12)))
    assert sorted(done) == sorted([*range(1, 31), 64])


def test_misses_become_jobs_once_the_most_promising_first(store: Repository) -> None:
    large = Problem(GemmShape(8192, 8192, 8192), 132)
    Misses(store).add({(p, DEVICE_KEY, "nearest"): Tally(5, 0.5) for p in (OTHER, large, PROBLEM)})
    Jobs(store).ask([PROBLEM], DEVICE_KEY)
    first, second = claim_miss(store, "w1"), claim_miss(store, "w2")
    assert first is not None
    assert second is not None
    assert (first.job.problem, second.job.problem) == (large, OTHER)
    assert (first.job.origin, first.job.state, first.job.claims) == ("miss", "running", 1)
    # PROBLEM waits in the queue already.
    assert claim_miss(store, "w3") is None
    with first.lease:
        store.finish_shape(outcome(problem=large))
        Jobs(store).end(first, "tuned")
    assert claim_miss(store, "w3") is None


def test_a_miss_that_another_worker_ended_between_two_looks_is_left_alone(
    store: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    Misses(store).add({(OTHER, DEVICE_KEY, "nearest"): Tally(5, 0.5)})
    look = most_promising

    def overtaken(*arguments: Any) -> Any:
        seen = look(*arguments)
        store.finish_shape(outcome(problem=OTHER))
        return seen

    monkeypatch.setattr("tuner.store.jobs.most_promising", overtaken)
    assert claim_miss(store, "w") is None
    assert Jobs(store).unended(9) == []
    with store.transaction(writes=False) as connection:
        assert connection.execute(text("SELECT count(*) FROM leases")).scalar() == 0


def test_a_miss_whose_job_was_given_up_is_not_tried_for_ever(store: Repository) -> None:
    Misses(store).add({(OTHER, DEVICE_KEY, "nearest"): Tally(5, 0.5)})
    assert claim_miss(store, "w0") is not None
    for worker in ("w1", "w2"):
        shift(store, hours=-1)
        assert claim(store, worker) is not None
    shift(store, hours=-1)
    assert claim(store, "w3") is None
    assert claim_miss(store, "w3") is None
    (job,) = Jobs(store).ended(9)
    assert job.state == "failed"
