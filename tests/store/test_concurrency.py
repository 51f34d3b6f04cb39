"""Many processes, one database: nobody dies, no row is lost, readers stop nobody."""

import multiprocessing
from collections import Counter
from time import monotonic

from tests.store.examples import DEVICE_KEY, PROBLEM
from tests.store.writers import write
from tuner.store.engine import open_store

WORKERS, ROWS = 4, 20


def test_several_writers_and_a_reader_share_an_empty_database(database_url: str) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [
        context.Process(target=write, args=(database_url, worker, ROWS))
        for worker in range(WORKERS)
    ]
    for writer in writers:
        writer.start()
    seen = [0]
    deadline = monotonic() + 60
    with open_store(database_url) as store:
        while any(writer.is_alive() for writer in writers) and monotonic() < deadline:
            seen.append(len(store.attempts(PROBLEM, DEVICE_KEY, sources=["measured"])))
            store.best(PROBLEM, DEVICE_KEY)
        for writer in writers:
            writer.join(30)
        rows = store.attempts(PROBLEM, DEVICE_KEY, sources=["measured"])
    assert [writer.exitcode for writer in writers] == [0] * WORKERS
    assert Counter(row.worker for row in rows) == {str(w): ROWS for w in range(WORKERS)}
    assert seen == sorted(seen)
