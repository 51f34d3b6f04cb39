"""Measurements, outcomes of shapes, devices and runs: the first database."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
PROBLEM = ["device_key", "m", "n", "k", "sms", "dtype", "layout", "d", "epilogue"]
APPEND_ONLY = ["measurements", "shape_outcomes"]


def upgrade() -> None:
    op.create_table(
        "measurements",
        sa.Column("id", ROW_ID, primary_key=True),
        sa.Column("digest", sa.Text(), nullable=False, unique=True),
        *_problem_columns(),
        sa.Column("protocol", sa.Text(), nullable=False),
        sa.Column("contender", sa.Text(), nullable=False),
        sa.Column("algorithm", sa.Text()),
        sa.Column("config", sa.Text()),
        sa.Column("config_hash", sa.Text(), nullable=False),
        sa.Column("kernel_hash", sa.Text(), nullable=False),
        sa.Column("nvrtc_version", sa.Text(), nullable=False),
        sa.Column("numerics", sa.Text(), nullable=False),
        sa.Column("median_us", sa.Double()),
        sa.Column("sample_count", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("samples_us", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("race", sa.Text()),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("device_name", sa.Text(), nullable=False),
        sa.Column("driver", sa.Text()),
        sa.Column("cublas_version", sa.Text()),
        sa.Column("gpu_uuid", sa.Text()),
        sa.Column("sm_clock_mhz", sa.BigInteger()),
        sa.Column("power_w", sa.Double()),
        sa.Column("temperature_c", sa.BigInteger()),
        sa.Column("throttle_reasons", sa.BigInteger()),
        sa.Column("measured_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "state <> 'ok' OR (median_us IS NOT NULL AND median_us > 0)",
            name="ck_measurements_ok_has_time",
        ),
    )
    op.create_index("ix_measurements_problem", "measurements", PROBLEM)
    raced = sa.text("race IS NOT NULL")
    op.create_index(
        "ix_measurements_race",
        "measurements",
        PROBLEM,
        sqlite_where=raced,
        postgresql_where=raced,
    )
    op.create_table(
        "shape_outcomes",
        sa.Column("id", ROW_ID, primary_key=True),
        sa.Column("digest", sa.Text(), nullable=False, unique=True),
        *_problem_columns(),
        sa.Column("device_name", sa.Text(), nullable=False),
        sa.Column("kernel_hash", sa.Text(), nullable=False),
        sa.Column("nvrtc_version", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("counts", sa.Text(), nullable=False),
        sa.Column("trials", sa.BigInteger(), nullable=False),
        sa.Column("compiled", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("verify_seconds", sa.Double(), nullable=False),
        sa.Column("measure_seconds", sa.Double(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("ix_shape_outcomes_problem", "shape_outcomes", PROBLEM)
    op.create_table(
        "devices",
        sa.Column("key", sa.Text(), primary_key=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sms", sa.BigInteger(), nullable=False),
        sa.Column("first_seen_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("command", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("device_key", sa.Text(), nullable=False),
        sa.Column("device_name", sa.Text(), nullable=False),
        sa.Column("gpu_uuid", sa.Text(), nullable=False),
        sa.Column("driver", sa.Text(), nullable=False),
        sa.Column("cublas_version", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.Column("exit_code", sa.BigInteger()),
    )
    _guard_history()


def downgrade() -> None:
    for table in ("runs", "devices", "shape_outcomes", "measurements"):
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION tuner_refuse_change()")


def _problem_columns() -> list["sa.Column[object]"]:
    """Extents reach 2^31 - 1, which a 32-bit column holds only just; their products do not."""
    return [
        sa.Column("device_key", sa.Text(), nullable=False),
        sa.Column("m", sa.BigInteger(), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.Column("k", sa.BigInteger(), nullable=False),
        sa.Column("dtype", sa.Text(), nullable=False),
        sa.Column("layout", sa.Text(), nullable=False),
        sa.Column("d", sa.Text(), nullable=False),
        sa.Column("epilogue", sa.Text(), nullable=False),
        sa.Column("sms", sa.BigInteger(), nullable=False),
    ]


def _guard_history() -> None:
    """The database itself refuses to rewrite what was measured."""
    if op.get_bind().dialect.name == "sqlite":
        for table in APPEND_ONLY:
            for change in ("UPDATE", "DELETE"):
                op.execute(
                    f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table} "
                    f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
                )
        return
    op.execute(
        "CREATE FUNCTION tuner_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$ "
        "BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
    )
    for table in APPEND_ONLY:
        op.execute(
            f"CREATE TRIGGER {table}_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION tuner_refuse_change()"
        )
