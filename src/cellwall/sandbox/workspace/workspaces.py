"""Workspaces: the files that a run works on, leased to an action or kept for a session (FS-1)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace

import anyio

from cellwall.core.errors import BadInput, WorkspaceError
from cellwall.core.outcomes import Finding
from cellwall.core.types import (
    Action,
    WorkspaceMode,
    WorkspaceMount,
)
from cellwall.sandbox.files.merged_view import MergedViews
from cellwall.sandbox.files.root import Root
from cellwall.sandbox.protection import protected_paths
from cellwall.sandbox.protection.covers import (
    covers_for,
    intact_covers,
    is_covered,
    is_empty_path,
    lost_covers,
)
from cellwall.sandbox.protection.pending_checks import Baseline
from cellwall.sandbox.protection.protected_paths import Protection
from cellwall.sandbox.workspace.file_operations import FileOperations
from cellwall.sandbox.workspace.leases import (
    CopyOnWriteLease,
    PlainLease,
    ReadWriteLease,
    WorkspaceSettings,
)
from cellwall.sandbox.workspace.prepare import PreparedWorkspace, WorkspacePreparer
from cellwall.sandbox.workspace.store import COARSE_CLOCK, StoredWorkspace, WorkspaceStore


@dataclass(frozen=True, slots=True)
class _OpenWorkspace:
    """The workspace of a live session, with everything that it holds open."""

    prepared: PreparedWorkspace
    lease: PlainLease
    stack: ExitStack


@dataclass(slots=True)
class _SessionWorkspace:
    """A session's workspace under a lock of its own: a directory that is slow to scan, or locked by
    another program, must not delay the sandboxes of other directories."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    held: _OpenWorkspace | None = None
    is_ended: bool = False


class Workspaces:
    """Implements `WorkspacePort`."""

    def __init__(
        self, store: WorkspaceStore, settings: WorkspaceSettings, views: MergedViews
    ) -> None:
        self._views = views
        self._sessions: dict[str, _SessionWorkspace] = {}
        self._lock = threading.Lock()  # guards only that dictionary
        self._store = store
        self._settings = settings
        self._protection = settings.protection
        self._preparer = WorkspacePreparer(store, settings)
        self._files = FileOperations(store, settings, views, self._borrow_view)

    @asynccontextmanager
    async def lease(self, action: Action) -> AsyncIterator[PlainLease]:
        if action.session_id is not None:
            lease = await anyio.to_thread.run_sync(self._lease_for_session, action)
            lease.reserve()
            yield lease
        elif self._fits_memory(action):
            # A tmpfs: quick, bounded by the kernel, and gone with the cell.
            yield PlainLease(WorkspaceMount(mode=WorkspaceMode.PRIVATE))
        else:
            with ExitStack() as stack:
                lease = await anyio.to_thread.run_sync(self._lease_for_run, action, stack)
                lease.reserve()
                yield lease

    @staticmethod
    def _fits_memory(action: Action) -> bool:
        limits = action.limits
        private = action.workspace.mode is WorkspaceMode.PRIVATE
        return private and limits.disk_bytes <= limits.memory_bytes

    def _lease_for_run(self, action: Action, stack: ExitStack) -> PlainLease:
        prepared = self._preparer.prepare(action.workspace, None, action.id, stack)
        lease = self._lease_of(prepared, action)
        stack.callback(_clear_if_checked, prepared, lease)
        return lease

    def _lease_for_session(self, action: Action) -> PlainLease:
        """A session's workspace stays mounted in its live cell: it is prepared once, and held."""
        assert action.session_id is not None  # noqa: S101  # by the caller
        with self._locked(action.session_id) as own:
            is_open = own.held is not None
            held = self._hold(own, action.session_id, action)
            if is_open:
                self._refuse_uncovered(held.prepared)
        return held.lease

    @contextmanager
    def _locked(self, session_id: str) -> Iterator[_SessionWorkspace]:
        """Exclusive use of the workspace of a session that has not ended."""
        with self._lock:
            own = self._sessions.setdefault(session_id, _SessionWorkspace())
        with own.lock:
            if own.is_ended:
                raise BadInput(
                    "the sandbox was ended", hint="Create a new one.", code="CW-SANDBOX-ENDED"
                )
            yield own

    def _hold(self, own: _SessionWorkspace, session_id: str, action: Action) -> _OpenWorkspace:
        if own.held is None:
            session = self._store.session(session_id)
            with ExitStack() as stack:
                prepared = self._preparer.prepare(session.request, session, session.id, stack)
                # One lease for the whole session: processes write between two calls, too.
                lease = self._lease_of(prepared, action)
                own.held = _OpenWorkspace(prepared, lease, stack.pop_all())
        return own.held

    def _refuse_uncovered(self, prepared: PreparedWorkspace) -> None:
        """Refuse a protected name that appeared since: a live cell cannot mount a cover over it."""
        if prepared.host_tree is None:
            return
        tree, covered = prepared.host_tree, prepared.baseline.covered if prepared.baseline else {}
        gone, intact = lost_covers(tree, covered), intact_covers(tree, covered)
        most = self._settings.max_walk_entries
        found = [
            item
            for item in protected_paths.scan(tree, self._protection, max_entries=most)
            # An empty one may be the placeholder of a run in a subdirectory; a covered one was
            # created on the host, behind its cover.
            if not (is_empty_path(tree, item) or is_covered(item.path, intact))
        ]
        covers = covers_for(found, prepared.mount.mode, extra=prepared.extra_covers)
        new = {path for kind, path in covers if kind != "pin"}
        new -= {path for _kind, path in prepared.mount.covers}
        if new or gone:
            what = "appeared" if new else "was removed or replaced"
            raise WorkspaceError(
                f"the protected name {min(new or gone)[:200]} {what} after the sandbox was "
                "created, so no mount protects it there",
                hint="Create a new sandbox, which protects it.",
                code="CW-WORKSPACE-UNCOVERED",
            )

    def end_session(self, session_id: str) -> Sequence[Finding]:
        """Run the last check and close everything; the session's cell must have ended."""
        held: _OpenWorkspace | None = None
        with self._lock:
            own = self._sessions.pop(session_id, None)
        if own is not None:
            with own.lock:
                own.is_ended = True
                held, own.held = own.held, None
        # Only now: an operation that began before could otherwise mount a view that stays mounted.
        self._views.end(session_id)
        if held is None:
            return ()
        with held.stack:
            if held.prepared.host_tree is None:
                return ()  # no user directory, and the private folder is removed
            try:
                findings = held.lease.settle_now()
            except WorkspaceError as error:
                return (Finding("workspace", "high", error.message, rule=error.code),)
            _clear_if_checked(held.prepared, held.lease)
            return findings

    def operate(self, action: Action) -> object:
        """Carry out one call of the file API (FS-7)."""
        return self._files.operate(action)

    def _borrow_view(
        self, session: StoredWorkspace, action: Action, stack: ExitStack
    ) -> tuple[int, Root]:
        """The view and the upper layer, by duplicates of the session's descriptors: should the
        session end meanwhile, the numbers of its own would be reused for other directories."""
        with self._locked(session.id) as own:  # which keeps end_session from closing them
            prepared = self._hold(own, session.id, action).prepared
            mount, upper = prepared.mount, prepared.writable_tree
            assert mount.dir_fd is not None  # noqa: S101  # copy-on-write has all three
            assert mount.layers_fd is not None  # noqa: S101
            assert upper is not None  # noqa: S101
            copies = []
            for descriptor in (mount.dir_fd, mount.layers_fd, upper.fd):
                copies.append(os.dup(descriptor))
                stack.callback(os.close, copies[-1])
            lower_fd, layers_fd, upper_fd = copies
            mount = replace(mount, dir_fd=lower_fd, layers_fd=layers_fd)
            view = stack.enter_context(self._views.use(session.id, action, mount))
        return view, Root(upper_fd)

    def _lease_of(self, prepared: PreparedWorkspace, action: Action) -> PlainLease:
        """The lease that fits the workspace's mode."""
        mount, session = prepared.mount, prepared.session
        if prepared.writable_tree is None or session is None:
            return PlainLease(mount, workspace_id=session.id if session else None)
        if mount.mode is WorkspaceMode.COPY_ON_WRITE:
            return CopyOnWriteLease(
                mount, workspace_id=session.id, tree=prepared.writable_tree, settings=self._settings
            )
        # A private folder holds nothing of the user that needs protection.
        baseline = prepared.baseline
        nothing = Baseline(before=(), started_ns=time.clock_gettime_ns(COARSE_CLOCK))
        return ReadWriteLease(
            mount,
            workspace_id=session.id,
            tree=prepared.writable_tree,
            settings=self._settings,
            protection=self._protection.with_paths(baseline.paths) if baseline else Protection(()),
            baseline=baseline or nothing,
            action=action,
            quarantine_dir=session.quarantine_path,
            earlier=prepared.earlier,
        )


def _clear_if_checked(prepared: PreparedWorkspace, lease: PlainLease) -> None:
    if (
        prepared.pending_check is not None
        and isinstance(lease, ReadWriteLease)
        and lease.is_checked
    ):
        prepared.pending_check.clear()
