"""What a session has changed in its workspace since its start, for people (FS-2, FS-7).

A private workspace begins empty, so all of it is new. Of copy-on-write the upper layer holds the
changes. Of a directory that is written in place, the state at the start is not kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cellwall.core.errors import WorkspaceError
from cellwall.core.files import ChangedPath, WorkspaceDiff
from cellwall.core.scratch import scratch_folder
from cellwall.core.types import WorkspaceMode
from cellwall.sandbox.files.file_tree import FileTree
from cellwall.sandbox.workspace.change_diff import unified_diff
from cellwall.sandbox.workspace.changes import changes, rank
from cellwall.sandbox.workspace.layered import copy_layers
from cellwall.sandbox.workspace.store import StoredWorkspace, WorkspaceStore

_MAX_TEXT_BYTES = 1 << 20
_MAX_LISTED = 1000


def session_diff(
    store: WorkspaceStore, session: StoredWorkspace, *, max_entries: int
) -> WorkspaceDiff:
    """The changed paths, marked ones first, and their text."""
    if session.request.mode is WorkspaceMode.READ_ONLY:
        return WorkspaceDiff((), 0, "")
    with _trees(store, session) as (before, after):
        ranked = rank(changes(before, after, max_entries=max_entries))
        listed = tuple(
            ChangedPath(
                kind=each.kind,
                path=each.path,
                entry_kind=each.entry_kind,
                size_before=each.size_before,
                size_after=each.size_after,
                is_binary=each.binary,
                mark=each.mark,
            )
            for each in ranked[:_MAX_LISTED]
        )
        return WorkspaceDiff(
            listed, len(ranked), unified_diff(before, after, max_bytes=_MAX_TEXT_BYTES)
        )


@contextmanager
def _trees(store: WorkspaceStore, session: StoredWorkspace) -> Iterator[tuple[FileTree, FileTree]]:
    match session.request.mode:
        case WorkspaceMode.PRIVATE if len(session.layers) == 1:
            with (
                FileTree.open(store.snapshots.layer_path(session.layers[0])) as before,
                FileTree.open(session.upper_path) as after,
            ):
                yield before, after
        case WorkspaceMode.PRIVATE if session.layers:
            with scratch_folder("cellwall-base-") as base:
                copy_layers(store.snapshots, session.layers, base)
                with FileTree.open(base) as before, FileTree.open(session.upper_path) as after:
                    yield before, after
        case WorkspaceMode.PRIVATE:
            with (
                scratch_folder("cellwall-empty-") as nothing,
                FileTree.open(nothing) as before,
                FileTree.open(session.files_path) as after,
            ):
                yield before, after
        case WorkspaceMode.COPY_ON_WRITE:
            descriptor, _ = store.open_directory(session)
            with (
                FileTree(descriptor) as before,
                store.open_upper(session) as path,
                FileTree.open(path) as after,
            ):
                yield before, after
        case _:
            raise WorkspaceError(
                "the directory is written in place, so its state at the start is not known",
                hint="Give the directory as DIR:cow to review changes before they are applied.",
                code="CW-WORKSPACE-NOT-COW",
            )
