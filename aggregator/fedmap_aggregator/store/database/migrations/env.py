"""Alembic's environment: runs the revisions on the connection, and in the transaction, that it is given.

It opens no database and reads no configuration file.
"""

from __future__ import annotations

from alembic import context

from fedmap_aggregator.store.database.schema import CONNECTION
from fedmap_aggregator.store.database.tables import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes[CONNECTION],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
