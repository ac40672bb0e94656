"""Takes a snapshot of the private workspace of a live session (FS-9).

  (1) the owner has room for one more;
  (2) no action begins to use the workspace until the end;
  (3) if no process of the session lives, or the caller ends them: the tree that received the writes
      becomes a read-only layer by one rename, and the session goes on with an empty one above it.
      Else: freeze the processes and copy that tree, by reflinks where the file system has them.
      The layers below it are shared, not copied;
  (4) beyond MAX_DEPTH layers, merge the lower ones by hard links;
  (5) write the record; the snapshot exists from here on.

A kill before (5) leaves a layer that nothing names, which is removed later, and the session ends
with its process as ever.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from cellwall.core.errors import BadInput, Busy, LimitExceeded, WorkspaceError
from cellwall.core.ids import new_id
from cellwall.core.snapshots import TakeSnapshot, WorkspaceSnapshot, variables_in
from cellwall.core.types import Action, WorkspaceMode
from cellwall.sandbox.files.descriptors import KEPT_MODE, closing_fd, remove_tree
from cellwall.sandbox.snapshots.layer_files import (
    MAX_LAYER_ENTRIES,
    TreeSize,
    copy_layer,
    measure,
    merge_layers,
)
from cellwall.sandbox.snapshots.store import SnapshotRecord
from cellwall.sandbox.workspace.layered import make_overlay_folders
from cellwall.sandbox.workspace.store import StoredWorkspace, WorkspaceStore
from cellwall.sandbox.workspace.workspaces import SessionWorkspace, Workspaces

MAX_DEPTH = 12
"""Layers of one workspace; every one costs descriptors and a lookup. The kernel allows more."""


class CellControl(Protocol):
    """The processes of a live session."""

    def has_cell(self, session_id: str) -> bool: ...

    def close_unused(self, session_id: str) -> None:
        """End a cell that was opened early, if no action has used it."""

    def frozen(self, session_id: str) -> AbstractContextManager[None]: ...

    def close_cell(self, session_id: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSettings:
    """How much one owner may keep, and how long."""

    max_count: int
    max_bytes: int
    keep_s: float


@dataclass(frozen=True, slots=True)
class SnapshotTaker:
    """Implements `SnapshotsPort`."""

    store: WorkspaceStore
    workspaces: Workspaces
    cells: CellControl
    settings: SnapshotSettings

    def take(self, action: Action, keep_labels: Callable[[str], None]) -> WorkspaceSnapshot:
        take, session_id = action.operation, action.session_id
        if not isinstance(take, TakeSnapshot) or session_id is None:
            raise BadInput("only a live sandbox has files of which a snapshot can be taken")
        account = action.principal.account
        owner = "" if account is None else account.user_id
        snapshots = self.store.snapshots
        with snapshots.building():
            left_bytes = self._room_of(owner)  # (1)
            with self.workspaces.excluding_others(session_id) as own:  # (2)
                try:
                    layers, added = self._layers(take, session_id, own, left_bytes)
                except OSError as error:
                    raise self._cannot_take(error) from error
            size = snapshots.size_of(layers)
            now_ns = time.time_ns()
            keep_s = min(self.settings.keep_s, take.ttl_s or self.settings.keep_s)
            record = SnapshotRecord(
                id=new_id("snp"),
                name=take.name,
                owner=owner,
                session=session_id,
                template=action.template,
                created_ns=now_ns,
                expires_ns=now_ns + int(keep_s * 1e9),
                layers=layers,
                size_bytes=size.size_bytes,
                files=size.files,
                variables=variables_in(take.state),
            )
            try:
                with snapshots.recording():
                    self._check_room(record)
                    snapshots.save(record, state=take.state, complete=keep_labels)  # (5)
            except (OSError, LimitExceeded) as error:
                for layer in added:
                    snapshots.forget_layer(layer)
                raise self._cannot_take(error) from error
        return record.describe()

    def _room_of(self, owner: str) -> int:
        """Bytes that the owner may still add."""
        count, used_bytes = self.store.snapshots.used_by(owner)
        if count >= self.settings.max_count or used_bytes >= self.settings.max_bytes:
            raise self._too_much()
        return self.settings.max_bytes - used_bytes

    def _check_room(self, record: SnapshotRecord) -> None:
        """Again at the end: other snapshots of the owner were taken meanwhile."""
        count, used_bytes = self.store.snapshots.used_by(record.owner, beside=record.layers)
        if count >= self.settings.max_count or used_bytes > self.settings.max_bytes:
            raise self._too_much()

    # (3)
    def _layers(
        self, take: TakeSnapshot, session_id: str, own: SessionWorkspace, left_bytes: int
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The layers of the snapshot, and those that nothing but the snapshot will name."""
        session = self.store.session(session_id)
        if session.request.mode is not WorkspaceMode.PRIVATE:
            raise WorkspaceError(
                "this sandbox works on a directory of the host, of which no snapshot is taken",
                hint="Take snapshots of sandboxes with a private workspace.",
                code="CW-SNAPSHOT-NOT-PRIVATE",
            )
        if own.users and take.end_processes:
            raise Busy(
                "something runs in this sandbox, or its files are being transferred",
                hint="Wait for its end, or take the snapshot without end_processes.",
                code="CW-SNAPSHOT-BUSY",
            )
        if take.end_processes:
            self.cells.close_cell(session_id)
        if not own.users:  # else an action uses it
            self.cells.close_unused(session_id)
        if not own.users and not self.cells.has_cell(session_id):
            return self._push(session, own, left_bytes), ()
        with self.cells.frozen(session_id):
            return self._copy(session, left_bytes)

    def _copy(
        self, session: StoredWorkspace, left_bytes: int
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if _is_empty(session.top_path):
            return session.layers, ()

        def fill(path: str) -> TreeSize:
            os.mkdir(path, 0o755)
            is_upper = bool(session.layers)
            return copy_layer(session.top_path, path, is_upper=is_upper, max_bytes=left_bytes)

        top = self.store.snapshots.add_layer(fill)
        layers = (top, *self._compact(session.layers, left_bytes))
        return layers, tuple(set(layers) - set(session.layers))

    def _push(
        self, session: StoredWorkspace, own: SessionWorkspace, left_bytes: int
    ) -> tuple[str, ...]:
        """The tree becomes a layer of the session itself."""
        if _is_empty(session.top_path):
            return session.layers
        size = measure(session.top_path)
        if size.size_bytes > left_bytes:
            raise self._too_much()
        lowers = self._compact(session.layers, left_bytes)
        with self.workspaces.replacing_view(session.id):
            own.release()
            top = self._make_way(session, size)
            layers = (top, *lowers)
            base = self.store.snapshots.size_of(layers)
            try:
                # Not flushed: with the power, the session ends as well.
                changed = replace(session, layers=layers, base=base)
                self.store.describe(changed, is_durable=False)
            except WorkspaceError:
                self._take_back(session, top)
                raise
        return layers

    def _make_way(self, session: StoredWorkspace, size: TreeSize) -> str:
        """Rename the tree to a new layer; all that may fail for lack of space comes before."""
        mode = stat.S_IMODE(os.stat(session.top_path, follow_symlinks=False).st_mode) & KEPT_MODE
        if session.layers:
            fresh = f"{session.layers_path}/next"
            os.mkdir(fresh, 0o755)
        else:
            make_overlay_folders(session.folder)
            fresh = session.upper_path
        os.chmod(fresh, mode)
        try:
            layer = self.store.snapshots.adopt_layer(session.top_path, size)
        except OSError:
            self._remove_fresh(session)
            raise
        if session.layers:
            os.rename(fresh, session.upper_path)
        return layer

    def _take_back(self, session: StoredWorkspace, layer: str) -> None:
        """Where the description of the workspace cannot be written."""
        snapshots = self.store.snapshots
        if session.layers:
            os.rmdir(session.upper_path)
        os.rename(snapshots.layer_path(layer), session.top_path)
        if not session.layers:
            self._remove_fresh(session)
        snapshots.forget_layer(layer)

    @staticmethod
    def _remove_fresh(session: StoredWorkspace) -> None:
        parent, name = (
            (session.layers_path, "next") if session.layers else (session.folder, "layers")
        )
        with closing_fd(os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as folder:
            remove_tree(folder, name, max_entries=MAX_LAYER_ENTRIES)

    # (4)
    def _compact(self, layers: tuple[str, ...], left_bytes: int) -> tuple[str, ...]:
        if len(layers) < MAX_DEPTH:
            return layers
        snapshots = self.store.snapshots
        paths = [snapshots.layer_path(each) for each in layers]

        def fill(path: str) -> TreeSize:
            os.mkdir(path, 0o755)
            return merge_layers(paths, path, link=True, max_bytes=left_bytes)

        return (snapshots.add_layer(fill),)

    def _too_much(self) -> LimitExceeded:
        bounds = self.settings
        return LimitExceeded(
            f"no more than {bounds.max_count} snapshots with {bounds.max_bytes} bytes are kept for "
            "one user",
            hint="Delete snapshots, or raise the limits in [snapshots] of the configuration.",
            code="CW-TOO-MANY-SNAPSHOTS",
        )

    def _cannot_take(self, error: OSError | LimitExceeded) -> Exception:
        if isinstance(error, LimitExceeded):
            return error
        if error.errno == errno.EDQUOT:
            return self._too_much()
        why = "the disk is full" if error.errno == errno.ENOSPC else "the files cannot be copied"
        return WorkspaceError(
            f"the snapshot was not taken: {why}",
            hint="Check space and permissions of the Cellwall state folder.",
            code="CW-SNAPSHOT-FAILED",
            detail=str(error),
        )


def _is_empty(path: str) -> bool:
    with os.scandir(path) as entries:
        return next(entries, None) is None
