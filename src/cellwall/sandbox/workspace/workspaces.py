"""Workspaces: the files a run works on, made ready before it and settled after it (FS-1..4).

Every directory is opened once; what was judged is what is mounted, by descriptor. A given one:
  (1) open it without following a link at its end; refuse silly roots by the real place it has;
  (2) share-lock it; make up for the check of an earlier run that was killed before its own;
  (3) where code can write: promise the placeholders' removal to the holder, which outlives us, then
      put placeholders where protected names could be planted;
  (4) find the protected names and list what must be covered; note that a check is due.
After the run: (5) settle; (6) have the placeholders removed if nobody else works there. The note
goes once all was looked at. The lock lasts as long as the placeholders.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace

import anyio

from cellwall.core.errors import BadInput, WorkspaceError
from cellwall.core.files import Transfer
from cellwall.core.outcomes import Finding
from cellwall.core.types import (
    Action,
    FileOperation,
    WorkspaceMode,
    WorkspaceMount,
    WorkspaceRequest,
)
from cellwall.sandbox.files.descriptors import unlock_root
from cellwall.sandbox.files.file_tree import Beneath
from cellwall.sandbox.files.merged_view import MergedBeneath, MergedViews
from cellwall.sandbox.files.root import Judge, Root
from cellwall.sandbox.protection import git_files, placeholders, post_run_check, protected_paths
from cellwall.sandbox.protection.covers import (
    Standing,
    covers_for,
    identities,
    intact,
    is_behind,
    is_empty,
    lost,
)
from cellwall.sandbox.protection.host_directory import identity_of, open_given, own_path, own_places
from cellwall.sandbox.protection.pending_checks import Baseline, Note
from cellwall.sandbox.protection.protected_paths import Protection, Treatment
from cellwall.sandbox.workspace.leases import LayeredLease, Lease, WorkspaceSettings, WrittenLease
from cellwall.sandbox.workspace.store import COARSE_CLOCK, Session, WorkspaceStore


@dataclass(frozen=True, slots=True)
class _Opened:
    """A workspace made ready: for one run, or for as long as a session lives."""

    mount: WorkspaceMount
    session: Session | None
    written: Beneath | None = None
    """Where what code writes ends up; None where it cannot write."""
    given: Beneath | None = None
    """The user's own directory, if it is one."""
    standing: Standing = Standing()
    baseline: Baseline | None = None
    """What a directory that is mounted itself, not as a layer, was like before."""
    note: Note | None = None
    earlier: tuple[Finding, ...] = ()
    """What the check of an earlier run found, which was made up for."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A session's, as long as it lives."""

    opened: _Opened
    lease: Lease
    stack: ExitStack


@dataclass(slots=True)
class _OfSession:
    """A session's workspace, under a lock of its own: a directory that is slow to look through, or
    that somebody has locked, must not keep the sandboxes of other directories waiting."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    held: _Held | None = None
    is_ended: bool = False


class Workspaces:
    """The port's implementation."""

    def __init__(
        self, store: WorkspaceStore, settings: WorkspaceSettings, views: MergedViews
    ) -> None:
        self._views = views
        self._sessions: dict[str, _OfSession] = {}
        self._lock = threading.Lock()  # of that dictionary alone
        self._store = store
        self._settings = settings
        self._protection = settings.protection

    @asynccontextmanager
    async def lease(self, action: Action) -> AsyncIterator[Lease]:
        if action.session_id is not None:
            lease = await anyio.to_thread.run_sync(self._of_session, action)
            lease.reserve()
            yield lease
        elif self._fits_memory(action):
            # Quick, bounded by the kernel, and gone with the cell.
            yield Lease(WorkspaceMount(mode=WorkspaceMode.PRIVATE))
        else:
            with ExitStack() as stack:
                lease = await anyio.to_thread.run_sync(self._of_one_run, action, stack)
                lease.reserve()
                yield lease

    @staticmethod
    def _fits_memory(action: Action) -> bool:
        limits = action.limits
        private = action.workspace.mode is WorkspaceMode.PRIVATE
        return private and limits.disk_bytes <= limits.memory_bytes

    def _of_one_run(self, action: Action, stack: ExitStack) -> Lease:
        opened = self._open(action.workspace, None, action.id, stack)
        lease = self._lease_of(opened, action)
        stack.callback(_clear_if_checked, opened, lease)
        return lease

    def _of_session(self, action: Action) -> Lease:
        """A session's workspace stays mounted in its live cell: it is opened once, and held."""
        assert action.session_id is not None  # noqa: S101  # by the caller
        with self._locked(action.session_id) as own:
            is_open = own.held is not None
            held = self._hold(own, action.session_id, action)
            if is_open:
                self._refuse_uncovered(held.opened)
        return held.lease

    @contextmanager
    def _locked(self, session_id: str) -> Iterator[_OfSession]:
        """Nothing else is done with the session's workspace meanwhile; it has not ended."""
        with self._lock:
            own = self._sessions.setdefault(session_id, _OfSession())
        with own.lock:
            if own.is_ended:
                raise BadInput(
                    "the sandbox was ended", hint="Create a new one.", code="CW-SANDBOX-ENDED"
                )
            yield own

    def _hold(self, own: _OfSession, session_id: str, action: Action) -> _Held:
        if own.held is None:
            session = self._store.session(session_id)
            with ExitStack() as stack:
                opened = self._open(session.request, session, session.id, stack)
                # One for the whole session: what its processes do between two calls is theirs.
                lease = self._lease_of(opened, action)
                own.held = _Held(opened, lease, stack.pop_all())
        return own.held

    def _refuse_uncovered(self, opened: _Opened) -> None:
        """A protected name that somebody put there since cannot be covered in a live cell."""
        if opened.given is None:
            return
        beneath, covered = opened.given, opened.baseline.covered if opened.baseline else {}
        gone, standing = lost(beneath, covered), intact(beneath, covered)
        most = self._settings.max_walk_entries
        found = [
            item
            for item in protected_paths.scan(beneath, self._protection, max_entries=most)
            # Perhaps a placeholder of a run further down, or put behind a cover on the host.
            if not (is_empty(beneath, item) or is_behind(item.path, standing))
        ]
        covers = covers_for(found, opened.mount.mode, standing=opened.standing)
        new = {path for kind, path in covers if kind != "pin"}
        new -= {path for _kind, path in opened.mount.covers}
        if new or gone:
            what = "appeared" if new else "was removed or replaced"
            raise WorkspaceError(
                f"{min(new or gone)[:200]} has a protected name and {what} after the sandbox was "
                "made, so nothing covers it there",
                hint="Create a new sandbox, in which it is covered.",
                code="CW-WORKSPACE-UNCOVERED",
            )

    def end_session(self, session_id: str) -> Sequence[Finding]:
        """Look a last time and let go; its cell must have ended."""
        held: _Held | None = None
        with self._lock:
            own = self._sessions.pop(session_id, None)
        if own is not None:
            with own.lock:
                own.is_ended = True
                held, own.held = own.held, None
        # After that no operation begins to use a view: one of an ended session would stay mounted.
        self._views.end(session_id)
        if held is None:
            return ()
        with held.stack:
            if held.opened.given is None:
                return ()  # nothing of the user's is there, and all of it goes now
            try:
                findings = held.lease.settle_now()
            except WorkspaceError as error:
                return (Finding("workspace", "high", error.message, rule=error.code),)
            _clear_if_checked(held.opened, held.lease)
            return findings

    def _open(
        self,
        request: WorkspaceRequest,
        session: Session | None,
        own_id: str,
        stack: ExitStack,
    ) -> _Opened:
        if request.mode is not WorkspaceMode.PRIVATE:
            return self._open_given(request, session, own_id, stack)
        if session is None:
            # More disk than memory was asked for: a folder of its own, removed at the end.
            session = self._store.make(own_id, request)
            stack.callback(self._store.retire, session)
        path = session.files_path
        beneath = stack.enter_context(Beneath.open(path))
        mount = WorkspaceMount(mode=WorkspaceMode.PRIVATE, dir_fd=beneath.fd, path=path)
        return _Opened(mount, session, written=beneath)

    def _open_given(
        self,
        request: WorkspaceRequest,
        session: Session | None,
        own_id: str,
        stack: ExitStack,
    ) -> _Opened:
        # (1) Open and judge.
        if session is None:
            descriptor, path = open_given(request.directory or "", state_home=self._store.home)
        else:
            descriptor, path = self._store.open_directory(session)
        beneath = stack.enter_context(Beneath(descriptor))
        if request.mode is not WorkspaceMode.READ_ONLY and git_files.is_within_hooks(beneath):
            raise WorkspaceError(
                f"{path[-200:]!r} holds hooks that git runs on the host",
                hint="Give the working tree: the hooks are read-only in it.",
                code="CW-WORKSPACE-REFUSED",
            )
        # (2) Lock, and make up for what a killed run could not do.
        with placeholders.shared_lock(beneath.fd) as lock:
            earlier = self._make_up(beneath)
            standing = Standing()
            if request.mode is WorkspaceMode.READ_WRITE:
                # (3) Placeholders; (6) is promised first: a failure here leaves none behind.
                stack.enter_context(self._store.placeholders.removed_at_end(beneath, lock))
                standing = self._store.placeholders.put(beneath, self._protection.placeholders())
                standing = standing.and_also(Standing(held=own_places(path)))
            # (4) What is protected, placeholders included.
            baseline, standing = self._look(beneath, request.mode, standing)
        covers = covers_for(baseline.before, request.mode, standing=standing)
        baseline = replace(baseline, covered=identities(beneath, covers))
        if session is None and request.mode is not WorkspaceMode.READ_ONLY:
            own = WorkspaceRequest(request.mode, path)
            session = self._store.make(own_id, own, identity=identity_of(beneath.fd))
            stack.callback(self._store.retire, session)
        mount = WorkspaceMount(
            mode=request.mode,
            dir_fd=beneath.fd,
            path=path,
            covers=covers,
            home=False,
            own_path=own_path(path) if request.at_own_path else None,
        )
        if request.mode is WorkspaceMode.READ_ONLY:
            return _Opened(mount, session, given=beneath, baseline=baseline)
        if request.mode is WorkspaceMode.READ_WRITE:
            note = self._store.unchecked.note(identity_of(beneath.fd), own_id, baseline)
            stack.callback(note.close)
            return _Opened(
                mount,
                session,
                written=beneath,
                given=beneath,
                standing=standing,
                baseline=baseline,
                note=note,
                earlier=earlier,
            )
        assert session is not None  # noqa: S101  # made above
        layers = stack.enter_context(Beneath.open(session.layers_path))
        upper = stack.enter_context(Beneath.open(session.upper_path))
        mount = replace(mount, layers_fd=layers.fd, layers_path=session.layers_path)
        return _Opened(mount, session, written=upper, given=beneath)

    def _look(
        self, beneath: Beneath, mode: WorkspaceMode, standing: Standing
    ) -> tuple[Baseline, Standing]:
        """The protected names, and placeholders for programs that a git configuration names."""
        most = self._settings.max_walk_entries
        started_ns = time.clock_gettime_ns(COARSE_CLOCK)
        links = protected_paths.Links()
        found = protected_paths.scan(beneath, self._protection, max_entries=most, links=links)
        paths: dict[str, bool] = {}
        if mode is WorkspaceMode.READ_WRITE:
            paths = protected_paths.steered_paths(beneath, found)
            hooks = [path for path, is_hooks in paths.items() if is_hooks]
            wanted = [
                protected_paths.Placeholder(path, "dir", Treatment.READ_ONLY) for path in hooks
            ]
            if wanted:
                standing = standing.and_also(self._store.placeholders.put(beneath, wanted))
        # What fills a placeholder during the run is no name that was there before.
        known = tuple(f for f in found if f.path not in standing.held or not is_empty(beneath, f))
        baseline = Baseline(
            before=known,
            started_ns=started_ns,
            paths=frozenset(paths),
            links=links,
            index=git_files.read_index(beneath) if mode is WorkspaceMode.READ_WRITE else b"",
        )
        return baseline, standing

    def _make_up(self, beneath: Beneath) -> tuple[Finding, ...]:
        """The check of runs that were killed before it, or did not complete it."""
        findings: list[Finding] = []
        unchecked = self._store.unchecked
        for run_id, baseline, note in unchecked.left_behind(identity_of(beneath.fd)):
            unlock_root(beneath.fd)
            found = post_run_check.settle(
                beneath,
                protection=self._protection.with_paths(baseline.paths),
                before=baseline.before,
                links=baseline.links,
                covered=baseline.covered,
                started_ns=baseline.started_ns,
                rules=post_run_check.UNBOUNDED,
                quarantine_dir=unchecked.quarantine_path(run_id),
            )
            note.clear()
            told = f"an earlier run here ({run_id}) ended before its check; it was made up for"
            findings += [Finding("workspace", "medium", told), *found]
        return tuple(findings)

    def _lease_of(self, opened: _Opened, action: Action) -> Lease:
        """One action's view of an open workspace."""
        mount, session = opened.mount, opened.session
        if opened.written is None or session is None:
            return Lease(mount, workspace_id=session.id if session else None)
        if mount.mode is WorkspaceMode.COPY_ON_WRITE:
            return LayeredLease(
                mount, workspace_id=session.id, beneath=opened.written, settings=self._settings
            )
        # Of a private folder nothing is the user's to protect.
        baseline = opened.baseline
        nothing = Baseline(before=(), started_ns=time.clock_gettime_ns(COARSE_CLOCK))
        return WrittenLease(
            mount,
            workspace_id=session.id,
            beneath=opened.written,
            settings=self._settings,
            protection=self._protection.with_paths(baseline.paths) if baseline else Protection(()),
            baseline=baseline or nothing,
            action=action,
            quarantine_dir=session.quarantine_path,
            earlier=opened.earlier,
        )

    def operate(self, action: Action) -> object:
        """One call of the file API (FS-7), on descriptors beneath the workspace only."""
        operation = action.operation
        if not isinstance(operation, FileOperation) or action.session_id is None:
            raise BadInput("file operations need a session's workspace")
        session = self._store.session(action.session_id)
        if session.request.mode is WorkspaceMode.COPY_ON_WRITE:
            return self._operate_on_layers(session, operation, action)
        with ExitStack() as stack:
            beneath = stack.enter_context(
                self._beneath_of(session, writing=operation.name in _WRITING)
            )
            if session.request.mode is WorkspaceMode.READ_ONLY and operation.name in _WRITING:
                raise WorkspaceError(
                    "the workspace is read-only",
                    hint="Create the sandbox with the directory as :rw or :cow.",
                    code="CW-WORKSPACE-READ-ONLY",
                )
            if operation.name == "watch":
                from cellwall.sandbox.files.watcher import Watcher  # noqa: PLC0415  # as below

                watcher = Watcher(beneath, operation.path, recursive=operation.recursive)
                stack.pop_all()  # the descriptor is the watcher's for as long as it lives
                return watcher
            return self._perform(beneath, operation, action)

    def _operate_on_layers(
        self, session: Session, operation: FileOperation, action: Action
    ) -> object:
        """The same on the merged view: the host's directory is its lower layer, and only read."""
        with ExitStack() as stack:
            view, upper = self._borrow_view(session, action, stack)
            if operation.name == "watch":
                from cellwall.sandbox.files.watcher import Watcher  # noqa: PLC0415  # as below

                with ExitStack() as failed:
                    root = failed.enter_context(self._watched_root(os.dup(view)))
                    watcher = Watcher(root, operation.path, recursive=operation.recursive)
                    failed.pop_all()  # the root is the watcher's for as long as it lives
                self._views.attach(session.id, watcher, self._watched_root)
                return watcher
            judge = self._judge(view, writing=operation.name in _WRITING)
            merged = MergedBeneath(view, upper=upper, judge=judge, limits=action.limits)
            return self._perform(merged, operation, action)

    def _borrow_view(self, session: Session, action: Action, stack: ExitStack) -> tuple[int, Root]:
        """The view, and copies of the session's descriptors: should it end meanwhile, their numbers
        would soon be those of somebody else's directories."""
        with self._locked(session.id) as own:  # under which the session does not close its own
            opened = self._hold(own, session.id, action).opened
            mount, upper = opened.mount, opened.written
            assert mount.dir_fd is not None  # noqa: S101  # all three by copy-on-write's meaning
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

    def _watched_root(self, descriptor: int) -> Root:
        return Root(descriptor, judge=self._judge(descriptor, writing=False))

    def _beneath_of(self, session: Session, *, writing: bool) -> Beneath:
        if session.request.mode is WorkspaceMode.PRIVATE:
            return Beneath.open(session.files_path)
        descriptor, _path = self._store.open_directory(session)
        return Beneath(descriptor, judge=self._judge(descriptor, writing=writing))

    def _judge(self, descriptor: int, *, writing: bool) -> Judge:
        """Of the names, of git directories there by any name, of programs that git runs and of
        texts that agents obey by another name."""
        root = Root(descriptor)  # borrowed: closed by whom it belongs to
        paths: set[str] = set()
        if writing and self._protection.entries:
            most = self._settings.max_walk_entries
            found = protected_paths.scan(root, self._protection, max_entries=most)
            paths |= protected_paths.obeyed_paths(root, found)
            paths |= protected_paths.steered_paths(root, found).keys()
        return protected_paths.judge_for(self._protection.with_paths(paths), root)

    def _perform(self, beneath: Beneath, operation: FileOperation, action: Action) -> object:
        limits, blocked = action.limits, self._settings.blocked_extensions
        result: object = None
        match operation.name:
            case "read":
                result = beneath.read(operation.path, max_bytes=self._settings.max_file_read_bytes)
            case "write":
                beneath.write(
                    operation.path,
                    operation.content,
                    max_file_bytes=limits.file_size_bytes,
                    max_total_bytes=limits.disk_bytes,
                    max_files=limits.file_count,
                    blocked_extensions=blocked,
                )
            case "list":
                result = beneath.list(operation.path)
            case "stat":
                result = beneath.stat(operation.path)
            case "exists":
                result = beneath.exists(operation.path)
            case "make_dir":
                beneath.make_dir(operation.path, max_files=limits.file_count)
            case "move":
                beneath.move(operation.path, operation.target, blocked_extensions=blocked)
            case "remove":
                beneath.remove(operation.path, recursive=True)
            case "upload" | "download":
                result = self._transfer(beneath, operation, action)
        return result

    def _transfer(self, beneath: Beneath, operation: FileOperation, action: Action) -> Transfer:
        # Not needed by most programs, and slow to load.
        from cellwall.sandbox.files.tar_transfer import (  # noqa: PLC0415
            Room,
            pack,
            unpack,
        )

        limits = action.limits
        room = Room(
            max_file_bytes=limits.file_size_bytes,
            max_total_bytes=limits.disk_bytes,
            max_files=limits.file_count,
            blocked_extensions=self._settings.blocked_extensions,
        )
        if operation.name == "upload" and operation.source is not None:
            return unpack(beneath, operation.path, operation.source, room=room)
        if operation.name == "download" and operation.sink is not None:
            return pack(
                beneath, operation.path, operation.sink, room=room, skip_links=operation.skip_links
            )
        raise BadInput("an upload needs a source, a download somewhere to go")


_WRITING = frozenset({"write", "make_dir", "move", "remove", "upload"})


def _clear_if_checked(opened: _Opened, lease: Lease) -> None:
    if opened.note is not None and isinstance(lease, WrittenLease) and lease.is_checked:
        opened.note.clear()
