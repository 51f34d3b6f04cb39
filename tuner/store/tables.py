"""The tables as they are at the newest revision, and the column types both databases agree on.

`migrations/versions` makes them; a test holds the two together. Every table stands alone: a row
says all about itself, so that merging two databases is a set union.
"""

import re
from datetime import UTC, datetime

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Dialect,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
)
from sqlalchemy.types import TypeDecorator

MAX_INT64 = 2**63 - 1
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def storable_text(text: str) -> str:
    """Text that both databases can hold: NUL and lone surrogates become U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)


class Words(TypeDecorator[str]):
    """Text of any length, made storable on its way in, in a look-up too."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        del dialect
        return value if value is None else storable_text(value)


class UtcTime(TypeDecorator[datetime]):
    """An instant; always UTC with its zone in Python."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        instant = value.astimezone(UTC)
        # SQLite keeps text; without the offset its order is the order of time.
        return instant.replace(tzinfo=None) if dialect.name == "sqlite" else instant

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        del dialect
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


metadata = MetaData()
RowId = BigInteger().with_variant(Integer(), "sqlite")


def _problem_columns() -> list[Column[object]]:
    return [
        Column("device_key", Words, nullable=False),
        Column("m", BigInteger, nullable=False),
        Column("n", BigInteger, nullable=False),
        Column("k", BigInteger, nullable=False),
        Column("dtype", Words, nullable=False),
        Column("layout", Words, nullable=False),
        Column("d", Words, nullable=False),
        Column("epilogue", Words, nullable=False),
        Column("sms", BigInteger, nullable=False),
    ]


PROBLEM = ("device_key", "m", "n", "k", "sms", "dtype", "layout", "d", "epilogue")
"""What a look-up names, in the order of the indices."""

measurements = Table(
    "measurements",
    metadata,
    Column("id", RowId, primary_key=True),
    # SHA-256 of everything below but what is derived: a fact told twice is one row.
    Column("digest", Words, nullable=False, unique=True),
    # Identity: what makes two rows comparable.
    *_problem_columns(),
    Column("protocol", Words, nullable=False),
    Column("contender", Words, nullable=False),
    Column("algorithm", Words),
    Column("config", Words),
    Column("config_hash", Words, nullable=False),
    Column("kernel_hash", Words, nullable=False),
    Column("nvrtc_version", Words, nullable=False),
    # Derived.
    Column("numerics", Words, nullable=False),
    Column("median_us", Double),
    Column("sample_count", BigInteger, nullable=False),
    # Recorded.
    Column("state", Words, nullable=False),
    Column("detail", Words, nullable=False),
    Column("samples_us", Words, nullable=False),
    Column("source", Words, nullable=False),
    Column("run_id", Words, nullable=False),
    Column("race", Words),
    Column("worker", Words, nullable=False),
    Column("device_name", Words, nullable=False),
    Column("driver", Words),
    Column("cublas_version", Words),
    Column("gpu_uuid", Words),
    Column("sm_clock_mhz", BigInteger),
    Column("power_w", Double),
    Column("temperature_c", BigInteger),
    Column("throttle_reasons", BigInteger),
    Column("measured_at", UtcTime, nullable=False),
    CheckConstraint(
        "state <> 'ok' OR (median_us IS NOT NULL AND median_us > 0)",
        name="ck_measurements_ok_has_time",
    ),
    Index("ix_measurements_problem", *PROBLEM),
)
Index(
    "ix_measurements_race",
    *(measurements.c[name] for name in PROBLEM),
    sqlite_where=measurements.c.race.is_not(None),
    postgresql_where=measurements.c.race.is_not(None),
)
Index(
    "ix_measurements_failures",
    measurements.c.device_key,
    measurements.c.kernel_hash,
    sqlite_where=measurements.c.state != "ok",
    postgresql_where=measurements.c.state != "ok",
)

shape_outcomes = Table(
    "shape_outcomes",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("digest", Words, nullable=False, unique=True),
    *_problem_columns(),
    Column("device_name", Words, nullable=False),
    Column("kernel_hash", Words, nullable=False),
    Column("nvrtc_version", Words, nullable=False),
    Column("state", Words, nullable=False),
    Column("detail", Words, nullable=False),
    Column("counts", Words, nullable=False),
    Column("trials", BigInteger, nullable=False),
    Column("compiled", BigInteger, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("verify_seconds", Double, nullable=False),
    Column("measure_seconds", Double, nullable=False),
    Column("source", Words, nullable=False),
    Column("run_id", Words, nullable=False),
    Column("finished_at", UtcTime, nullable=False),
    Index("ix_shape_outcomes_problem", *PROBLEM),
)

devices = Table(
    "devices",
    metadata,
    Column("key", Words, primary_key=True),
    Column("name", Words, nullable=False),
    Column("sms", BigInteger, nullable=False),
    Column("first_seen_at", UtcTime, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("id", Words, primary_key=True),
    Column("command", Words, nullable=False),
    Column("version", Words, nullable=False),
    Column("source", Words, nullable=False),
    Column("device_key", Words, nullable=False),
    Column("device_name", Words, nullable=False),
    Column("gpu_uuid", Words, nullable=False),
    Column("driver", Words, nullable=False),
    Column("cublas_version", Words, nullable=False),
    Column("started_at", UtcTime, nullable=False),
    Column("finished_at", UtcTime),
    Column("exit_code", BigInteger),
)

leases = Table(
    "leases",
    metadata,
    # One tuning at a time of a problem with a kernel; a replay does not keep a real card off.
    *_problem_columns(),
    Column("kernel_hash", Words, nullable=False),
    Column("nvrtc_version", Words, nullable=False),
    Column("source", Words, nullable=False),
    Column("owner", Words, nullable=False),
    # By the clock of the database.
    Column("acquired_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime, nullable=False),
    PrimaryKeyConstraint(*PROBLEM, "kernel_hash", "nvrtc_version", "source"),
)

misses = Table(
    "misses",
    metadata,
    # Look-ups that had no answer of their own, by the tier that served them.
    *_problem_columns(),
    Column("tier", Words, nullable=False),
    Column("count", BigInteger, nullable=False),
    # Summed over these look-ups: the share of a product's time that the answer is expected to lose.
    Column("regret", Double, nullable=False),
    Column("first_at", UtcTime, nullable=False),
    Column("last_at", UtcTime, nullable=False),
    PrimaryKeyConstraint(*PROBLEM, "tier"),
)

jobs = Table(
    "jobs",
    metadata,
    # Problems that workers are to tune; the jobs of one request share a run_id.
    Column("id", RowId, primary_key=True),
    Column("run_id", Words, nullable=False),
    Column("origin", Words, nullable=False),
    *_problem_columns(),
    Column("state", Words, nullable=False),
    Column("detail", Words, nullable=False),
    # Who has it, or had it last: an owner of a lease, whose end says whether it still works on it.
    Column("owner", Words),
    Column("worker", Words),
    Column("claims", BigInteger, nullable=False),
    # By the clock of the database.
    Column("asked_at", UtcTime, nullable=False),
    Column("started_at", UtcTime),
    Column("ended_at", UtcTime),
    Index("ix_jobs_run", "run_id"),
)
Index(
    "ix_jobs_unended",
    jobs.c.device_key,
    jobs.c.id,
    sqlite_where=jobs.c.ended_at.is_(None),
    postgresql_where=jobs.c.ended_at.is_(None),
)

generations = Table(
    "generations",
    metadata,
    # Every best answer of a device at one moment; the id is the hash of the uncompressed body.
    Column("id", Words, primary_key=True),
    Column("device_key", Words, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("created_by", Words, nullable=False),
    Column("parent", Words),
    Column("note", Words, nullable=False),
    Column("entries", BigInteger, nullable=False),
    # Canonical JSON in UTF-8, compressed with zlib.
    Column("body", LargeBinary, nullable=False),
    Index("ix_generations_device", "device_key", "created_at"),
)

publications = Table(
    "publications",
    metadata,
    # The latest row of a device names the generation that is served; rolling back adds a row.
    Column("id", RowId, primary_key=True),
    Column("device_key", Words, nullable=False),
    Column("generation_id", Words, nullable=False),
    Column("published_at", UtcTime, nullable=False),
    Column("published_by", Words, nullable=False),
    Column("reason", Words, nullable=False),
    Index("ix_publications_device", "device_key", "id"),
)

APPEND_ONLY = (measurements, shape_outcomes)
