"""Snapshots of workspaces, as their owners and the administrator see them (FS-9).

  delete: (1) the role permits it, and it is the caller's own; (2) no hold is in force; (3) write
          the intent; (4) remove the record, then the layers that nothing else names; (5) write
          the outcome.

Sandboxes that were made from a deleted snapshot keep its layers until they end.
"""

from __future__ import annotations

from contextlib import suppress

from cellwall.core.errors import CellwallError
from cellwall.core.snapshots import WorkspaceSnapshot
from cellwall.core.types import Json, Permission, Principal
from cellwall.runtime.app import App
from cellwall.runtime.judging import require
from cellwall.runtime.recording import recorded_files
from cellwall.runtime.session_data import no_hold
from cellwall.sandbox.workspace.store import WorkspaceStore


def list_snapshots(app: App, *, owner: str | None) -> tuple[WorkspaceSnapshot, ...]:
    """The snapshots of one owner, or of all, the newest first."""
    return tuple(each.describe() for each in app.store.snapshots.all(owner=owner))


def find_snapshot(app: App, snapshot_id: str, *, owner: str | None) -> WorkspaceSnapshot:
    """One of them; raises the same error for another owner's and for none."""
    return app.store.snapshots.find(snapshot_id, owner=owner).describe()


def delete_snapshot(app: App, snapshot_id: str, *, principal: Principal, owner: str | None) -> None:
    """Delete a snapshot, now."""
    require(app.settings, principal, Permission.FILES_WRITE)  # (1)
    snapshots = app.store.snapshots
    if owner is None and snapshots.has(snapshot_id):
        session = ""  # the administrator also deletes a damaged one, whose session is not known
        with suppress(CellwallError):
            session = snapshots.find(snapshot_id, owner=None).session
    else:
        session = snapshots.find(snapshot_id, owner=owner).session
    about: dict[str, Json] = {"snapshot": snapshot_id, "delete": True}
    with (
        no_hold(app.store.home),  # (2)
        recorded_files(app.audit, session, principal, about) as outcome,  # (3), (5)
    ):
        snapshots.remove(snapshot_id)  # (4)
        app.store.collect_layers()
        outcome["status"] = "deleted"


def delete_of_session(app: App, session_id: str) -> None:
    """All snapshots of a session that is being erased."""
    for each in app.store.snapshots.all(owner=None):
        if each.session == session_id:
            app.store.snapshots.remove(each.id)
    app.store.collect_layers()


def known_ids(home: str) -> list[str]:
    """The ids of all snapshots in a state folder, the newest first."""
    return [each.id for each in WorkspaceStore(home).snapshots.all(owner=None)]


def forget(home: str, snapshot_id: str) -> None:
    """Remove the record of a snapshot whose layers others use."""
    store = WorkspaceStore(home)
    store.snapshots.remove(snapshot_id)
    store.collect_layers()
