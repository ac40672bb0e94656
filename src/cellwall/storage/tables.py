"""All tables of the database."""

from __future__ import annotations

from cellwall.storage.fleet_models import HostRow

# `fleet_models` imports the other file of tables, and all of them belong to one base.
METADATA = HostRow.metadata
TABLES = tuple(METADATA.sorted_tables)
"""A table stands behind those that it refers to."""
