"""Leases, misses, generations and publications; what was measured before 0002 stays as it is.

Nothing was leased, missed or published under 0001, so the new tables start empty.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
PROBLEM = ["device_key", "m", "n", "k", "sms", "dtype", "layout", "d", "epilogue"]
IMMUTABLE = ["generations", "publications"]


def upgrade() -> None:
    op.create_table(
        "leases",
        *_problem_columns(),
        sa.Column("kernel_hash", sa.Text(), nullable=False),
        sa.Column("nvrtc_version", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("acquired_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint(*PROBLEM, "kernel_hash", "nvrtc_version", "source"),
    )
    op.create_table(
        "misses",
        *_problem_columns(),
        sa.Column("tier", sa.Text(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("first_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint(*PROBLEM, "tier"),
    )
    op.create_table(
        "generations",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("device_key", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("parent", sa.Text()),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
    )
    op.create_index("ix_generations_device", "generations", ["device_key", "created_at"])
    op.create_table(
        "publications",
        sa.Column("id", ROW_ID, primary_key=True),
        sa.Column("device_key", sa.Text(), nullable=False),
        sa.Column("generation_id", sa.Text(), nullable=False),
        sa.Column("published_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("published_by", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
    )
    op.create_index("ix_publications_device", "publications", ["device_key", "id"])
    op.create_index(
        "ix_measurements_failures",
        "measurements",
        ["device_key", "kernel_hash"],
        sqlite_where=sa.text("state != 'ok'"),
        postgresql_where=sa.text("state != 'ok'"),
    )
    _guard_generations()


def downgrade() -> None:
    op.drop_index("ix_measurements_failures", "measurements")
    for table in ("publications", "generations", "misses", "leases"):
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION tuner_refuse_update()")


def _problem_columns() -> list["sa.Column[object]"]:
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


def _guard_generations() -> None:
    """What was published never changes; old generations may be removed."""
    if op.get_bind().dialect.name == "sqlite":
        for table in IMMUTABLE:
            op.execute(
                f"CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} never change'); END"
            )
        return
    op.execute(
        "CREATE FUNCTION tuner_refuse_update() RETURNS trigger LANGUAGE plpgsql AS $$ "
        "BEGIN RAISE EXCEPTION '% never change', TG_TABLE_NAME; END $$"
    )
    for table in IMMUTABLE:
        op.execute(
            f"CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION tuner_refuse_update()"
        )
