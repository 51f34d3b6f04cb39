"""Many processes, one database: nobody dies, no row is lost, readers stop nobody."""

from itertools import permutations
from pathlib import Path

import pytest

from benchmarks.store_stress import Load, failed, run
from tests.forks import forks
from tests.store.examples import CUBLAS, DEVICE_KEY, PROBLEM, config, kernel, race
from tests.store.writers import add_when_told
from tuner.store.engine import open_store
from tuner.trial import Measurement


def test_sixteen_writers_and_a_reader_share_an_empty_database_and_no_job_is_done_twice(
    bare_database_url: str,
) -> None:
    writers = 16 if bare_database_url.startswith("sqlite") else 8
    forks()  # `run` starts its writers there
    found = run("database", bare_database_url, Load(writers, rows=24))
    assert not failed(found), found
    assert (found.rows, found.lost, found.doubled) == (writers * 24, 0, 0)
    assert (found.jobs_twice, found.jobs_undone, found.died) == (0, 0, 0)
    assert found.look_ups > 0


def won_by(block_n: int, us: float) -> list[Measurement]:
    return race(f"of {block_n}", {kernel(block_n): [us] * 9, CUBLAS: [100.0] * 9})


BETTER, WORSE = won_by(256, 60.0), won_by(128, 80.0)


@pytest.mark.parametrize("order", list(permutations([BETTER, WORSE])), ids=["better", "worse"])
def test_two_workers_tune_one_problem_and_the_better_result_wins_in_both_orders(
    database_url: str, order: tuple[list[Measurement], ...]
) -> None:
    context = forks()
    with open_store(database_url) as store:
        answers = []
        for rows in order:
            told = context.Event()
            told.set()
            worker = context.Process(target=add_when_told, args=(database_url, rows, told))
            worker.start()
            worker.join(60)
            assert worker.exitcode == 0
            answers.append(store.best(PROBLEM, DEVICE_KEY))
        assert [a and a.config for a in answers][-1] == config(256)
        # Not even for a moment is the better one replaced by the worse.
        assert answers[0] is not None
        assert answers[0].config == order[0][0].contender.config
        reference = store.best(PROBLEM, DEVICE_KEY)
    assert reference is not None
    assert reference.speedup == 100.0 / 60.0


def test_two_workers_that_store_in_the_same_moment_leave_the_same_answer(
    database_url: str, tmp_path: Path
) -> None:
    with open_store(f"sqlite:///{tmp_path / 'one by one.db'}") as alone:
        alone.add(WORSE)
        alone.add(BETTER)
        expected = alone.best(PROBLEM, DEVICE_KEY)
    context = forks()
    with open_store(database_url) as store:
        now = context.Event()
        workers = [
            context.Process(target=add_when_told, args=(database_url, rows, now))
            for rows in (BETTER, WORSE)
        ]
        for worker in workers:
            worker.start()
        now.set()
        for worker in workers:
            worker.join(60)
        assert [worker.exitcode for worker in workers] == [0, 0]
        assert store.best(PROBLEM, DEVICE_KEY) == expected
    assert expected is not None
