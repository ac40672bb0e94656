"""Alembic loads this file for each run; `storage.schema` opens and commits the transaction."""

from __future__ import annotations

from alembic import context

from cellwall.storage.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    render_as_batch=True,  # SQLite alters a table by making a new one
)
context.run_migrations()
