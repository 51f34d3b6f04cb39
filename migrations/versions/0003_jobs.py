"""Jobs for workers, and what a missed look-up is expected to cost.

Nothing counted misses or queued jobs under 0002. A miss that is there all the same, put in by hand,
is taken to have cost nothing, so that it comes last.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("misses", sa.Column("regret", sa.Double(), nullable=False, server_default="0"))
    op.create_table(
        "jobs",
        sa.Column("id", ROW_ID, primary_key=True),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        *_problem_columns(),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text()),
        sa.Column("worker", sa.Text()),
        sa.Column("claims", sa.BigInteger(), nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
    )
    op.create_index("ix_jobs_run", "jobs", ["run_id"])
    op.create_index(
        "ix_jobs_unended",
        "jobs",
        ["device_key", "id"],
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )


def downgrade() -> None:
    op.drop_table("jobs")
    op.drop_column("misses", "regret")


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
