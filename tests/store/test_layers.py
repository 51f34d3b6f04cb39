"""Layers follow from stored rows, wherever these are brought, and are published with the rest."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lookup.crossed import KEY, LARGE, SMALL, crossed
from tests.store.examples import DEVICE_KEY
from tuner.lookup import Layer, Terms
from tuner.lookup.layer_rule import layers_of
from tuner.store.engine import open_store
from tuner.store.exports import export_lines, export_sqlite
from tuner.store.generations import Generations
from tuner.store.layers import layers_at
from tuner.store.repository import Repository
from tuner.store.retention import prune
from tuner.store.source import opened_source
from tuner.store.transfer import import_file, merge
from tuner.trial import Measurement

RACES = {m: crossed(m, {SMALL: 50, LARGE: 60 if m < 64 else 40}) for m in (16, 32, 64, 128)}


def rows() -> list[Measurement]:
    return [row for of_m in RACES.values() for race in of_m for row in race.measurements]


@pytest.fixture
def filled(store: Repository) -> Repository:
    store.add(rows())
    return store


def test_stored_rows_make_the_layers_of_their_races(filled: Repository) -> None:
    found = layers_at(filled, KEY, DEVICE_KEY)
    assert found == layers_of(KEY, RACES)
    assert found[0].terms == Terms()
    assert len(found[0].intervals) == 2


def test_another_n_k_budget_order_or_device_has_no_layer(filled: Repository) -> None:
    shape = KEY.shape
    others = [
        replace(KEY, shape=replace(shape, n=8)),
        replace(KEY, shape=replace(shape, k=8)),
        replace(KEY, sms=66),
        replace(KEY, sms=2**70),
        replace(KEY, d="col"),
    ]
    assert [layers_at(filled, other, DEVICE_KEY) for other in others] == [[]] * 5
    assert layers_at(filled, KEY, "sm90-132sm-80gb") == []


def test_a_generation_carries_the_layers(filled: Repository) -> None:
    generations = Generations(filled)
    id = generations.publish(DEVICE_KEY, "me").id
    assert list(generations.snapshot(id).layers) == sorted(
        layers_of(KEY, RACES), key=lambda layer: layer.terms.label
    )
    assert not generations.publish(DEVICE_KEY, "me").new


@pytest.mark.parametrize("export", [export_lines, export_sqlite])
def test_an_export_and_an_import_bring_the_layers_along(
    database_url: str,
    new_database: Callable[[], str],
    tmp_path: Path,
    export: Callable[..., object],
) -> None:
    with open_store(database_url) as store:
        store.add(rows())
    with opened_source(database_url) as source:
        export(source, tmp_path / "rows")
    with open_store(new_database()) as other:
        import_file(other, tmp_path / "rows")
        assert layers_at(other, KEY, DEVICE_KEY) == layers_of(KEY, RACES)


def test_two_databases_with_half_of_a_layer_each_make_one_when_merged(
    database_url: str, new_database: Callable[[], str]
) -> None:
    halves = [row for row in rows() if row.problem.shape.m < 64]
    other = new_database()
    with open_store(database_url) as store:
        store.add(halves)
    with open_store(other) as second:
        second.add([row for row in rows() if row not in halves])
    with open_store(database_url) as store:
        merge(store, other)
        assert layers_at(store, KEY, DEVICE_KEY) == layers_of(KEY, RACES)


def test_pruning_leaves_the_races_that_a_layer_rests_on(filled: Repository) -> None:
    last = max(row.measured_at for row in rows())
    done = prune(filled, last.replace(year=last.year + 1))
    assert done.races == 0
    assert layers_at(filled, KEY, DEVICE_KEY) == layers_of(KEY, RACES)


def test_a_race_whose_id_only_looks_like_a_cross_race_makes_no_layer(store: Repository) -> None:
    store.add([replace(row, race=f"crossing {row.race}") for row in rows()])
    store.add([replace(row, race="cross-country") for row in rows()])
    found: list[Layer] = layers_at(store, KEY, DEVICE_KEY)
    assert found == []
