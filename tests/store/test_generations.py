"""Generations: immutable, named by their content, and one of them served at a time."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from sqlalchemy import Connection, text

from tests.forks import forks
from tests.store.examples import CUBLAS, DEVICE_KEY, PROBLEM, config, kernel, measurement, race
from tests.store.movers import publish_at_once, read_generations
from tuner.errors import StoreError
from tuner.lookup.snapshot import Snapshot
from tuner.shape import GemmShape, Problem
from tuner.store import generations as stored_generations
from tuner.store.engine import open_store
from tuner.store.generations import Generations
from tuner.store.repository import Repository
from tuner.store.transfer import merge
from tuner.trial import PROTOCOL_COOL, PROTOCOL_HOT, Measurement

READERS = 16
SECOND = Problem(GemmShape(8192, 2112, 72), 132)


def answer(problem: Problem = PROBLEM, block_n: int = 128, us: float = 150.0) -> list[Measurement]:
    """A race that a config wins against cuBLAS."""
    scale = problem.shape.flops / PROBLEM.shape.flops
    times = {CUBLAS: [200.0 * scale] * 8, kernel(block_n): [us * scale] * 8}
    return race(f"race-{block_n}-{us}", times, problem=problem)


@pytest.fixture
def published(store: Repository) -> Generations:
    """A store that has served one generation."""
    store.add(answer())
    generations = Generations(store)
    generations.publish(DEVICE_KEY, "me@here", "first")
    return generations


def test_publishing_serves_every_best_answer_under_the_hash_of_its_content(
    store: Repository,
) -> None:
    store.add([*answer(), *answer(SECOND), measurement()])
    done = Generations(store).publish(DEVICE_KEY, "me@here")
    served = Generations(store).current(DEVICE_KEY)
    assert served is not None
    assert (served.id, done.new, done.before, done.entries) == (done.id, True, None, 2)
    found = served.find(SECOND)
    best = store.best(SECOND, DEVICE_KEY)
    assert found is not None
    assert best is not None
    assert found["config"] == best.to_json()["config"] == config().to_dict()
    assert found["speedup"] == pytest.approx(200 / 150)


def test_the_same_answers_have_the_same_id_and_add_no_row(
    store: Repository, published: Generations
) -> None:
    first = published.current(DEVICE_KEY)
    assert first is not None
    again = published.publish(DEVICE_KEY, "you@there", "again")
    store.add([measurement(detail="a screening answers nothing")])
    third = published.publish(DEVICE_KEY, "you@there")
    assert (again.id, again.new, third.id, third.new) == (first.id, False, first.id, False)
    assert [g.created_by for g in published.all()] == ["me@here"]
    with store.transaction(writes=False) as connection:
        assert connection.execute(text("SELECT count(*) FROM publications")).scalar_one() == 1


def test_two_databases_with_the_same_rows_publish_the_same_id(
    new_database: Callable[[], str],
) -> None:
    rows = [*answer(), *answer(SECOND), *answer(block_n=256, us=149.0)]
    ids = set()
    for told in (rows, rows[::-1]):
        with open_store(new_database()) as store:
            for row in told:
                store.add([row])
            ids.add(Generations(store).publish(DEVICE_KEY, "me@here").id)
    assert len(ids) == 1


def test_a_pinned_generation_stays_what_it_was_after_later_ones(
    store: Repository, published: Generations
) -> None:
    pinned = published.current(DEVICE_KEY)
    assert pinned is not None
    store.add(answer(SECOND))
    later = published.publish(DEVICE_KEY, "me@here", "second")
    assert later.before == pinned.id != later.id
    assert published.snapshot(pinned.id).body == pinned.body
    assert published.snapshot(pinned.id).find(SECOND) is None
    newest, oldest = published.all(DEVICE_KEY)
    assert (newest.id, newest.parent, newest.current, newest.note) == (
        later.id,
        pinned.id,
        True,
        "second",
    )
    assert (oldest.id, oldest.parent, oldest.current) == (pinned.id, None, False)


def test_rolling_back_serves_the_older_generation_again(
    store: Repository, published: Generations
) -> None:
    first = published.current(DEVICE_KEY)
    assert first is not None
    store.add(answer(SECOND))
    second = published.publish(DEVICE_KEY, "me@here")
    back = published.rollback(first.id[:12], "me@here", "the second was slow")
    served = published.current(DEVICE_KEY)
    assert served is not None
    assert (served.id, back.before, back.new) == (first.id, second.id, True)
    assert published.rollback(first.id, "me@here").new is False
    assert published.rollback(second.id, "me@here").before == first.id
    with store.transaction(writes=False) as connection:
        told = connection.execute(
            text("SELECT generation_id, reason FROM publications ORDER BY id")
        ).all()
    assert [tuple(row) for row in told] == [
        (first.id, "first"),
        (second.id, "publish"),
        (first.id, "the second was slow"),
        (second.id, "rollback"),
    ]


def test_each_device_serves_its_own(store: Repository, published: Generations) -> None:
    other = "sm90-114sm-80gb"
    h100 = replace(PROBLEM, sms=114)
    knobs = replace(config().knobs, num_sms=114)
    ours = replace(kernel(), config=replace(config(), knobs=knobs))
    rows = race("r", {CUBLAS: [260.0] * 8, ours: [240.0] * 8}, problem=h100)
    store.add([replace(r, device_key=other, device_name="NVIDIA H100 PCIe") for r in rows])
    done = published.publish(other, "me@here")
    first = published.current(DEVICE_KEY)
    second = published.current(other)
    assert first is not None
    assert second is not None
    assert (second.id, second.device_name) == (done.id, "NVIDIA H100 PCIe")
    assert first.id != second.id
    assert [g.id for g in published.all(other)] == [second.id]
    assert {g.id for g in published.all() if g.current} == {first.id, second.id}


def test_what_is_best_under_one_protocol_is_in_the_snapshot(store: Repository) -> None:
    a, b = kernel(128), kernel(256)
    store.add(race("h", {CUBLAS: [200.0] * 8, a: [150.0] * 8, b: [160.0] * 8}))
    cool = {CUBLAS: [200.0] * 8, a: [190.0] * 8, b: [160.0] * 8}
    store.add(race("c", cool, protocol=PROTOCOL_COOL))
    snapshot = Generations(store).snapshot(Generations(store).publish(DEVICE_KEY, "me").id)
    tiles = [
        found["config"]["block_n"] if (found := snapshot.find(PROBLEM, p)) else None
        for p in (None, PROTOCOL_HOT, PROTOCOL_COOL, "graph-warml2-hot/1")
    ]
    assert tiles == [256, 128, 256, None]


def test_a_config_that_no_card_can_run_is_not_published(store: Repository) -> None:
    wide = replace(config(256).variant, block_m=256, stages=8)
    too_big = replace(kernel(), config=replace(config(), variant=wide))
    store.add([*answer(), *race("w", {CUBLAS: [400.0] * 8, too_big: [300.0] * 8}, problem=SECOND)])
    done = Generations(store).publish(DEVICE_KEY, "me@here")
    assert done.entries == 1
    assert Generations(store).snapshot(done.id).find(SECOND) is None


def test_nothing_to_publish_is_said(store: Repository) -> None:
    generations = Generations(store)
    with pytest.raises(StoreError, match="nothing is stored for the device 'h200'"):
        generations.publish("h200", "me@here")
    store.add([measurement()])
    with pytest.raises(StoreError, match="nothing to publish"):
        generations.publish(DEVICE_KEY, "me@here")
    assert generations.current(DEVICE_KEY) is None
    assert generations.all() == []


@pytest.mark.parametrize("id", ["", "abc", "f" * 64, "%", "' OR 1=1"])
def test_an_unknown_id_is_refused_and_the_list_named(published: Generations, id: str) -> None:
    with pytest.raises(StoreError, match=r"has no generation .*`tuner generations list`"):
        published.rollback(id, "me@here")


def test_the_database_refuses_to_change_a_generation(
    store: Repository, published: Generations
) -> None:
    for statement in ("UPDATE generations SET note = 'x'", "UPDATE publications SET reason = ''"):
        with (
            pytest.raises(StoreError, match="never change"),
            store.transaction(writes=True) as connection,
        ):
            connection.execute(text(statement))
    assert published.all()[0].note == "first"


def test_generations_come_along_in_a_merge_and_what_is_served_stays(
    new_database: Callable[[], str],
) -> None:
    one, other = new_database(), new_database()
    with open_store(one) as store:
        store.add(answer())
        first = Generations(store).publish(DEVICE_KEY, "me@here").id
    with open_store(other) as store:
        store.add(answer(SECOND))
        second = Generations(store).publish(DEVICE_KEY, "me@here").id
        merge(store, one)
        served = Generations(store).current(DEVICE_KEY)
        assert served is not None
        assert served.id == second
        assert {g.id for g in Generations(store).all()} == {first, second}
        assert Generations(store).rollback(first, "me@here").id == first


def test_publishers_at_once_serve_one_generation_and_make_it_once(
    new_database: Callable[[], str],
) -> None:
    url = new_database()
    with open_store(url) as store:
        store.add([*answer(), *answer(SECOND)])
    context = forks()
    told = context.Queue()
    publishers = [
        context.Process(target=publish_at_once, args=(url, DEVICE_KEY, told)) for _ in range(6)
    ]
    for publisher in publishers:
        publisher.start()
    published = [told.get(timeout=60) for _ in publishers]
    for publisher in publishers:
        publisher.join(60)
    assert len({id for id, _ in published}) == 1
    assert [new for _, new in published].count(True) == 1
    with open_store(url) as store:
        assert len(Generations(store).all()) == 1


def test_a_publisher_that_was_overtaken_looks_again_and_never_serves_older_rows(
    store: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add(answer())
    built: list[Snapshot] = []

    def overtaken(connection: Connection, device_key: str) -> Snapshot:
        snapshot = snapshot_now(connection, device_key)
        built.append(snapshot)
        if len(built) == 1:
            store.add(answer(SECOND))
            Generations(store).publish(device_key, "the other")
        return snapshot

    snapshot_now = stored_generations._snapshot_now
    monkeypatch.setattr(stored_generations, "_snapshot_now", overtaken)
    first = Generations(store)
    done = first.publish(DEVICE_KEY, "the slow one")
    assert (done.entries, done.new) == (2, False)
    assert [g.created_by for g in first.all()] == ["the other"]


def test_sixteen_readers_during_a_publish_see_one_whole_generation_each_time(
    new_database: Callable[[], str],
) -> None:
    url = new_database()
    with open_store(url) as store:
        store.add([*answer(), *answer(SECOND)])
        generations = Generations(store)
        before = generations.publish(DEVICE_KEY, "me@here").id
        context = forks()
        told, ready, stop = context.Queue(), context.Semaphore(0), context.Event()
        readers = [
            context.Process(target=read_generations, args=(url, DEVICE_KEY, told, ready, stop))
            for _ in range(READERS)
        ]
        for reader in readers:
            reader.start()
        for _ in readers:
            assert ready.acquire(timeout=90)
        store.add(answer(block_n=256, us=120.0))
        after = generations.publish(DEVICE_KEY, "me@here").id
        stop.set()
        seen = [told.get(timeout=60) for _ in readers]
    for reader in readers:
        reader.join(60)
        with suppress(ValueError):
            reader.close()
    assert before != after
    for ids, faults in seen:
        assert faults == []
        # The old one until the new one, never back, and no third.
        assert ids in ([before, after], [after])
    assert [before, after] in [ids for ids, _ in seen]
