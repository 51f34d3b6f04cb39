"""What is known, and how to add to it. Measurements and outcomes are added, never changed."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, Engine, Select, Table, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from tuner import __version__
from tuner.hardware import DeviceIdentity
from tuner.lookup import COUNTED_PROTOCOLS, Answer, Numerics, Race, choose
from tuner.lookup.race import races_of
from tuner.shape import Problem
from tuner.store import queries
from tuner.store.faults import store_error
from tuner.store.rows import measurement_row, outcome_of, outcome_row, readable
from tuner.store.tables import MAX_INT64, devices, measurements, runs, shape_outcomes
from tuner.trial import Measurement, ShapeOutcome, Source, Toolchain, TrialState


@dataclass(frozen=True, slots=True)
class StoredDevice:
    """A device that rows exist for; `shapes` counts the problems that were tuned on it."""

    key: str
    name: str
    sms: int
    shapes: int


class Repository:
    """Everything that is stored, over one database. Any thread may call any method.

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

    def add(self, rows: Sequence[Measurement]) -> None:
        """Store all of `rows` or none. A row that is stored already stays one row."""
        made = [measurement_row(row) for row in rows]
        if not made:
            return
        seen = {row.device_key: (row.device_name, row.problem.sms) for row in rows}
        with self.transaction(writes=True) as connection:
            for key, (name, sms) in sorted(seen.items()):
                see_device(connection, key, name, sms)
            insert_new(connection, measurements, made)

    def finish_shape(self, outcome: ShapeOutcome) -> None:
        """Store how the tuning of one problem ended."""
        row = outcome_row(outcome)
        with self.transaction(writes=True) as connection:
            see_device(connection, outcome.device_key, outcome.device_name, outcome.problem.sms)
            insert_new(connection, shape_outcomes, [row])

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
        with self.transaction(writes=True) as connection:
            see_device(connection, device.key, device.name, device.sms)
            insert_new(connection, runs, [row])

    def finish_run(self, run_id: str, exit_code: int) -> None:
        """Note how a run ended."""
        ended = {"finished_at": datetime.now(UTC), "exit_code": exit_code}
        with self.transaction(writes=True) as connection:
            connection.execute(update(runs).where(runs.c.id == run_id).values(ended))

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
        found = self._all(queries.attempts(problem, device_key, sources, toolchain), problem)
        return [value for row in found if (value := readable(row))]

    def trials(
        self, problem: Problem, device_key: str, limit: int, offset: int = 0
    ) -> list[Measurement | None]:
        """A page of every row of one problem, the newest first.

        None stands for a row with a config that only another version knows.
        """
        page = self._all(queries.latest_rows(problem, device_key, limit, offset), problem)
        return [readable(row) for row in page]

    def setbacks(
        self, device_key: str, toolchain: Toolchain, *, sources: Collection[str]
    ) -> list[Measurement]:
        """What failed with a kernel on a device, on any problem, newest first, up to thousands."""
        found = self._all(queries.setbacks(device_key, toolchain, sources))
        return [value for row in found if (value := readable(row))]

    def races(self, problem: Problem, device_key: str, protocol: str | None = None) -> list[Race]:
        """Every race of one problem, oldest first; with `protocol`, those under it."""
        return self._races(problem, device_key, None if protocol is None else [protocol])

    def best(
        self,
        problem: Problem,
        device_key: str,
        protocol: str | None = None,
        current: Toolchain | None = None,
        current_driver: str | None = None,
        *,
        plain: bool = False,
        numerics: Numerics | None = None,
    ) -> Answer | None:
        """The best config of one problem by the rules of `tuner.lookup.choose`, or None."""
        # Heats, which are most of what is raced, need not be read.
        protocols = COUNTED_PROTOCOLS if protocol is None else [protocol]
        races = self._races(problem, device_key, protocols)
        return choose(races, protocol, current, current_driver, plain=plain, numerics=numerics)

    def counted_races(self, problem: Problem, device_key: str) -> list[Race]:
        """The races of one problem that answers rest on, oldest first: heats are none."""
        return self._races(problem, device_key, COUNTED_PROTOCOLS)

    def outcome(
        self, problem: Problem, device_key: str, toolchain: Toolchain, source: Source
    ) -> ShapeOutcome | None:
        """How the latest tuning of a problem with `toolchain` ended; None if none did."""
        query = queries.outcomes(problem, device_key, toolchain, source).limit(1)
        return next((outcome_of(row) for row in self._all(query, problem)), None)

    def latest_outcome(self, problem: Problem, device_key: str) -> ShapeOutcome | None:
        """How the latest tuning ended whatever it was made with, a real device's before replay."""
        query = queries.outcomes(problem, device_key).limit(1)
        return next((outcome_of(row) for row in self._all(query, problem)), None)

    def shapes(
        self, device_key: str, *, limit: int | None = None, offset: int = 0
    ) -> list[ShapeOutcome]:
        """The latest outcome of each problem tuned on a device, by extents and SM budget."""
        query = queries.latest_outcomes(device_key, limit, offset)
        return [outcome_of(row) for row in self._all(query)]

    def devices(self) -> list[StoredDevice]:
        """Every device that rows exist for, by key."""
        return [StoredDevice(**row) for row in self._all(queries.devices_with_shapes())]

    def failures(
        self, problem: Problem, device_key: str, *, toolchain: Toolchain | None = None
    ) -> dict[TrialState, int]:
        """How many attempts at a problem ended in each state but `ok`."""
        found = self._all(queries.failures(problem, device_key, toolchain), problem)
        return {TrialState(row["state"]): row["attempts"] for row in found}

    def watermark(self) -> tuple[int, int]:
        """Grows with every stored row and outcome; cheap, so that a cache can follow it."""
        (row,) = self._all(queries.watermark())
        return row["rows"] or 0, row["outcomes"] or 0

    def _races(
        self, problem: Problem, device_key: str, protocols: Collection[str] | None
    ) -> list[Race]:
        found = self._all(queries.raced(problem, device_key, protocols), problem)
        return races_of(value for row in found if (value := readable(row)))

    def _all(
        self, query: Select[Any], problem: Problem | None = None
    ) -> Sequence[Mapping[str, Any]]:
        if problem is not None and not -MAX_INT64 <= problem.sms <= MAX_INT64:
            # No column holds such a number, so no row has it.
            return []
        with self.transaction(writes=False) as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    @contextmanager
    def transaction(self, writes: bool, moment: bool = False) -> Iterator[Connection]:
        """One transaction, for the other modules of the store.

        moment: every statement in it sees the database as the first one did, which SQLite's
        always do. Raises: StoreError for whatever the database refuses.
        """
        options: dict[str, Any] = {"writes": writes}
        if moment and self._engine.dialect.name == "postgresql":
            options["isolation_level"] = "REPEATABLE READ"
        try:
            with (
                self._engine.connect().execution_options(**options) as connection,
                connection.begin(),
            ):
                yield connection
        except SQLAlchemyError as error:
            raise store_error(self.location, error) from error


def insert_new(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add the rows that are not there yet."""
    # The same clause, spelled by two dialects of SQLAlchemy.
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    connection.execute(dialect.insert(table).on_conflict_do_nothing(), rows)


def see_device(connection: Connection, key: str, name: str, sms: int) -> None:
    """Know a device by its key; the first name it was told with stays."""
    # The key says how many SMs there are; a query's budget may be less.
    count = int(told[1]) if (told := re.search(r"-(\d{1,9})sm-", key)) else sms
    row = {"key": key, "name": name, "sms": count, "first_seen_at": datetime.now(UTC)}
    insert_new(connection, devices, [row])
