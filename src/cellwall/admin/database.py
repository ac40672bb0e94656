"""The service's database, for the person who runs it: migrate, check, back up, restore.

Each change is an event before and after it; the database itself holds no audit records, so a
restore cannot remove any.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from cellwall.config.load import load_settings
from cellwall.config.models import Settings
from cellwall.core.outcomes import EventKind
from cellwall.core.types import Json, Permission, Principal
from cellwall.runtime.agent_processes import refuse_agents
from cellwall.runtime.home import state_home
from cellwall.runtime.judging import require
from cellwall.runtime.recording import AdminChange
from cellwall.storage import backup as backups
from cellwall.storage import inspection, schema
from cellwall.storage.engine import StorageSettings
from cellwall.storage.inspection import DatabaseReport

__all__ = ["DatabaseAdmin", "DatabaseReport", "storage_settings"]


def storage_settings(home: str, settings: Settings) -> StorageSettings:
    """The database as configured."""
    storage = settings.storage
    return StorageSettings(
        home=home,
        url=storage.url,
        password_file=storage.password_file,
        pool_size=storage.pool_size,
        timeout_s=storage.timeout_s,
    )


class DatabaseAdmin:
    """The database of one state folder."""

    def __init__(self, home: str, settings: Settings) -> None:
        self._home = home
        self._settings = settings
        self._storage = storage_settings(home, settings)

    @classmethod
    def configured(cls, *, config: str | None = None, profile: str | None = None) -> Self:
        """The database of the configuration and the environment."""
        settings = load_settings(file=config, profile=profile, environ=os.environ)
        return cls(state_home(os.environ), settings)

    @property
    def kind(self) -> str:
        return "sqlite" if self._storage.is_sqlite else "postgresql"

    def migrate(self, principal: Principal) -> tuple[str | None, str]:
        """Bring the schema up to date; returns the versions before and after."""
        with self._changing("migrate", principal) as outcome:
            before, after = schema.migrate(self._storage)
            outcome |= {"from": before, "to": after}
        return before, after

    def prepare(self, principal: Principal) -> None:
        """Create the database, or migrate a SQLite file; nothing is changed or recorded where the
        schema is current. A PostgreSQL database with an older schema is migrated by a person: other
        machines may use it."""
        state = schema.state_of(self._storage)
        if state is schema.SchemaState.CURRENT:
            return
        is_ours = state is schema.SchemaState.OLD and self._storage.is_sqlite
        refusal = state.refusal()
        if refusal is not None and state is not schema.SchemaState.EMPTY and not is_ours:
            raise refusal
        self.migrate(principal)

    def check(self, principal: Principal) -> DatabaseReport:
        """Schema, integrity and row counts; changes nothing."""
        require(self._settings, principal, Permission.CONFIG_WRITE)
        return inspection.check(self._storage)

    def backup(self, target: str, principal: Principal) -> str:
        """Write a consistent copy to a new file; returns the version of its schema."""
        with self._changing("backup", principal, file=os.path.abspath(target)):
            return backups.backup(self._storage, target)

    def restore(self, source: str, principal: Principal) -> DatabaseReport:
        """Replace all rows by those of a backup, and end every token."""
        refuse_agents("a restore of the database")  # a forged one brings its own owner
        with self._changing("restore", principal, file=os.path.abspath(source)) as outcome:
            report = backups.restore(self._storage, source)
            outcome["rows"] = dict(report.rows)
        return report

    @contextmanager
    def _changing(
        self, what: str, principal: Principal, **known: Json
    ) -> Iterator[dict[str, Json]]:
        require(self._settings, principal, Permission.CONFIG_WRITE)
        change = AdminChange(EventKind.DATABASE, what, self.kind, dict(known))
        with change.recorded_in(self._home, self._settings, principal) as outcome:
            yield outcome
