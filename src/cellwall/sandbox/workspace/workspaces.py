"""Workspaces: leased to an action or kept for a session (FS-1), and their file API (FS-7)."""

# ruff: noqa: PLC0415  # late imports: few programs watch files or move archives; both load slowly

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace

import anyio

from cellwall.core.errors import BadInput, WorkspaceError
from cellwall.core.files import FileOperation
from cellwall.core.outcomes import Finding
from cellwall.core.types import Action, WorkspaceMode, WorkspaceMount
from cellwall.sandbox.files.file_tree import FileTree
from cellwall.sandbox.files.merged_view import MergedFileTree, MergedViews, sandbox_ended
from cellwall.sandbox.files.operations import WRITING, FileRules, perform_operation
from cellwall.sandbox.files.paths import is_at_or_below
from cellwall.sandbox.files.root import AccessCheck, Root
from cellwall.sandbox.protection import protected_paths
from cellwall.sandbox.protection.host_directory import (
    covers_for,
    intact_covers,
    is_empty_path,
    lost_covers,
)
from cellwall.sandbox.protection.indirect_paths import indirect_paths, instruction_targets
from cellwall.sandbox.workspace.leases import PlainLease, WorkspaceSettings
from cellwall.sandbox.workspace.leasing import clear_if_checked, lease_of
from cellwall.sandbox.workspace.prepare import PreparedWorkspace, WorkspacePreparer
from cellwall.sandbox.workspace.store import StoredWorkspace, WorkspaceStore


@dataclass(frozen=True, slots=True)
class _OpenWorkspace:
    """The workspace of a live session, with everything that it holds open."""

    prepared: PreparedWorkspace
    lease: PlainLease
    stack: ExitStack


@dataclass(slots=True)
class SessionWorkspace:
    """A session's workspace under a lock of its own: a directory that is slow to scan, or locked by
    another program, must not delay the sandboxes of other directories."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    held: _OpenWorkspace | None = None
    users: int = 0
    """Actions and file operations that use it now."""
    is_ended: bool = False

    def release(self) -> None:
        """Close everything; the next action opens it anew. Nothing uses it, and no cell lives."""
        held, self.held = self.held, None
        if held is not None:
            held.stack.close()


class Workspaces:
    """Implements `WorkspacePort`."""

    def __init__(
        self, store: WorkspaceStore, settings: WorkspaceSettings, views: MergedViews
    ) -> None:
        self._views = views
        self._sessions: dict[str, SessionWorkspace] = {}
        self._lock = threading.Lock()  # guards only that dictionary
        self._store = store
        self._settings = settings
        self._protection = settings.protection
        self._preparer = WorkspacePreparer(store, settings)

    @asynccontextmanager
    async def lease(self, action: Action) -> AsyncIterator[PlainLease]:
        if action.session_id is not None:
            lease = self._lease_at_once(action, action.session_id)
            if lease is None:
                lease = await anyio.to_thread.run_sync(self._lease_for_session, action)
            try:
                lease.reserve()
                yield lease
            finally:
                self._leave(action.session_id)
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
        lease = lease_of(prepared, action, self._settings)
        stack.callback(clear_if_checked, prepared, lease)
        stack.callback(lease.release)
        return lease

    def _lease_at_once(self, action: Action, session_id: str) -> PlainLease | None:
        """The lease of a private workspace: it is held already, or there is one directory to open,
        which takes less time than a hop to a thread. None: there may be something to wait for."""
        with self._lock:
            own = self._sessions.setdefault(session_id, SessionWorkspace())
        if not own.lock.acquire(blocking=False):
            return None
        try:
            if own.is_ended:
                return None
            session = None
            if own.held is None:
                session = self._store.session(session_id)
                if session.request.mode is not WorkspaceMode.PRIVATE or session.layers:
                    return None
            held = self._hold(own, session_id, action, session)
            if held.prepared.host_tree is not None:
                return None
            own.users += 1
        finally:
            own.lock.release()
        return held.lease

    def _lease_for_session(self, action: Action) -> PlainLease:
        """A session's workspace stays mounted in its live cell: it is prepared once, and held."""
        assert action.session_id is not None  # noqa: S101  # by the caller
        with self._lock_session(action.session_id) as own:
            is_open = own.held is not None
            held = self._hold(own, action.session_id, action)
            if is_open:
                self._refuse_uncovered(held.prepared)
            own.users += 1
        return held.lease

    def _leave(self, session_id: str) -> None:
        with self._lock:
            own = self._sessions.get(session_id)
        if own is not None:  # else the session has ended meanwhile
            with own.lock:
                own.users -= 1

    @contextmanager
    def _lock_session(self, session_id: str) -> Iterator[SessionWorkspace]:
        """Exclusive use of the workspace of a session that has not ended."""
        with self._lock:
            own = self._sessions.setdefault(session_id, SessionWorkspace())
        with own.lock:
            if own.is_ended:
                raise sandbox_ended()
            yield own

    @contextmanager
    def excluding_others(self, session_id: str) -> Iterator[SessionWorkspace]:
        """No action begins to use the workspace of this session during the block."""
        with self._lock_session(session_id) as own:
            yield own

    def replacing_view(self, session_id: str) -> AbstractContextManager[object]:
        """Close the view of a session, so that its layers can change; the next use opens one."""
        return self._views.replacing(session_id)

    def _hold(
        self,
        own: SessionWorkspace,
        session_id: str,
        action: Action,
        session: StoredWorkspace | None = None,
    ) -> _OpenWorkspace:
        """`session`: as it was read a moment ago."""
        if own.held is None:
            session = session or self._store.session(session_id)
            with ExitStack() as stack:
                prepared = self._preparer.prepare(session.request, session, session.id, stack)
                # One lease for the whole session: processes write between two calls, too.
                lease = lease_of(prepared, action, self._settings)
                stack.callback(lease.release)
                own.held = _OpenWorkspace(prepared, lease, stack.pop_all())
        return own.held

    def _refuse_uncovered(self, prepared: PreparedWorkspace) -> None:
        """Refuse a protected name that appeared since: a live cell cannot mount a cover over it."""
        if prepared.host_tree is None:
            return
        tree, covered = prepared.host_tree, prepared.baseline.covered if prepared.baseline else {}
        lost, intact = lost_covers(tree, covered), intact_covers(tree, covered)
        most = self._settings.max_walk_entries
        protected = [
            item
            for item in protected_paths.scan(tree, self._protection, max_entries=most)
            # An empty one may be the placeholder of a run in a subdirectory; a covered one was
            # created on the host, behind its cover.
            if not (is_empty_path(tree, item) or is_at_or_below(item.path, intact))
        ]
        covers = covers_for(protected, prepared.mount.mode, extra=prepared.extra_covers)
        new = {path for kind, path in covers if kind != "pin"}
        new -= {path for _kind, path in prepared.mount.covers}
        if new or lost:
            what = "appeared" if new else "was removed or replaced"
            raise WorkspaceError(
                f"the protected name {min(new or lost)[:200]} {what} after the sandbox was "
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
            clear_if_checked(held.prepared, held.lease)
            return findings

    # --- the file API

    def operate(self, action: Action) -> object:
        """Carry out one call of the file API (FS-7), by descriptors below the workspace's root."""
        operation = action.operation
        if not isinstance(operation, FileOperation) or action.session_id is None:
            raise BadInput("file operations need a session's workspace")
        session = self._store.session(action.session_id)
        with ExitStack() as stack:
            if session.request.mode is WorkspaceMode.PRIVATE:
                stack.enter_context(self._using(session.id))
                session = self._store.session(session.id)  # a snapshot gives it layers
            return self._operate(session, operation, action)

    @contextmanager
    def _using(self, session_id: str) -> Iterator[None]:
        """The workspace gets no other layers during the block."""
        with self._lock_session(session_id) as own:
            own.users += 1
        try:
            yield
        finally:
            self._leave(session_id)

    def _operate(
        self, session: StoredWorkspace, operation: FileOperation, action: Action
    ) -> object:
        if operation.name == "diff":
            from cellwall.sandbox.workspace.session_diff import session_diff

            return session_diff(self._store, session, max_entries=self._settings.max_walk_entries)
        if session.request.mode is WorkspaceMode.COPY_ON_WRITE or session.layers:
            return self._operate_on_layers(session, operation, action)
        with ExitStack() as stack:
            tree = stack.enter_context(self._tree_of(session, writing=operation.name in WRITING))
            if session.request.mode is WorkspaceMode.READ_ONLY and operation.name in WRITING:
                raise WorkspaceError(
                    "the workspace is read-only",
                    hint="Create the sandbox with the directory as :rw or :cow.",
                    code="CW-WORKSPACE-READ-ONLY",
                )
            if operation.name == "watch":
                from cellwall.sandbox.files.watcher import Watcher

                watcher = Watcher(tree, operation.path, recursive=operation.recursive)
                stack.pop_all()  # the watcher owns the descriptor now
                return watcher
            return self._perform(tree, operation, action)

    def _operate_on_layers(
        self, session: StoredWorkspace, operation: FileOperation, action: Action
    ) -> object:
        """The same on the merged view, whose lower layers are only read."""
        if session.layers:  # which count against its limits, as in `LayeredLease`
            limits, base = action.limits, session.base
            action = replace(
                action,
                limits=replace(
                    limits,
                    disk_bytes=max(0, limits.disk_bytes - base.size_bytes),
                    file_count=max(0, limits.file_count - base.files),
                ),
            )
        with ExitStack() as stack:
            view, upper = self._borrow_view(session, action, stack)
            if operation.name == "watch":
                from cellwall.sandbox.files.watcher import Watcher

                watched_root = Root if session.layers else self._watched_root
                with ExitStack() as failed:
                    root = failed.enter_context(watched_root(os.dup(view)))
                    watcher = Watcher(root, operation.path, recursive=operation.recursive)
                    failed.pop_all()  # the watcher owns the root now
                self._views.attach(session.id, watcher, watched_root)
                return watcher
            access_check = None
            if not session.layers:  # a private workspace holds nothing of the host
                access_check = self._access_check(view, writing=operation.name in WRITING)
            merged = MergedFileTree(
                view, upper=upper, access_check=access_check, limits=action.limits
            )
            return self._perform(merged, operation, action)

    def _watched_root(self, descriptor: int) -> Root:
        return Root(descriptor, access_check=self._access_check(descriptor, writing=False))

    def _tree_of(self, session: StoredWorkspace, *, writing: bool) -> FileTree:
        if session.request.mode is WorkspaceMode.PRIVATE:
            return FileTree.open(session.files_path)
        descriptor, _path = self._store.open_directory(session)
        return FileTree(descriptor, access_check=self._access_check(descriptor, writing=writing))

    def _access_check(self, descriptor: int, *, writing: bool) -> AccessCheck:
        """Check protected names, git directories of any name, programs that git runs, and
        targets of links to instructions."""
        root = Root(descriptor)  # borrowed: the caller closes the descriptor
        paths: set[str] = set()
        if writing and self._protection.entries:
            most = self._settings.max_walk_entries
            protected = protected_paths.scan(root, self._protection, max_entries=most)
            paths |= instruction_targets(root, protected)
            paths |= indirect_paths(root, protected).keys()
        return protected_paths.access_check_for(self._protection.with_paths(paths), root)

    def _perform(self, tree: FileTree, operation: FileOperation, action: Action) -> object:
        settings = self._settings
        rules = FileRules(settings.blocked_extensions, settings.max_file_read_bytes)
        return perform_operation(tree, operation, limits=action.limits, rules=rules)

    def _borrow_view(
        self, session: StoredWorkspace, action: Action, stack: ExitStack
    ) -> tuple[int, Root]:
        """The view and the upper layer, by duplicates of the session's descriptors: should the
        session end meanwhile, the numbers of its own would be reused for other directories."""
        with self._lock_session(session.id) as own:  # which keeps end_session from closing them
            prepared = self._hold(own, session.id, action).prepared
            mount, upper = prepared.mount, prepared.writable_tree
            assert mount.dir_fd is not None  # noqa: S101  # copy-on-write has a directory
            assert mount.layers_fd is not None  # noqa: S101  # copy-on-write has layers
            assert upper is not None  # noqa: S101  # and a writable tree
            copies = []
            more = [descriptor for descriptor, _ in mount.more_lowers]
            for descriptor in (mount.dir_fd, mount.layers_fd, upper.fd, *more):
                copies.append(os.dup(descriptor))
                stack.callback(os.close, copies[-1])
            lower_fd, layers_fd, upper_fd, *more = copies
            paths = [path for _, path in mount.more_lowers]
            mount = replace(
                mount,
                dir_fd=lower_fd,
                layers_fd=layers_fd,
                more_lowers=tuple(zip(more, paths, strict=True)),
            )
            view = stack.enter_context(self._views.use(session.id, action, mount))
        return view, Root(upper_fd)
