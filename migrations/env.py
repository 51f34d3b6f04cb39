"""Alembic's entry. The caller opens the connection and its transaction, and gives both back.

Optuna keeps its own tables and its own `alembic_version`; a version table of another name, and
looking at no table but ours, let both live in one database whichever came first.
"""

from alembic import context

from tuner.store.schema import VERSION_TABLE, is_ours
from tuner.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    include_name=is_ours,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
