"""The layers of a device: a query over their cross races, as every best answer is one."""

from collections.abc import Iterable, Iterator

from sqlalchemy import Connection, select

from tuner.lookup import COUNTED_PROTOCOLS, Answer, Book, Layer, Terms
from tuner.lookup.cross_races import ID_START
from tuner.lookup.layer import layer_key
from tuner.lookup.layer_rule import layers_of
from tuner.lookup.race import Race, races_of
from tuner.lookup.tiers import of_layer
from tuner.shape import Problem
from tuner.store import queries
from tuner.store.repository import Repository, StoredDevice
from tuner.store.rows import problem_of, readable
from tuner.store.tables import MAX_INT64, PROBLEM, measurements
from tuner.trial import Toolchain


def device_layers(connection: Connection, device_key: str) -> Iterator[Layer]:
    """Every layer that was tuned on a device."""
    for key, problems in _by_layer(_crossed(connection, device_key)).items():
        yield from layers_of(key, _races(connection, device_key, problems))


def layers_at(
    repository: Repository, problem: Problem, device_key: str, current: Toolchain | None = None
) -> list[Layer]:
    """The layers of one N, K, SM budget and the rest, whatever M the problem has."""
    if problem.sms > MAX_INT64:
        return []
    with repository.transaction(writes=False, moment=True) as connection:
        problems = _crossed(connection, device_key, problem)
        return layers_of(problem, _races(connection, device_key, problems), current)


def layer_answer(
    repository: Repository, problem: Problem, device: StoredDevice, terms: Terms
) -> Answer | None:
    """What the layer of a problem that was not measured says of it; None if it has none."""
    found = layers_at(repository, problem, device.key)
    return of_layer(problem, Book(device.key, device.name, layers=found), terms)


def _crossed(connection: Connection, device_key: str, like: Problem | None = None) -> list[Problem]:
    """Problems that had a cross race, those of the layer of `like` if one is named."""
    c = measurements.c
    query = (
        select(*(c[name] for name in PROBLEM))
        .where(c.device_key == device_key, c.race.is_not(None))
        .where(c.race.startswith(ID_START, autoescape=True))
        .distinct()
        .order_by(*(c[name] for name in PROBLEM))
    )
    if like is not None:
        query = query.where(*queries.of_layer(measurements, like))
    return [problem_of(dict(row)) for row in connection.execute(query).mappings()]


def _races(
    connection: Connection, device_key: str, problems: Iterable[Problem]
) -> dict[int, list[Race]]:
    found = {}
    for problem in problems:
        query = queries.raced(problem, device_key, COUNTED_PROTOCOLS)
        rows = connection.execute(query).mappings()
        values = (value for row in rows if (value := readable(dict(row))))
        found[problem.shape.m] = races_of(values)
    return found


def _by_layer(problems: Iterable[Problem]) -> dict[Problem, list[Problem]]:
    found: dict[Problem, list[Problem]] = {}
    for problem in problems:
        found.setdefault(layer_key(problem), []).append(problem)
    return found
