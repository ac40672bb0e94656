"""The lease that fits a prepared workspace."""

from __future__ import annotations

import time

from cellwall.core.protected_names import Protection
from cellwall.core.types import Action, WorkspaceMode
from cellwall.sandbox.protection.post_run_check import COARSE_CLOCK, Baseline
from cellwall.sandbox.workspace.leases import (
    CopyOnWriteLease,
    LayeredLease,
    PlainLease,
    ReadWriteLease,
    WorkspaceSettings,
)
from cellwall.sandbox.workspace.prepare import PreparedWorkspace


def lease_of(
    prepared: PreparedWorkspace, action: Action, settings: WorkspaceSettings
) -> PlainLease:
    """For one action, or for the life of a session."""
    mount, session = prepared.mount, prepared.session
    if prepared.writable_tree is None or session is None:
        return PlainLease(mount, workspace_id=session.id if session else None)
    if session.layers:
        return LayeredLease(
            mount,
            workspace_id=session.id,
            tree=prepared.writable_tree,
            settings=settings,
            base=session.base,
        )
    if mount.mode is WorkspaceMode.COPY_ON_WRITE:
        return CopyOnWriteLease(
            mount, workspace_id=session.id, tree=prepared.writable_tree, settings=settings
        )
    # A private folder holds nothing of the user that needs protection.
    baseline = prepared.baseline
    nothing = Baseline(before=(), started_ns=time.clock_gettime_ns(COARSE_CLOCK))
    return ReadWriteLease(
        mount,
        workspace_id=session.id,
        tree=prepared.writable_tree,
        settings=settings,
        protection=settings.protection.with_paths(baseline.paths) if baseline else Protection(()),
        baseline=baseline or nothing,
        action=action,
        quarantine_dir=session.quarantine_path,
        earlier=prepared.earlier,
    )


def clear_if_checked(prepared: PreparedWorkspace, lease: PlainLease) -> None:
    """Remove the record of a check that is due, once the check was complete."""
    note = prepared.pending_check
    if note is not None and isinstance(lease, ReadWriteLease) and lease.is_checked:
        note.clear()
