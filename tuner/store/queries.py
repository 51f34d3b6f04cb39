"""The statements of `Repository`, each over the rows of one problem or of one small table."""

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, and_, case, func, select

from tuner.shape import Problem
from tuner.store.rows import problem_row
from tuner.store.tables import PROBLEM, devices, measurements, shape_outcomes
from tuner.trial import ShapeState, Source, Toolchain, TrialState

FAILURES = [state.value for state in TrialState if state is not TrialState.OK]
MOST_SETBACKS = 5000
ENDINGS = [state.value for state in ShapeState]
"""States that this version knows; a row of a later one may have another, and is left alone."""


def attempts(
    problem: Problem, device_key: str, sources: Collection[str], toolchain: Toolchain | None
) -> Select[Any]:
    query = (
        select(measurements)
        .where(_is(measurements, problem, device_key), measurements.c.source.in_(sources))
        .order_by(measurements.c.measured_at, measurements.c.id)
    )
    return query.where(_made_with(measurements, toolchain)) if toolchain else query


def latest_rows(problem: Problem, device_key: str, limit: int, offset: int) -> Select[Any]:
    """A page of every row of a problem, the newest first."""
    return (
        select(measurements)
        .where(_is(measurements, problem, device_key))
        .order_by(measurements.c.measured_at.desc(), measurements.c.id.desc())
        .limit(limit)
        .offset(offset)
    )


def raced(
    problem: Problem, device_key: str, protocols: Collection[str] | None = None
) -> Select[Any]:
    """The rows of every race under `protocols`; the partial index holds them and no screenings."""
    query = (
        select(measurements)
        .where(_is(measurements, problem, device_key), measurements.c.race.is_not(None))
        .order_by(measurements.c.measured_at, measurements.c.id)
    )
    return query if protocols is None else query.where(measurements.c.protocol.in_(protocols))


def failures(problem: Problem, device_key: str, toolchain: Toolchain | None) -> Select[Any]:
    query = (
        select(measurements.c.state, func.count().label("attempts"))
        .where(_is(measurements, problem, device_key), measurements.c.state.in_(FAILURES))
        .group_by(measurements.c.state)
        .order_by(measurements.c.state)
    )
    return query.where(_made_with(measurements, toolchain)) if toolchain else query


def setbacks(device_key: str, toolchain: Toolchain, sources: Collection[str]) -> Select[Any]:
    """The newest failures of one kernel on one device, over all problems, by a partial index."""
    return (
        select(measurements)
        .where(
            measurements.c.device_key == device_key,
            _made_with(measurements, toolchain),
            measurements.c.state != TrialState.OK.value,
            measurements.c.state.in_(FAILURES),
            measurements.c.config.is_not(None),
            measurements.c.source.in_(sources),
        )
        .order_by(measurements.c.id.desc())
        .limit(MOST_SETBACKS)
    )


def outcomes(
    problem: Problem,
    device_key: str,
    toolchain: Toolchain | None = None,
    source: Source | None = None,
) -> Select[Any]:
    """Outcomes of one problem: of a real device before replayed ones, then the latest first."""
    query = (
        select(shape_outcomes)
        .where(_is(shape_outcomes, problem, device_key), shape_outcomes.c.state.in_(ENDINGS))
        .order_by(*_newest_real_first())
    )
    if toolchain:
        query = query.where(_made_with(shape_outcomes, toolchain))
    return query.where(shape_outcomes.c.source == source) if source else query


def latest_outcomes(device_key: str, limit: int | None, offset: int) -> Select[Any]:
    """The first of `outcomes` for every problem of a device, in the order of `PROBLEM`."""
    problem = [shape_outcomes.c[name] for name in PROBLEM]
    place = func.row_number().over(partition_by=problem, order_by=_newest_real_first())
    ranked = (
        select(shape_outcomes, place.label("place"))
        .where(shape_outcomes.c.device_key == device_key, shape_outcomes.c.state.in_(ENDINGS))
        .subquery()
    )
    return (
        select(ranked)
        .where(ranked.c.place == 1)
        .order_by(*(ranked.c[name] for name in PROBLEM))
        .limit(limit)
        .offset(offset)
    )


def devices_with_shapes() -> Select[Any]:
    """Every device, and how many problems were ever tuned on it."""
    tuned = (
        select(*(shape_outcomes.c[name] for name in PROBLEM))
        .where(shape_outcomes.c.state == ShapeState.TUNED.value)
        .distinct()
        .subquery()
    )
    named = (devices.c.key, devices.c.name, devices.c.sms)
    return (
        select(*named, func.count(tuned.c.m).label("shapes"))
        .join_from(devices, tuned, devices.c.key == tuned.c.device_key, isouter=True)
        .group_by(*named)
        .order_by(devices.c.key)
    )


def watermark() -> Select[Any]:
    return select(
        select(func.max(measurements.c.id)).scalar_subquery().label("rows"),
        select(func.max(shape_outcomes.c.id)).scalar_subquery().label("outcomes"),
    )


def of_layer(table: Table, problem: Problem) -> list[ColumnElement[bool]]:
    """The same problem with any M."""
    named = problem_row(problem, "")
    return [table.c[name] == named[name] for name in PROBLEM if name not in ("device_key", "m")]


def _is(table: Table, problem: Problem, device_key: str) -> ColumnElement[bool]:
    named = problem_row(problem, device_key)
    return and_(*(table.c[name] == named[name] for name in PROBLEM))


def _made_with(table: Table, toolchain: Toolchain) -> ColumnElement[bool]:
    return and_(
        table.c.kernel_hash == toolchain.kernel_hash,
        table.c.nvrtc_version == toolchain.nvrtc_version,
    )


def _newest_real_first() -> list[ColumnElement[Any]]:
    replayed = case((shape_outcomes.c.source == "replay", 1), else_=0)
    return [replayed, shape_outcomes.c.finished_at.desc(), shape_outcomes.c.id.desc()]
