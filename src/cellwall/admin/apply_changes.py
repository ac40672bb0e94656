"""Shows the changes of a copy-on-write run and applies them to the host's directory (FS-2).

  (1) find the workspace; only copy-on-write has pending changes;
  (2) lock it against a live run and a second apply;
  (3) write the intent; a failed write refuses (AUD-1);
  (4) label the directory with the untrusted content of the session (POL-9), then apply each change
      that no check refuses;
  (5) write the outcome.

Discarding has the same steps and removes the stored layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from cellwall.core.errors import AuditFailed, SandboxFailed, VaultError, WorkspaceError
from cellwall.core.types import Json, Permission, Principal, WorkspaceMode
from cellwall.runtime.app import App
from cellwall.runtime.judging import require
from cellwall.runtime.recording import recorded_files
from cellwall.runtime.session_data import no_hold
from cellwall.sandbox.files.file_tree import FileTree
from cellwall.sandbox.protection import protected_paths
from cellwall.sandbox.protection.indirect_paths import instruction_targets
from cellwall.sandbox.workspace import apply, change_diff, changes
from cellwall.sandbox.workspace.apply import ApplyReport
from cellwall.sandbox.workspace.changes import Change
from cellwall.sandbox.workspace.store import StoredWorkspace

__all__ = [
    "ApplyReport",
    "Change",
    "PendingChanges",
    "apply_to_host",
    "describe_changes",
    "discard",
    "pending",
    "preview",
    "target_directory",
    "unified_diff",
]

_MAX_NAMED = 1000  # paths in one record, which always holds their number


@dataclass(frozen=True, slots=True)
class PendingChanges:
    """A copy-on-write workspace whose changes were neither applied nor discarded."""

    id: str
    directory: str
    made_s: float
    """Start of its run or session, in seconds since the epoch."""
    count: int | None
    """Number of changes; None where they cannot be read."""
    is_busy: bool
    """Its run or session still lives."""
    problem: str = ""
    """Why the changes cannot be read, such as a missing directory."""


def pending(app: App) -> tuple[PendingChanges, ...]:
    """All pending changes, the oldest first."""
    return tuple(_find_pending(app))


def _find_pending(app: App) -> Iterator[PendingChanges]:
    live = app.ledger.live()
    for session in app.store.sessions():
        if session.request.mode is not WorkspaceMode.COPY_ON_WRITE:
            continue
        count: int | None = None
        problem = ""
        try:
            count = len(describe_changes(app, session.id))
        except (WorkspaceError, VaultError) as error:
            problem = error.message
        if count != 0:
            yield PendingChanges(
                id=session.id,
                directory=session.request.directory or "",
                made_s=session.made_ns / 1e9,
                count=count,
                is_busy=session.id in live,
                problem=problem,
            )


def discard(app: App, workspace_id: str, *, principal: Principal) -> None:
    """Remove pending changes; the host's directory stays unchanged."""
    require(app.settings, principal, Permission.FILES_WRITE)
    session = _copy_on_write(app, workspace_id)
    intent: dict[str, Json] = {"directory": session.request.directory, "discard": True}
    with (
        no_hold(app.store.home),
        _lock_session(app, session),
        recorded_files(app.audit, session.id, principal, intent) as outcome,
    ):
        app.store.remove(session.id)
        outcome["status"] = "discarded"


def target_directory(app: App, workspace_id: str) -> str:
    """The host directory to which the changes belong."""
    return _copy_on_write(app, workspace_id).request.directory or ""


def describe_changes(app: App, workspace_id: str) -> tuple[Change, ...]:
    """Every path that the run added, changed or removed; programs and instructions first."""
    session = _copy_on_write(app, workspace_id)
    with _open_layers(app, session) as (lower, upper):
        return _describe(app, lower, upper)


def _describe(app: App, lower: FileTree, upper: FileTree) -> tuple[Change, ...]:
    most = app.settings.workspace.max_walk_entries
    found = changes.changes(lower, upper, max_entries=most)
    return changes.rank(found, _instruction_paths(app, lower))


def unified_diff(app: App, workspace_id: str, *, max_bytes: int) -> str:
    """The changes as `git diff` writes them, cut at `max_bytes`."""
    session = _copy_on_write(app, workspace_id)
    with _open_layers(app, session) as (lower, upper):
        return change_diff.unified_diff(
            lower, upper, max_bytes=max_bytes, instruction_paths=_instruction_paths(app, lower)
        )


def preview(app: App, workspace_id: str, *, force: bool, instructions: bool) -> ApplyReport:
    """The report of `apply_to_host`, without writing."""
    session = _copy_on_write(app, workspace_id)
    with _open_layers(app, session) as (lower, upper):
        options = {"force": force, "instructions": instructions, "dry_run": True}
        return _apply(app, session, lower, upper, **options)


def apply_to_host(
    app: App,
    workspace_id: str,
    *,
    force: bool,
    instructions: bool,
    principal: Principal,
    confirm: Callable[[tuple[Change, ...]], None] | None = None,
) -> ApplyReport:
    """Write the changes to the host's directory. The report names refused ones; others proceed.

    `confirm` shows the changes to a person, and raises if the person declines.
    """
    require(app.settings, principal, Permission.FILES_WRITE)
    session = _copy_on_write(app, workspace_id)  # (1)
    with _open_layers(app, session) as (lower, upper), _lock_session(app, session):  # (2)
        if confirm is not None:
            # Locked before they are shown: a live run could change them before the answer.
            confirm(_describe(app, lower, upper))
        intent: dict[str, Json] = {"directory": session.request.directory, "force": force}
        if instructions:
            intent["instructions"] = True
        options = {"force": force, "instructions": instructions, "dry_run": False}
        report: ApplyReport | None = None
        try:
            with recorded_files(app.audit, session.id, principal, intent) as outcome:  # (3) (5)
                app.runtime.labels.apply_changes(session.id, session.request.directory or "")
                report = _apply(app, session, lower, upper, **options)  # (4)
                outcome.update(_summary(report))
        except AuditFailed as error:
            if report is None:  # the intent was not written
                raise
            raise AuditFailed(
                f"{len(report.applied)} changes were applied, but not logged: {error.message}",
                hint=error.hint,
                code=error.code,
                detail=error.detail,
            ) from error
    return report


def _apply(
    app: App, session: StoredWorkspace, lower: FileTree, upper: FileTree, **options: bool
) -> ApplyReport:
    return apply.apply(
        lower,
        upper,
        app.protection,
        started_ns=session.made_ns,
        blocked_extensions=app.settings.workspace.blocked_extensions,
        max_entries=app.settings.workspace.max_walk_entries,
        **options,
    )


def _instruction_paths(app: App, lower: FileTree) -> frozenset[str]:
    most = app.settings.workspace.max_walk_entries
    return instruction_targets(lower, protected_paths.scan(lower, app.protection, max_entries=most))


def _copy_on_write(app: App, workspace_id: str) -> StoredWorkspace:
    session = app.store.session(workspace_id)
    if session.request.mode is not WorkspaceMode.COPY_ON_WRITE:
        raise WorkspaceError(
            f"{workspace_id} is not a copy-on-write workspace, so it has no pending changes",
            hint="Give the directory as DIR:cow to review changes before they are applied.",
            code="CW-WORKSPACE-NOT-COW",
        )
    return session


@contextmanager
def _open_layers(app: App, session: StoredWorkspace) -> Iterator[tuple[FileTree, FileTree]]:
    descriptor, _ = app.store.open_directory(session)
    with (
        FileTree(descriptor) as lower,
        app.store.open_upper(session) as path,
        FileTree.open(path) as upper,
    ):
        yield lower, upper


@contextmanager
def _lock_session(app: App, session: StoredWorkspace) -> Iterator[None]:
    """Take the ledger's entry for the session; it has one per live run and allows no second."""
    with ExitStack() as stack:
        try:
            stack.enter_context(app.ledger.open(session.id))
        except SandboxFailed as error:
            if not isinstance(error.__cause__, FileExistsError):
                raise
            raise WorkspaceError(
                f"{session.id} is still in use",
                hint="Wait until its run or session has ended, then try again.",
                code="CW-WORKSPACE-BUSY",
            ) from None
        yield


def _summary(report: ApplyReport) -> dict[str, Json]:
    applied = [f"{change.kind} {change.path}" for change in report.applied[:_MAX_NAMED]]
    refused = [f"{path}: {reason}" for path, reason in report.refused[:_MAX_NAMED]]
    return {
        "status": "ok" if not report.refused else "partly",
        "applied_count": len(report.applied),
        "refused_count": len(report.refused),
        "applied": applied,
        "refused": refused,
    }
