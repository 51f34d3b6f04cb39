"""Every best answer of a device, read in one go."""

from collections.abc import Iterator, Mapping
from itertools import groupby

from sqlalchemy import Connection, select

from tuner.legality import faults
from tuner.lookup import Answer, Miss, answers_on_terms, choose, why_none
from tuner.lookup.race import races_of
from tuner.shape import Problem
from tuner.store.queries import latest_outcomes
from tuner.store.rows import outcome_of, problem_row, readable
from tuner.store.tables import PROBLEM, devices, measurements
from tuner.trial import PROTOCOL_COOL, PROTOCOL_HEAT, PROTOCOL_HOT, Measurement, ShapeState

REFUSED = (ShapeState.UNSUPPORTED, ShapeState.DOES_NOT_FIT, ShapeState.NO_VALID_CONFIG)
"""Ends of a tuning that leave nothing to serve."""
ASKED_ALONE = (PROTOCOL_HOT, PROTOCOL_COOL)
"""Protocols that a reader may ask for by name."""


def best_answers(
    connection: Connection, device_key: str, *, plain: bool = False
) -> Iterator[tuple[Answer, Mapping[str, Answer]]]:
    """By problem, the best answer and what is best under each single protocol.

    plain: among configs without dependent launch; a problem that has none is left out.
    A config that no sm_90 device can run is no answer, whatever a row says of its speed.
    """
    for rows in raced_problems(connection, device_key):
        races = races_of(rows)
        best = choose(races, plain=plain)
        if best is None or not _runs(best):
            continue
        alone = {name: choose(races, name, plain=plain) for name in ASKED_ALONE}
        under = {name: one for name, one in alone.items() if one and _runs(one)}
        yield best, under


def best_on_terms(
    connection: Connection, device_key: str
) -> Iterator[tuple[Answer, Mapping[str, Answer]]]:
    """By problem, the best answer and what is best on all other terms, by their label."""
    for rows in raced_problems(connection, device_key):
        found = answers_on_terms(races_of(rows))
        if found is not None and _runs(found[0]):
            best, under = found
            yield best, {label: one for label, one in under.items() if _runs(one)}


def refused_problems(connection: Connection, device_key: str) -> Mapping[Problem, Miss]:
    """Why problems whose last tuning ended without a config have none."""
    latest = connection.execute(latest_outcomes(device_key, None, 0)).mappings()
    outcomes = (outcome_of(dict(row)) for row in latest)
    return {
        outcome.problem: why_none(outcome.problem, outcome.device_name, outcome)
        for outcome in outcomes
        if outcome.state in REFUSED
    }


def raced_problems(connection: Connection, device_key: str) -> Iterator[list[Measurement]]:
    """The rows of every race but heats, problem by problem, oldest first."""
    query = (
        select(measurements)
        .where(
            measurements.c.device_key == device_key,
            measurements.c.race.is_not(None),
            measurements.c.protocol != PROTOCOL_HEAT,
        )
        .order_by(*(measurements.c[name] for name in PROBLEM), measurements.c.measured_at, "id")
    )
    found = connection.execute(query.execution_options(yield_per=2000)).mappings()
    values = (value for row in found if (value := readable(dict(row))))
    for _, rows in groupby(values, key=lambda row: tuple(_named(row))):
        yield list(rows)


def device_name(connection: Connection, device_key: str) -> str | None:
    """How a stored device is called; None for one that nothing is stored of."""
    found = connection.execute(select(devices.c.name).where(devices.c.key == device_key))
    return found.scalar_one_or_none()


def _named(row: Measurement) -> Iterator[object]:
    named = problem_row(row.problem, row.device_key)
    return (named[name] for name in PROBLEM)


def _runs(answer: Answer) -> bool:
    return next(iter(faults(answer.config, answer.problem)), None) is None
