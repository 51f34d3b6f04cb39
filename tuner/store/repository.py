"""Every query. Rows of measurements and outcomes are added, never changed."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Select,
    Table,
    and_,
    case,
    func,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from tuner import __version__
from tuner.hardware import DeviceIdentity
from tuner.lookup import Answer, Race, choose
from tuner.shape import Problem
from tuner.store.faults import store_error
from tuner.store.rows import measurement_row, outcome_of, outcome_row, problem_row, readable
from tuner.store.tables import MAX_INT64, PROBLEM, devices, measurements, runs, shape_outcomes
from tuner.trial import Measurement, ShapeOutcome, ShapeState, Source, Toolchain, TrialState


@dataclass(frozen=True, slots=True)
class StoredDevice:
    """A device that rows exist for; `shapes` counts the problems that were tuned on it."""

    key: str
    name: str
    sms: int
    shapes: int


class Repository:
    """What is known, over one database. Every method may be called from any thread.

    Each call is one short transaction. Every method raises StoreError, and nothing else, when the
    database cannot be used.
    """

    def __init__(self, engine: Engine, location: str) -> None:
        self._engine = engine
        self.location = location

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    # Writing

    def add(self, rows: Sequence[Measurement]) -> None:
        """Store all of `rows` or none. A row that is stored already stays one row."""
        made = [measurement_row(row) for row in rows]
        if not made:
            return
        seen = {row.device_key: (row.device_name, row.problem.sms) for row in rows}
        with self._transaction(writes=True) as connection:
            for key, (name, sms) in seen.items():
                self._see_device(connection, key, name, sms)
            self._insert_new(connection, measurements, made)

    def finish_shape(self, outcome: ShapeOutcome) -> None:
        """Store how the tuning of one problem ended."""
        row = outcome_row(outcome)
        with self._transaction(writes=True) as connection:
            self._see_device(
                connection, outcome.device_key, outcome.device_name, outcome.problem.sms
            )
            self._insert_new(connection, shape_outcomes, [row])

    def start_run(self, run_id: str, command: str, source: Source, device: DeviceIdentity) -> None:
        """Note that `command` began on `device`; a run that is known already stays as it is."""
        row = {
            "id": run_id,
            "command": command,
            "version": __version__,
            "source": source,
            "device_key": device.key,
            "device_name": device.name,
            "gpu_uuid": device.uuid,
            "driver": device.driver,
            "cublas_version": device.cublas_version,
            "started_at": datetime.now(UTC),
        }
        with self._transaction(writes=True) as connection:
            self._see_device(connection, device.key, device.name, device.sms)
            self._insert_new(connection, runs, [row])

    def finish_run(self, run_id: str, exit_code: int) -> None:
        """Note how a run ended."""
        ended = {"finished_at": datetime.now(UTC), "exit_code": exit_code}
        with self._transaction(writes=True) as connection:
            connection.execute(update(runs).where(runs.c.id == run_id).values(ended))

    # Reading

    def attempts(
        self,
        problem: Problem,
        device_key: str,
        *,
        sources: Collection[str],
        toolchain: Toolchain | None = None,
    ) -> list[Measurement]:
        """Every row of one problem from `sources`, oldest first.

        Rows with a config that only another version knows stay stored and are left out.
        """
        query = (
            select(measurements)
            .where(_is(measurements, problem, device_key), measurements.c.source.in_(sources))
            .order_by(measurements.c.measured_at, measurements.c.id)
        )
        if toolchain:
            query = query.where(_made_with(measurements, toolchain))
        return [value for row in self._all(query, problem) if (value := readable(row))]

    def races(self, problem: Problem, device_key: str, protocol: str | None = None) -> list[Race]:
        """Every race of one problem, oldest first; with `protocol`, those under it."""
        query = (
            select(measurements)
            .where(_is(measurements, problem, device_key), measurements.c.race.is_not(None))
            .order_by(measurements.c.measured_at, measurements.c.id)
        )
        if protocol is not None:
            query = query.where(measurements.c.protocol == protocol)
        together: dict[tuple[object, ...], list[Measurement]] = {}
        for row in self._all(query, problem):
            if value := readable(row):
                # One race has one of each; rows that differ could not be compared.
                key = (value.race, value.protocol, value.source, value.toolchain)
                together.setdefault(key, []).append(value)
        return [Race(str(key[0]), rows[0].protocol, tuple(rows)) for key, rows in together.items()]

    def best(
        self,
        problem: Problem,
        device_key: str,
        protocol: str | None = None,
        current: Toolchain | None = None,
        current_driver: str | None = None,
    ) -> Answer | None:
        """The best config of one problem by the rules of `tuner.lookup.choose`, or None."""
        races = self.races(problem, device_key, protocol)
        return choose(races, protocol, current, current_driver)

    def outcome(
        self, problem: Problem, device_key: str, toolchain: Toolchain, source: Source
    ) -> ShapeOutcome | None:
        """How the latest tuning of a problem with `toolchain` ended; None if none did."""
        query = (
            select(shape_outcomes)
            .where(
                _is(shape_outcomes, problem, device_key),
                _made_with(shape_outcomes, toolchain),
                shape_outcomes.c.source == source,
            )
            .order_by(*_latest_first())
            .limit(1)
        )
        return next((outcome_of(row) for row in self._all(query, problem)), None)

    def latest_outcome(self, problem: Problem, device_key: str) -> ShapeOutcome | None:
        """How the latest tuning ended whatever it was made with, a real device's before replay."""
        query = (
            select(shape_outcomes)
            .where(_is(shape_outcomes, problem, device_key))
            .order_by(_replayed(), *_latest_first())
            .limit(1)
        )
        return next((outcome_of(row) for row in self._all(query, problem)), None)

    def devices(self) -> list[StoredDevice]:
        """Every device that rows exist for, by key."""
        tuned = (
            select(*(shape_outcomes.c[name] for name in PROBLEM))
            .where(shape_outcomes.c.state == ShapeState.TUNED.value)
            .distinct()
            .subquery()
        )
        query = (
            select(
                devices.c.key, devices.c.name, devices.c.sms, func.count(tuned.c.m).label("shapes")
            )
            .join_from(devices, tuned, devices.c.key == tuned.c.device_key, isouter=True)
            .group_by(devices.c.key, devices.c.name, devices.c.sms)
            .order_by(devices.c.key)
        )
        return [StoredDevice(**row) for row in self._all(query)]

    def shapes(
        self, device_key: str, *, limit: int | None = None, offset: int = 0
    ) -> list[ShapeOutcome]:
        """The latest outcome of each problem tuned on a device, by extents and budget."""
        columns = [shape_outcomes.c[name] for name in PROBLEM]
        place = func.row_number().over(
            partition_by=columns, order_by=[_replayed(), *_latest_first()]
        )
        ranked = (
            select(shape_outcomes, place.label("place"))
            .where(shape_outcomes.c.device_key == device_key)
            .subquery()
        )
        query = (
            select(ranked)
            .where(ranked.c.place == 1)
            .order_by(*(ranked.c[name] for name in PROBLEM))
            .limit(limit)
            .offset(offset)
        )
        return [outcome_of(row) for row in self._all(query)]

    def failures(
        self, problem: Problem, device_key: str, *, toolchain: Toolchain | None = None
    ) -> dict[TrialState, int]:
        """How many attempts at a problem ended in each state but `ok`."""
        query = (
            select(measurements.c.state, func.count().label("attempts"))
            .where(
                _is(measurements, problem, device_key),
                measurements.c.state != TrialState.OK.value,
            )
            .group_by(measurements.c.state)
            .order_by(measurements.c.state)
        )
        if toolchain:
            query = query.where(_made_with(measurements, toolchain))
        return {TrialState(row["state"]): row["attempts"] for row in self._all(query, problem)}

    def watermark(self) -> tuple[int, int]:
        """Grows with every stored row and outcome; cheap, so that a cache can follow it."""
        query = select(
            select(func.max(measurements.c.id)).scalar_subquery().label("rows"),
            select(func.max(shape_outcomes.c.id)).scalar_subquery().label("outcomes"),
        )
        (row,) = self._all(query)
        return row["rows"] or 0, row["outcomes"] or 0

    # Transactions

    def _all(
        self, query: Select[Any], problem: Problem | None = None
    ) -> Sequence[Mapping[str, Any]]:
        if problem is not None and not -MAX_INT64 <= problem.sms <= MAX_INT64:
            # No column holds such a number, so no row has it.
            return []
        with self._transaction(writes=False) as connection:
            return connection.execute(query).mappings().all()  # type: ignore[return-value]

    @contextmanager
    def _transaction(self, writes: bool) -> Iterator[Connection]:
        try:
            with (
                self._engine.connect().execution_options(writes=writes) as connection,
                connection.begin(),
            ):
                yield connection
        except SQLAlchemyError as error:
            raise store_error(self.location, error) from error

    def _insert_new(
        self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]
    ) -> None:
        if connection.dialect.name == "sqlite":
            connection.execute(sqlite.insert(table).on_conflict_do_nothing(), rows)
        else:
            connection.execute(postgresql.insert(table).on_conflict_do_nothing(), rows)

    def _see_device(self, connection: Connection, key: str, name: str, sms: int) -> None:
        # The key says how many SMs there are; a query's budget may be less.
        count = int(told[1]) if (told := re.search(r"-(\d{1,9})sm-", key)) else sms
        row = {"key": key, "name": name, "sms": count, "first_seen_at": datetime.now(UTC)}
        self._insert_new(connection, devices, [row])


def _is(table: Table, problem: Problem, device_key: str) -> ColumnElement[bool]:
    named = problem_row(problem, device_key)
    return and_(*(table.c[name] == named[name] for name in PROBLEM))


def _made_with(table: Table, toolchain: Toolchain) -> ColumnElement[bool]:
    return and_(
        table.c.kernel_hash == toolchain.kernel_hash,
        table.c.nvrtc_version == toolchain.nvrtc_version,
    )


def _latest_first() -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    return shape_outcomes.c.finished_at.desc(), shape_outcomes.c.id.desc()


def _replayed() -> ColumnElement[int]:
    return case((shape_outcomes.c.source == "replay", 1), else_=0)
