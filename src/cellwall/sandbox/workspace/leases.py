"""Leases: a workspace while one action uses it, and the check at its end (FS-3, FS-4)."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import anyio

from cellwall.core.errors import WorkspaceError
from cellwall.core.limits import Limits
from cellwall.core.outcomes import Finding
from cellwall.core.protected_names import Protection
from cellwall.core.sandbox_ports import NO_UNLINKED_FILES, UnlinkedFiles
from cellwall.core.types import Action, WorkspaceMode, WorkspaceMount
from cellwall.sandbox.files.descriptors import closing_fd, unlock_root
from cellwall.sandbox.files.file_tree import FileTree, WriteLimits
from cellwall.sandbox.files.root import Root
from cellwall.sandbox.files.survey import DiskUsage
from cellwall.sandbox.protection import git_files, post_run_check
from cellwall.sandbox.protection.found_names import KnownLinks
from cellwall.sandbox.protection.post_run_check import Baseline
from cellwall.sandbox.snapshots.layer_files import TreeSize

_RESERVED = 12
_LOOK_AGAIN_SHARE = 4
_FEW_NAMES = 200
"""A walk over so many takes less than a millisecond."""
_SOON_S = 0.02
_NO_LINKS = KnownLinks()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceSettings:
    """The part of the configuration that workspaces need."""

    blocked_extensions: tuple[str, ...]
    max_walk_entries: int
    protection: Protection
    max_file_read_bytes: int = 64 * 1024 * 1024


class PlainLease:
    """A workspace while one action uses it."""

    def __init__(
        self,
        mount: WorkspaceMount,
        *,
        workspace_id: str | None = None,
        tree: FileTree | None = None,
        settings: WorkspaceSettings | None = None,
    ) -> None:
        self.mount = mount
        self.id = workspace_id
        self.tree = tree
        self._settings = settings
        self._before = DiskUsage()
        self._own_id: str | None = None
        self._free_bytes = 0
        self._free_bytes = self._free_when_whole = self._read_free_bytes()
        self._bytes_when_whole = 0
        self._is_suspect = False
        self._was_small_at = float("-inf")

    @property
    def is_quick(self) -> bool:
        """A private workspace is in Cellwall's own directory; others may be on a network."""
        return self.mount.mode is WorkspaceMode.PRIVATE

    @property
    def bounded_by_kernel(self) -> bool:
        """True for a workspace in memory, and for a read-only one, which cannot grow."""
        return self.tree is None

    def has_room(self, limits: Limits, unlinked: UnlinkedFiles = NO_UNLINKED_FILES) -> bool:
        if self.tree is None or self._settings is None:
            return True
        unreadable = list[str]()
        self._free_bytes = self._read_free_bytes()
        try:
            used = self._usage(self._settings.max_walk_entries, unreadable.append)
        except WorkspaceError as error:
            # More names, or deeper ones, than the walk counts: over the limit. Without a free
            # descriptor nothing can be counted; the next call counts again.
            cause = error.__cause__
            return isinstance(cause, OSError) and cause.errno in {errno.EMFILE, errno.ENFILE}
        return self._is_within(limits, used, unlinked, is_readable=not unreadable)

    def has_room_if_small(self, limits: Limits, unlinked: UnlinkedFiles) -> bool | None:
        unreadable = list[str]()
        self._free_bytes = self._read_free_bytes()
        try:
            used = self._usage(_FEW_NAMES, unreadable.append)
        except WorkspaceError:  # `has_room` finds out
            return None
        self._was_small_at = time.monotonic()
        return self._is_within(limits, used, unlinked, is_readable=not unreadable)

    def _is_within(
        self, limits: Limits, used: DiskUsage, unlinked: UnlinkedFiles, *, is_readable: bool
    ) -> bool:
        new_bytes = used.used_bytes + unlinked.used_bytes - self._before.used_bytes
        new_files = used.name_count + unlinked.count - self._before.name_count
        hidden_bytes = self._hidden(new_bytes, is_whole=is_readable and not unlinked.is_partial)
        if new_bytes > limits.disk_bytes or new_files > limits.file_count:
            return False
        # Other programs fill the same disk, so one such result alone proves nothing.
        was_suspect, self._is_suspect = (
            self._is_suspect,
            new_bytes + hidden_bytes > limits.disk_bytes,
        )
        return not (was_suspect and self._is_suspect)

    def _usage(self, max_entries: int, on_locked: Callable[[str], None]) -> DiskUsage:
        assert self.tree is not None  # noqa: S101  # by the caller
        return self.tree.usage(max_entries=max_entries, on_locked=on_locked)

    def _hidden(self, new_bytes: int, *, is_whole: bool) -> int:
        """Disk space lost since the last complete count that the visible files do not explain."""
        if is_whole:
            self._free_when_whole, self._bytes_when_whole = self._free_bytes, new_bytes
            return 0
        lost_bytes = self._free_when_whole - self._free_bytes
        return max(0, lost_bytes - max(0, new_bytes - self._bytes_when_whole))

    def is_filling(self, limits: Limits) -> bool:
        lost_bytes = self._free_bytes - self._read_free_bytes()
        return lost_bytes > limits.disk_bytes // _LOOK_AGAIN_SHARE

    def _read_free_bytes(self) -> int:
        if self.tree is None:
            return 0
        try:
            info = os.fstatvfs(self.tree.fd)
        except OSError:  # the session has just ended
            return self._free_bytes
        return info.f_bfree * info.f_frsize

    def reserve(self) -> None:
        """Before a run: reserve the descriptors that `settle` needs."""

    def release(self) -> None:
        """At the end of the lease: close the reserved descriptors. A lease under which nothing ran
        was never settled."""

    async def settle(self) -> Sequence[Finding]:
        return self.settle_now()

    def settle_now(self) -> Sequence[Finding]:
        """The same without an event loop. May block."""
        return ()


class CopyOnWriteLease(PlainLease):
    """A copy-on-write workspace; its id is reported only if the run changed a file."""

    def settle_now(self) -> Sequence[Finding]:
        if self.tree is not None:
            self._own_id = self._own_id or self.id
            unlock_root(self.tree.fd)
            has_changes = bool(self.tree.list(".", max_entries=1_000_000))
            self.id = self._own_id if has_changes else None
        return ()


class LayeredLease(PlainLease):
    """A private workspace on the layers of a snapshot, which count against its limits: else it
    could grow with each snapshot of a snapshot."""

    def __init__(
        self,
        mount: WorkspaceMount,
        *,
        workspace_id: str,
        tree: FileTree,
        settings: WorkspaceSettings,
        base: TreeSize,
    ) -> None:
        super().__init__(mount, workspace_id=workspace_id, tree=tree, settings=settings)
        self._before = DiskUsage(-base.size_bytes, -base.files)


class ReadWriteLease(PlainLease):
    """A workspace in which code writes to the host's disk directly; checked after the run."""

    def __init__(
        self,
        mount: WorkspaceMount,
        *,
        workspace_id: str | None,
        tree: FileTree,
        settings: WorkspaceSettings,
        protection: Protection,
        baseline: Baseline,
        action: Action,
        quarantine_dir: str,
        earlier: Sequence[Finding] = (),
    ) -> None:
        super().__init__(mount, workspace_id=workspace_id, tree=tree, settings=settings)
        self._border_settings = settings
        self._protection = protection
        self._action = action
        self._quarantine_dir = quarantine_dir
        self._lock = threading.Lock()
        self._reserved: list[int] = []
        self._baseline = baseline
        self._index = baseline.index
        self._earlier_findings = tuple(earlier)
        self.is_checked = False
        """Whether the last check of the workspace was complete."""
        # Of a private workspace everything counts, so its baseline has none: else it could grow
        # each time it is resumed.
        self._before = baseline.usage

    def reserve(self) -> None:
        # Other runs of this process may use up all descriptors; a planted file would then stay,
        # and the next run would take it for the user's own (FS-4).
        assert self.tree is not None  # noqa: S101  # by construction
        with self._lock:
            while len(self._reserved) < _RESERVED:
                self._reserved.append(os.dup(self.tree.fd))

    def release(self) -> None:
        with self._lock:
            self._close_reserved()

    def _close_reserved(self) -> None:
        while self._reserved:
            os.close(self._reserved.pop())

    def _usage(self, max_entries: int, on_locked: Callable[[str], None]) -> DiskUsage:
        """Counts the quarantine, too: a process of a live sandbox that has a moved file or
        directory open can still write to it."""
        usage = super()._usage(max_entries, on_locked)
        if _is_missing(self._quarantine_dir):  # as in nearly all runs: cheaper than an error
            return usage
        try:
            quarantine = Root.open(self._quarantine_dir)
        except WorkspaceError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return usage  # the quarantine is empty
            raise
        with quarantine:
            moved = quarantine.usage(max_entries=max_entries, on_locked=on_locked)
        return usage.plus(moved)

    def _is_empty_as_before(self) -> bool:
        """Whether no name is there to be checked, and none was there that could be missing."""
        assert self.tree is not None  # noqa: S101  # by construction
        baseline = self._baseline
        if baseline.before or baseline.covered or baseline.links != _NO_LINKS or self._index:
            return False
        flags = os.O_RDONLY | os.O_DIRECTORY
        try:
            directory = self.tree.open_below(".", flags, links=False)
            with closing_fd(directory), os.scandir(directory) as entries:
                return next(entries, None) is None  # reads no more of a flood of names
        except OSError:  # the check says what is wrong
            return False

    async def settle(self) -> Sequence[Finding]:
        # Counted a moment ago: there was no time to make many more.
        is_small = time.monotonic() - self._was_small_at < _SOON_S
        if is_small and self._lock.acquire(blocking=False):
            try:
                return self._settle()
            finally:
                self._lock.release()
        with anyio.CancelScope(shield=True):
            findings = await anyio.to_thread.run_sync(self.settle_now)
        return findings  # noqa: RET504  # for mypy, a scope may end its block early

    def settle_now(self) -> Sequence[Finding]:
        with self._lock:  # all runs of a session share its lease
            return self._settle()

    def _settle(self) -> Sequence[Finding]:
        assert self.tree is not None  # noqa: S101  # by construction
        self._close_reserved()
        self.is_checked = False
        unlock_root(self.tree.fd)
        if self._is_empty_as_before():
            self.is_checked = True
            earlier, self._earlier_findings = self._earlier_findings, ()
            return earlier
        limits, settings = self._action.limits, self._border_settings
        findings = post_run_check.check_directory(
            self.tree,
            self._baseline,
            protection=self._protection,
            limits=WriteLimits(
                max_file_bytes=limits.file_size_bytes,
                max_total_bytes=self._before.used_bytes + limits.disk_bytes,
                max_files=self._before.name_count + limits.file_count,
                blocked_extensions=settings.blocked_extensions,
            ),
            quarantine_dir=self._quarantine_dir,
        )
        self.is_checked = True
        earlier, self._earlier_findings = self._earlier_findings, ()
        before, self._index = self._index, git_files.read_index(self.tree)
        unwritable = {*self._baseline.covered, *(item.path for item in self._baseline.before)}
        stale = git_files.left_as_they_were(self.tree, frozenset(unwritable), before, self._index)
        return (*earlier, *findings, *stale)


def _is_missing(path: str) -> bool:
    """Any other failure is no answer: to open the path then raises."""
    try:
        os.lstat(path)
    except OSError as error:
        return error.errno == errno.ENOENT
    return False
