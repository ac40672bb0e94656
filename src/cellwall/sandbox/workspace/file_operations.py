"""The file API of a session's workspace (FS-7): one operation, by descriptors below its root."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack

from cellwall.core.errors import BadInput, WorkspaceError
from cellwall.core.files import Transfer
from cellwall.core.types import (
    Action,
    FileOperation,
    WorkspaceMode,
)
from cellwall.sandbox.files.file_tree import FileTree
from cellwall.sandbox.files.merged_view import MergedFileTree, MergedViews
from cellwall.sandbox.files.root import AccessCheck, Root
from cellwall.sandbox.protection import protected_paths
from cellwall.sandbox.workspace.leases import (
    WorkspaceSettings,
)
from cellwall.sandbox.workspace.store import StoredWorkspace, WorkspaceStore

BorrowView = Callable[[StoredWorkspace, Action, ExitStack], tuple[int, Root]]
"""The merged view of a copy-on-write session and its upper layer, borrowed for one operation."""

_WRITING = frozenset({"write", "make_dir", "move", "remove", "upload"})


class FileOperations:
    """Carries out file operations, on a plain directory or on a copy-on-write view."""

    def __init__(
        self,
        store: WorkspaceStore,
        settings: WorkspaceSettings,
        views: MergedViews,
        borrow_view: BorrowView,
    ) -> None:
        self._store = store
        self._settings = settings
        self._protection = settings.protection
        self._views = views
        self._borrow_view = borrow_view

    def operate(self, action: Action) -> object:
        """Carry out one call of the file API."""
        operation = action.operation
        if not isinstance(operation, FileOperation) or action.session_id is None:
            raise BadInput("file operations need a session's workspace")
        session = self._store.session(action.session_id)
        if session.request.mode is WorkspaceMode.COPY_ON_WRITE:
            return self._operate_on_layers(session, operation, action)
        with ExitStack() as stack:
            tree = stack.enter_context(self._tree_of(session, writing=operation.name in _WRITING))
            if session.request.mode is WorkspaceMode.READ_ONLY and operation.name in _WRITING:
                raise WorkspaceError(
                    "the workspace is read-only",
                    hint="Create the sandbox with the directory as :rw or :cow.",
                    code="CW-WORKSPACE-READ-ONLY",
                )
            if operation.name == "watch":
                from cellwall.sandbox.files.watcher import Watcher  # noqa: PLC0415  # as below

                watcher = Watcher(tree, operation.path, recursive=operation.recursive)
                stack.pop_all()  # the watcher owns the descriptor now
                return watcher
            return self._perform(tree, operation, action)

    def _operate_on_layers(
        self, session: StoredWorkspace, operation: FileOperation, action: Action
    ) -> object:
        """The same on the merged view, whose lower layer, the host's directory, is only read."""
        with ExitStack() as stack:
            view, upper = self._borrow_view(session, action, stack)
            if operation.name == "watch":
                from cellwall.sandbox.files.watcher import Watcher  # noqa: PLC0415  # as below

                with ExitStack() as failed:
                    root = failed.enter_context(self._watched_root(os.dup(view)))
                    watcher = Watcher(root, operation.path, recursive=operation.recursive)
                    failed.pop_all()  # the watcher owns the root now
                self._views.attach(session.id, watcher, self._watched_root)
                return watcher
            access_check = self._access_check(view, writing=operation.name in _WRITING)
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
            found = protected_paths.scan(root, self._protection, max_entries=most)
            paths |= protected_paths.instruction_targets(root, found)
            paths |= protected_paths.indirect_paths(root, found).keys()
        return protected_paths.access_check_for(self._protection.with_paths(paths), root)

    def _perform(self, tree: FileTree, operation: FileOperation, action: Action) -> object:
        limits, blocked = action.limits, self._settings.blocked_extensions
        result: object = None
        match operation.name:
            case "read":
                result = tree.read(operation.path, max_bytes=self._settings.max_file_read_bytes)
            case "write":
                tree.write(
                    operation.path,
                    operation.content,
                    max_file_bytes=limits.file_size_bytes,
                    max_total_bytes=limits.disk_bytes,
                    max_files=limits.file_count,
                    blocked_extensions=blocked,
                )
            case "list":
                result = tree.list(operation.path)
            case "stat":
                result = tree.stat(operation.path)
            case "exists":
                result = tree.exists(operation.path)
            case "make_dir":
                tree.make_dir(operation.path, max_files=limits.file_count)
            case "move":
                tree.move(operation.path, operation.target, blocked_extensions=blocked)
            case "remove":
                tree.remove(operation.path, recursive=True)
            case "upload" | "download":
                result = self._transfer(tree, operation, action)
        return result

    def _transfer(self, tree: FileTree, operation: FileOperation, action: Action) -> Transfer:
        # Most programs need no archives, and the modules are slow to load.
        from cellwall.sandbox.files.tar_transfer import (  # noqa: PLC0415
            TransferLimits,
            pack,
            unpack,
        )

        allowed = action.limits
        limits = TransferLimits(
            max_file_bytes=allowed.file_size_bytes,
            max_total_bytes=allowed.disk_bytes,
            max_files=allowed.file_count,
            blocked_extensions=self._settings.blocked_extensions,
        )
        if operation.name == "upload" and operation.source is not None:
            return unpack(tree, operation.path, operation.source, limits=limits)
        if operation.name == "download" and operation.sink is not None:
            return pack(
                tree, operation.path, operation.sink, limits=limits, skip_links=operation.skip_links
            )
        raise BadInput("an upload needs a source, a download needs a sink")
