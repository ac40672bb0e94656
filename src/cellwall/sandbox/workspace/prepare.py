"""Prepares a workspace for a run or a session (FS-1, FS-4, FS-8).

Each directory is opened once; the descriptor that was checked is the one that is mounted.
A user's own directory:
  (1) open it without following a symlink at its end; refuse forbidden roots by the real path;
  (2) take a shared lock on it; complete the check of an earlier run that was killed;
  (3) where code can write: register the removal of the placeholders with the reaper, which outlives
      this process, then create placeholders where protected names could be planted;
  (4) find the protected names and list the mounts that cover them; record that a check is due.
After the run: (5) check the directory; (6) remove the placeholders unless another run works there.
The record of (4) is removed after a complete check. The lock lasts as long as the placeholders.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace

from cellwall.core.errors import WorkspaceError
from cellwall.core.outcomes import Finding
from cellwall.core.protected_names import NameTreatment, Placeholder
from cellwall.core.types import (
    WorkspaceMode,
    WorkspaceMount,
    WorkspaceRequest,
)
from cellwall.sandbox.files.descriptors import identity_of, unlock_root
from cellwall.sandbox.files.file_tree import FileTree
from cellwall.sandbox.protection import git_files, placeholders, post_run_check, protected_paths
from cellwall.sandbox.protection.found_names import KnownLinks
from cellwall.sandbox.protection.hard_links import other_names
from cellwall.sandbox.protection.host_directory import (
    ExtraCovers,
    cellwall_paths_below,
    cover_identities,
    covers_for,
    is_empty_path,
    open_host_directory,
    own_path,
)
from cellwall.sandbox.protection.indirect_paths import indirect_paths
from cellwall.sandbox.protection.post_run_check import COARSE_CLOCK, Baseline
from cellwall.sandbox.workspace.leases import (
    WorkspaceSettings,
)
from cellwall.sandbox.workspace.pending_checks import PendingCheck
from cellwall.sandbox.workspace.store import StoredWorkspace, WorkspaceStore


@dataclass(frozen=True, slots=True)
class PreparedWorkspace:
    """A workspace that is ready for one run, or for the life of a session."""

    mount: WorkspaceMount
    session: StoredWorkspace | None
    writable_tree: FileTree | None = None
    """The directory that receives the writes of code; None where code cannot write."""
    host_tree: FileTree | None = None
    """The user's own directory; None for a private workspace."""
    extra_covers: ExtraCovers = ExtraCovers()
    baseline: Baseline | None = None
    """The state before the run of a directory that is mounted itself, not as an overlay layer."""
    pending_check: PendingCheck | None = None
    earlier: tuple[Finding, ...] = ()
    """Findings of the checks of earlier runs, which were completed now."""


class WorkspacePreparer:
    """Opens directories, and takes every measure that a run in them needs."""

    def __init__(self, store: WorkspaceStore, settings: WorkspaceSettings) -> None:
        self._store = store
        self._settings = settings
        self._protection = settings.protection

    def prepare(
        self,
        request: WorkspaceRequest,
        session: StoredWorkspace | None,
        own_id: str,
        stack: ExitStack,
    ) -> PreparedWorkspace:
        if request.mode is not WorkspaceMode.PRIVATE:
            return self._open_given(request, session, own_id, stack)
        if session is None:
            # More disk than memory was requested: a folder on disk, removed at the end.
            session = self._store.make(own_id, request)
            stack.callback(self._store.retire, session)
        if session.layers:
            return self._open_layers(session, stack)
        path = session.files_path
        tree = stack.enter_context(FileTree.open(path))
        mount = WorkspaceMount(mode=WorkspaceMode.PRIVATE, dir_fd=tree.fd, path=path)
        return PreparedWorkspace(mount, session, writable_tree=tree)

    def _open_layers(self, session: StoredWorkspace, stack: ExitStack) -> PreparedWorkspace:
        """A private workspace on the layers of a snapshot, which hold nothing of the host."""
        paths = [self._store.snapshots.layer_path(each) for each in session.layers]
        lowers = [(stack.enter_context(FileTree.open(path)).fd, path) for path in paths]
        layers = stack.enter_context(FileTree.open(session.layers_path))
        upper = stack.enter_context(FileTree.open(session.upper_path))
        mount = WorkspaceMount(
            mode=WorkspaceMode.COPY_ON_WRITE,
            dir_fd=lowers[0][0],
            path=lowers[0][1],
            layers_fd=layers.fd,
            layers_path=session.layers_path,
            more_lowers=tuple(lowers[1:]),
        )
        return PreparedWorkspace(mount, session, writable_tree=upper)

    def _open_given(
        self,
        request: WorkspaceRequest,
        session: StoredWorkspace | None,
        own_id: str,
        stack: ExitStack,
    ) -> PreparedWorkspace:
        # (1) Open and check.
        if session is None:
            descriptor, path = open_host_directory(
                request.directory or "", state_home=self._store.home, base=request.base
            )
        else:
            descriptor, path = self._store.open_directory(session)
        tree = stack.enter_context(FileTree(descriptor))
        if request.mode is not WorkspaceMode.READ_ONLY and git_files.is_within_hooks(tree):
            raise WorkspaceError(
                f"{path[-200:]!r} holds hooks that git runs on the host",
                hint="Give the working tree, in which the hooks are read-only.",
                code="CW-WORKSPACE-REFUSED",
            )
        # (2) Lock, and complete the checks of killed runs.
        with placeholders.shared_lock(tree.fd) as lock:
            earlier = self._complete_pending_checks(tree)
            extra = ExtraCovers()
            if request.mode is WorkspaceMode.READ_WRITE:
                # (3) Placeholders. (6) is registered first, so that a failure leaves none behind.
                stack.enter_context(self._store.placeholders.remove_at_end(tree, lock))
                extra = self._store.placeholders.create(tree, self._protection.placeholders())
                extra = extra.merge(ExtraCovers(read_only=cellwall_paths_below(path)))
            # (4) The protected names, placeholders included.
            baseline, extra = self._scan(tree, request.mode, extra)
        covers = covers_for(baseline.before, request.mode, extra=extra)
        baseline = replace(baseline, covered=cover_identities(tree, covers))
        if session is None and request.mode is not WorkspaceMode.READ_ONLY:
            own = WorkspaceRequest(request.mode, path)
            session = self._store.make(own_id, own, identity=identity_of(tree.fd))
            stack.callback(self._store.retire, session)
        mount = WorkspaceMount(
            mode=request.mode,
            dir_fd=tree.fd,
            path=path,
            covers=covers,
            home=False,
            own_path=own_path(path) if request.at_own_path else None,
        )
        if request.mode is WorkspaceMode.READ_ONLY:
            return PreparedWorkspace(mount, session, host_tree=tree, baseline=baseline)
        if request.mode is WorkspaceMode.READ_WRITE:
            note = self._store.pending_checks.record(identity_of(tree.fd), own_id, baseline)
            stack.callback(note.close)
            return PreparedWorkspace(
                mount,
                session,
                writable_tree=tree,
                host_tree=tree,
                extra_covers=extra,
                baseline=baseline,
                pending_check=note,
                earlier=earlier,
            )
        assert session is not None  # noqa: S101  # made above
        layers = stack.enter_context(FileTree.open(session.layers_path))
        upper = stack.enter_context(FileTree.open(session.upper_path))
        mount = replace(mount, layers_fd=layers.fd, layers_path=session.layers_path)
        return PreparedWorkspace(mount, session, writable_tree=upper, host_tree=tree)

    def _scan(
        self, tree: FileTree, mode: WorkspaceMode, extra: ExtraCovers
    ) -> tuple[Baseline, ExtraCovers]:
        """Find the protected names; create placeholders for hooks that git configurations name."""
        most = self._settings.max_walk_entries
        started_ns = time.clock_gettime_ns(COARSE_CLOCK)
        links = KnownLinks()
        protected, usage = protected_paths.scan_and_count(
            tree, self._protection, max_entries=most, links=links
        )
        # In a copy, code cannot write the file behind a name.
        protected += tuple(
            item
            for item in other_names(tree, protected, links, max_entries=most)
            if mode is WorkspaceMode.READ_WRITE or item.treatment is NameTreatment.HIDE
        )
        paths: dict[str, bool] = {}
        if mode is WorkspaceMode.READ_WRITE:
            paths = indirect_paths(tree, protected)
            hooks = [path for path, is_hooks in paths.items() if is_hooks]
            placeholders_needed = [
                Placeholder(path, "dir", NameTreatment.READ_ONLY) for path in hooks
            ]
            if placeholders_needed:
                extra = extra.merge(self._store.placeholders.create(tree, placeholders_needed))
        # A placeholder that code fills during the run is not a name that existed before.
        known = tuple(
            f for f in protected if f.path not in extra.read_only or not is_empty_path(tree, f)
        )
        baseline = Baseline(
            before=known,
            started_ns=started_ns,
            paths=frozenset(paths),
            links=links,
            usage=usage,
            index=git_files.read_index(tree) if mode is WorkspaceMode.READ_WRITE else b"",
        )
        return baseline, extra

    def _complete_pending_checks(self, tree: FileTree) -> tuple[Finding, ...]:
        """Do the checks of runs that were killed before their check, or did not complete it."""
        findings: list[Finding] = []
        pending = self._store.pending_checks
        for run_id, baseline, note in pending.abandoned(identity_of(tree.fd)):
            unlock_root(tree.fd)
            check_findings = post_run_check.check_directory(
                tree,
                baseline,
                protection=self._protection.with_paths(baseline.paths),
                limits=post_run_check.UNBOUNDED,
                quarantine_dir=pending.quarantine_path(run_id),
            )
            note.clear()
            message = f"an earlier run here ({run_id}) ended before its check, which was done now"
            findings += [Finding("workspace", "medium", message), *check_findings]
        return tuple(findings)
