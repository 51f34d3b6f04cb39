"""Of several drivers one tunes a problem at a time, whatever their clocks and their fates."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from multiprocessing.queues import Queue

import pytest
from sqlalchemy import text

from tests.forks import forks
from tests.store.examples import DEVICE_KEY, PROBLEM, TOOLCHAIN
from tests.store.writers import claim_all
from tuner.errors import StoreUnavailable
from tuner.shape import GemmShape, Problem
from tuner.store.engine import open_store
from tuner.store.leases import Leases
from tuner.store.owners import Owner
from tuner.store.repository import Repository
from tuner.trial import Source, Toolchain

Job = tuple[Problem, str, Toolchain, Source]
JOB: Job = (PROBLEM, DEVICE_KEY, TOOLCHAIN, "measured")
OTHER = Problem(GemmShape(64, 64, 64), 132)


def shift(store: Repository, **by: float) -> None:
    """Move every lease in time, as if the clock of the database had been moved the other way."""
    with store.transaction(writes=True) as connection:
        for row in connection.execute(text("SELECT owner, acquired_at, expires_at FROM leases")):
            moved = [as_time(value) + timedelta(**by) for value in row[1:]]
            connection.execute(
                text("UPDATE leases SET acquired_at = :a, expires_at = :e WHERE owner = :o"),
                {"o": row.owner, "a": written(row[1], moved[0]), "e": written(row[2], moved[1])},
            )


def owner(store: Repository) -> str | None:
    """Who has, or had, the only lease."""
    with store.transaction(writes=False) as connection:
        return connection.execute(text("SELECT owner FROM leases")).scalar()


def as_time(value: object) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromisoformat(str(value))


def written(like: object, value: datetime) -> object:
    return value if isinstance(like, datetime) else value.isoformat(" ", "microseconds")


def test_one_of_two_drivers_gets_a_problem_and_the_other_gets_it_after_the_release(
    store: Repository,
) -> None:
    first, second = Leases(store, "first"), Leases(store, "second")
    lease = first.claim(*JOB)
    assert lease is not None
    assert second.claim(*JOB) is None
    assert owner(store) == "first"
    with lease:
        assert lease.is_held()
    assert owner(store) is None
    assert second.claim(*JOB) is not None
    assert first.claim(*JOB) is None
    assert first.claim(OTHER, *JOB[1:]) is not None


@pytest.mark.parametrize(
    "job",
    [
        (replace(PROBLEM, sms=64), *JOB[1:]),
        (PROBLEM, "sm90-114sm-80gb", *JOB[2:]),
        (*JOB[:2], Toolchain("edited", "13.0.88"), "measured"),
        (*JOB[:2], Toolchain("5eed", "13.1.0"), "measured"),
        (*JOB[:3], "replay"),
    ],
    ids=["sms", "device", "kernel", "compiler", "source"],
)
def test_a_lease_keeps_nobody_off_another_key(store: Repository, job: Job) -> None:
    assert Leases(store, "first").claim(*JOB) is not None
    assert Leases(store, "second").claim(*job) is not None


def test_a_lease_that_nobody_renews_ends_by_the_clock_of_the_database(store: Repository) -> None:
    dead, heir = Leases(store, "dead", seconds=60), Leases(store, "heir")
    lease = dead.claim(*JOB)
    assert lease is not None
    shift(store, seconds=-59)
    assert heir.claim(*JOB) is None
    shift(store, seconds=-2)
    assert heir.claim(*JOB) is not None
    assert not lease.is_held()
    assert owner(store) == "heir"


def test_a_late_renewal_of_a_lease_that_nobody_took_keeps_it(store: Repository) -> None:
    late = Leases(store, "late")
    lease = late.claim(*JOB)
    assert lease is not None
    shift(store, hours=-1)
    assert lease.is_held()
    assert Leases(store, "other").claim(*JOB) is None


def test_a_held_lease_outlives_its_seconds(store: Repository) -> None:
    lease = Leases(store, "first", seconds=0.6).claim(*JOB)
    assert lease is not None
    with lease:
        time.sleep(1.5)
        assert Leases(store, "second").claim(*JOB) is None


def test_a_lease_from_the_future_has_age_zero_and_its_owner_goes_on(store: Repository) -> None:
    lease = Leases(store, "first").claim(*JOB)
    assert lease is not None
    shift(store, minutes=5)
    assert Leases(store, "second").claim(*JOB) is None
    assert lease.is_held()
    # Renewed, it ends by the clock that was set back.
    shift(store, seconds=-61)
    assert Leases(store, "second").claim(*JOB) is not None


@pytest.mark.parametrize("wrong_by_s", [300, -300, 86_399])
def test_the_clock_of_a_worker_is_never_asked(
    store: Repository, monkeypatch: pytest.MonkeyPatch, wrong_by_s: int
) -> None:
    real, mono = time.time, time.monotonic
    lease = Leases(store, "right").claim(*JOB)
    assert lease is not None
    monkeypatch.setattr(time, "time", lambda: real() + wrong_by_s)
    monkeypatch.setattr(time, "monotonic", lambda: mono() + wrong_by_s)
    monkeypatch.setenv("TZ", "America/New_York" if wrong_by_s > 0 else "Asia/Kolkata")
    time.tzset()
    wrong = Leases(store, "wrong")
    assert wrong.claim(*JOB) is None
    assert wrong.claim(OTHER, *JOB[1:]) is not None
    monkeypatch.undo()
    time.tzset()
    assert Leases(store, "right").claim(OTHER, *JOB[1:]) is None
    with store.transaction(writes=False) as connection:
        ages = connection.execute(text("SELECT acquired_at, expires_at FROM leases")).all()
    assert {round((as_time(e) - as_time(a)).total_seconds(), 3) for a, e in ages} == {60.0}
    assert lease.is_held()


def test_claiming_again_what_one_has_is_no_conflict(store: Repository) -> None:
    leases = Leases(store, "first")
    assert leases.claim(*JOB) is not None
    assert leases.claim(*JOB) is not None


def test_releasing_a_lease_that_was_lost_leaves_the_new_owner_alone(store: Repository) -> None:
    lost = Leases(store, "lost").claim(*JOB)
    assert lost is not None
    with lost:
        shift(store, hours=-1)
        assert Leases(store, "new").claim(*JOB) is not None
    assert owner(store) == "new"


def test_sixteen_threads_claim_one_problem_and_one_gets_it(store: Repository) -> None:
    def claim(number: int) -> bool:
        return Leases(store, str(number)).claim(*JOB) is not None

    with ThreadPoolExecutor(16) as pool:
        assert Counter(pool.map(claim, range(16))) == {True: 1, False: 15}


def test_eight_processes_asked_for_sixty_jobs_do_each_once_and_none_dies(database_url: str) -> None:
    with open_store(database_url):
        pass
    context = forks()
    done: Queue[tuple[int, int]] = context.Queue()
    workers = [
        context.Process(target=claim_all, args=(database_url, number, 60, done))
        for number in range(8)
    ]
    for worker in workers:
        worker.start()
    jobs = [done.get(timeout=60) for _ in range(60)]
    for worker in workers:
        worker.join(30)
    assert [worker.exitcode for worker in workers] == [0] * 8
    assert sorted(job for _, job in jobs) == list(range(60))
    assert done.empty()


def process_that_ended() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    return ended.pid


def test_the_lease_of_a_process_that_was_killed_here_is_taken_over_at_once(
    store: Repository,
) -> None:
    me = Owner.this_process()
    dead = str(replace(me, pid=process_that_ended()))
    assert Leases(store, dead).claim(*JOB) is not None
    assert Leases(store).claim(*JOB) is not None


@pytest.mark.parametrize(
    "elsewhere",
    [
        lambda me, pid: replace(me, pid=pid, host="another"),
        lambda me, pid: replace(me, pid=pid, place="another"),
        lambda me, _: replace(me, pid=os.getppid()),
        lambda _me, _pid: "somebody",
        lambda _me, _pid: "a/b/²/c",
    ],
    ids=["machine", "container", "living", "unknown", "no number"],
)
def test_the_lease_of_a_process_that_may_live_is_respected(
    store: Repository, elsewhere: Callable[[Owner, int], object]
) -> None:
    other = str(elsewhere(Owner.this_process(), process_that_ended()))
    assert Leases(store, other).claim(*JOB) is not None
    assert Leases(store).claim(*JOB) is None


def test_an_owner_reads_back_what_it_wrote() -> None:
    me = Owner.this_process()
    assert Owner.parse(str(me)) == me
    assert Owner.this_process() != me
    assert not me.is_known_dead()


def test_a_stopped_process_is_not_dead_and_one_that_nobody_asks_about_is() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        owner = replace(Owner.this_process(), pid=process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        assert not owner.is_known_dead()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert owner.is_known_dead()


def test_a_lease_ends_by_itself_where_the_database_is_gone_at_its_end(
    store: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_: object) -> bool:
        raise StoreUnavailable("it is gone.")

    leases = Leases(store, "first")
    lease = leases.claim(*JOB)
    assert lease is not None
    with lease:
        monkeypatch.setattr(leases, "renew", gone)
        monkeypatch.setattr(leases, "release", gone)
        assert lease.is_held()
    assert owner(store) == "first"
