"""The version of the schema, and the migrations to the newest one.

A migration is one transaction on both databases. Two processes that migrate at once exclude each
other; the second one finds nothing to do.
"""

# ruff: noqa: PLC0415  # late imports: Alembic loads slowly, and only a migration needs it

from __future__ import annotations

import warnings
from enum import StrEnum

from sqlalchemy import Connection, Engine, inspect, text

from cellwall.core.errors import StorageError
from cellwall.storage import failures
from cellwall.storage.engine import (
    APPLICATION_ID,
    Database,
    StorageSettings,
    blocking_engine,
    enable_wal,
    reading,
)

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008")
"""All known versions of the schema, the oldest first; a test compares them with the migrations."""
HEAD = REVISIONS[-1]
_LOCK = APPLICATION_ID


class SchemaState(StrEnum):
    """How the schema of a database relates to this version of Cellwall."""

    EMPTY = "empty"
    OLD = "old"
    CURRENT = "current"
    UNKNOWN = "unknown"
    """Newer, or not of Cellwall."""

    def refusal(self) -> StorageError | None:
        """The error for a program that needs the current schema."""
        match self:
            case SchemaState.EMPTY:
                return failures.no_schema()
            case SchemaState.OLD:
                return failures.old_schema()
            case SchemaState.UNKNOWN:
                return failures.new_schema()
            case SchemaState.CURRENT:
                return None


def read_revision(connection: Connection) -> str | None:
    """The version of the schema; None if the database has none, "" if it is not of Cellwall."""
    tables = inspect(connection).get_table_names()
    if "alembic_version" not in tables:
        return "" if tables else None
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalars().all()
    if not found and len(tables) == 1:
        return None
    return found[0] if len(found) == 1 else ""


def schema_state(revision: str | None) -> SchemaState:
    """Compare a version of the schema with the newest one."""
    if revision is None:
        return SchemaState.EMPTY
    if revision == HEAD:
        return SchemaState.CURRENT
    return SchemaState.OLD if revision in REVISIONS else SchemaState.UNKNOWN


async def require_current(database: Database) -> None:
    """Raise `StorageError` unless the database has the newest schema."""
    async with database.read() as connection:
        refusal = schema_state(await connection.run_sync(read_revision)).refusal()
    if refusal is not None:
        raise refusal


def state_of(settings: StorageSettings) -> SchemaState:
    """How the schema of this database relates to this version; creates nothing."""
    if settings.is_missing:
        return SchemaState.EMPTY
    with failures.mapped_errors():
        engine = blocking_engine(settings)
        try:
            with reading(engine) as connection:
                return schema_state(read_revision(connection))
        finally:
            engine.dispose()


def migrate(settings: StorageSettings) -> tuple[str | None, str]:
    """Bring the schema up to date; returns the versions before and after."""
    with failures.mapped_errors():
        engine = blocking_engine(settings)
        try:
            if settings.is_sqlite:
                enable_wal(settings.path, timeout_s=settings.timeout_s)
            return migrate_engine(engine)
        finally:
            engine.dispose()


def migrate_engine(engine: Engine, *, to: str = HEAD) -> tuple[str | None, str]:
    """`migrate` for an open engine."""
    with engine.connect() as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
        before = read_revision(connection)
        if schema_state(before) is SchemaState.UNKNOWN:
            raise failures.new_schema()
        if before != to:
            _upgrade(connection, to)
            if connection.dialect.name == "sqlite":
                connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
    return before, to


def _upgrade(connection: Connection, to: str) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "cellwall.storage:migrations")
    config.attributes["connection"] = connection
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Alembic's own configuration
        command.upgrade(config, to)
