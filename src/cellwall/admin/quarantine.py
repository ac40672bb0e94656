"""A person inspects, restores or deletes quarantined files; logged before and after."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from cellwall.core.errors import CellwallError
from cellwall.core.types import Json, Permission, Principal
from cellwall.runtime.app import App
from cellwall.runtime.judging import require
from cellwall.runtime.recording import recorded_files
from cellwall.sandbox.protection import quarantine
from cellwall.sandbox.protection.quarantine import QuarantineEntry

__all__ = ["QuarantineEntry", "delete", "find", "places", "restore", "waiting"]


def places(app: App) -> tuple[str, str]:
    """The folders of the quarantines."""
    home = app.store.home
    return os.path.join(home, "workspaces", "*", "quarantine"), os.path.join(home, "quarantine")


def waiting(app: App) -> tuple[QuarantineEntry, ...]:
    """All quarantined entries, the oldest first."""
    return quarantine.entries(app.store.home)


def find(app: App, entry_id: str) -> QuarantineEntry:
    """One entry; raises for an unknown id."""
    return quarantine.find(app.store.home, entry_id)


def restore(app: App, entry: QuarantineEntry, *, principal: Principal) -> None:
    """Move an entry back to its original place."""
    _do(app, entry, principal, step="restore", act=quarantine.restore)


def delete(app: App, entry: QuarantineEntry, *, principal: Principal) -> None:
    """Delete an entry for good; refused while its sandbox lives: a process may have it open."""

    def act(entry: QuarantineEntry) -> None:
        with app.ledger.hold_ended(entry.run_id):
            quarantine.delete(entry)

    _do(app, entry, principal, step="delete", act=act)


def _do(
    app: App,
    entry: QuarantineEntry,
    principal: Principal,
    *,
    step: str,
    act: Callable[[QuarantineEntry], None],
) -> None:
    require(app.settings, principal, Permission.FILES_WRITE)
    intent: dict[str, Json] = {
        "quarantine": step,
        "directory": entry.directory,
        "path": entry.path,
        "kept_as": entry.kept_as,
    }
    with recorded_files(app.audit, entry.run_id, principal, intent) as outcome:
        act(entry)
        outcome["status"] = f"quarantine {step}d"
    _retire(app, entry.run_id)


def _retire(app: App, run_id: str) -> None:
    """Remove the run's folder with its last entry, unless the run lives."""
    with suppress(CellwallError, OSError):
        session = app.store.session(run_id)
        with app.ledger.open(run_id):  # refused while the run lives
            app.store.retire(session)
