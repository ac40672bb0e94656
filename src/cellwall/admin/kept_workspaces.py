"""Private workspaces that their owners keep after a session (FS-5).

  keep:    (1) the owner has room for it; (2) mark the workspace, flushed; the end of the session
           then encrypts it, also if the process is killed in between.
  discard: (1) no hold is in force; (2) write the intent; (3) destroy the key, flushed, and remove
           the archive; (4) write the outcome.

A kept workspace is an archive that never changes. A new session gets a copy of its files.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cellwall.core.errors import LimitExceeded, WorkspaceError
from cellwall.core.types import Permission, Principal, WorkspaceMode
from cellwall.runtime.app import App
from cellwall.runtime.judging import require
from cellwall.runtime.recording import recorded_files
from cellwall.runtime.session_data import no_hold
from cellwall.sandbox.workspace.store import StoredWorkspace

_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class KeptWorkspace:
    """An archive of the files of an ended session."""

    id: str
    keeper: str
    size_bytes: int
    kept_s: float
    expires_s: float
    """Retention by size, or of keys, may remove it before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepBounds:
    """How much one owner may keep."""

    max_count: int
    max_bytes: int


def find_kept(app: App, session_ids: Iterable[str]) -> dict[str, KeptWorkspace]:
    """Those of these sessions whose files are kept."""
    found = (app.store.find_kept(each) for each in session_ids)
    return {each[0].id: _describe(app, *each) for each in found if each is not None}


def kept_by(app: App, keeper: str) -> tuple[KeptWorkspace, ...]:
    """All that one owner keeps, by id."""
    kept = [_describe(app, *each) for each in app.store.kept() if each[0].keeper == keeper]
    return tuple(sorted(kept, key=lambda each: each.id))


def keep(app: App, session_id: str, *, keeper: str, bounds: KeepBounds) -> None:
    """Mark the workspace of a live session; raises `LimitExceeded` if its owner has no room. Calls
    for one owner must not overlap."""
    stored = app.store.session(session_id)
    if stored.request.mode is not WorkspaceMode.PRIVATE:
        raise WorkspaceError(
            "this session works on a directory of the host",
            hint="Only a private workspace can be kept.",
        )
    kept = kept_by(app, keeper)
    used_bytes = sum(each.size_bytes for each in kept) + app.store.usage(stored)[0]
    if len(kept) >= bounds.max_count or used_bytes > bounds.max_bytes:
        raise LimitExceeded(
            f"no more than {bounds.max_count} workspaces with {bounds.max_bytes} bytes are kept "
            "for one user",
            hint="Delete kept sessions: GET /v1/sessions?state=kept lists them.",
            code="CW-TOO-MANY-KEPT",
        )
    app.store.keep(session_id, keeper=keeper)


def require_sealed(app: App, session_id: str) -> KeptWorkspace:
    """After the end of a session that was to be kept."""
    found = app.store.find_kept(session_id)
    if found is None:
        raise WorkspaceError(
            "the workspace was not encrypted yet",
            hint="The disk may be full. Encrypting is tried again within an hour; "
            "delete the session with erase=true to remove its files now.",
            code="CW-WORKSPACE-UNSEALED",
        )
    return _describe(app, *found)


def discard(app: App, session_id: str, *, principal: Principal) -> None:
    """Destroy the key of a kept workspace and remove the archive; records of the session stay."""
    require(app.settings, principal, Permission.FILES_WRITE)
    with (
        no_hold(app.store.home),  # (1)
        app.ledger.hold_ended(session_id),
        recorded_files(app.audit, session_id, principal, {"discard": True}) as outcome,  # (2), (4)
    ):
        app.store.remove(session_id)  # (3)
        outcome["status"] = "discarded"


def _describe(app: App, stored: StoredWorkspace, size_bytes: int) -> KeptWorkspace:
    kept_s = stored.kept_ns / 1e9
    expires_s = kept_s + app.settings.workspace.keep_sessions_days * _DAY_S
    return KeptWorkspace(stored.id, stored.keeper, size_bytes, kept_s, expires_s)
