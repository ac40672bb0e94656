"""The labels of sessions and conversations, for the next action and the next process (POL-9)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from cellwall.core.ids import check_id
from cellwall.core.labels import Label, LabelSet, LabelSource
from cellwall.runtime.label_files import (
    LABELS_FILE,
    LabelFolder,
    Stored,
    append_labels,
    read_labels,
    stamp_of,
    write_labels,
)
from cellwall.runtime.label_scopes import LabelScope
from cellwall.sandbox.workspace.store import StoredWorkspace

_MAX_CONTEXTS = 1000


class LabelStore:
    """The labels of one state folder: in memory while a session lives, and beside its files."""

    def __init__(self, home: str, *, find_workspace: Callable[[str], StoredWorkspace]) -> None:
        self._home = home
        self.folder = LabelFolder(home)
        self._find_workspace = find_workspace
        self._sessions: dict[str, LabelScope] = {}
        self._contexts: dict[str, LabelScope] = {}
        self.lock = threading.Lock()
        """Actions of one session may run on several event loops."""

    def of_session(self, session_id: str) -> LabelSet:
        with self.lock:
            scope = self._sessions.get(session_id)
            if scope is not None:
                return scope.held
        return recorded_labels(self._home, session_id)

    def of_context(self, context: str) -> LabelSet:
        """The labels of the conversation of an agent."""
        with self.lock:
            return self.context_scope(context).held

    def resume(self, session_id: str, resumed_id: str) -> None:
        """Egress is no property of files, and consent ended with the session that had it."""
        kept = read_labels(os.path.join(self._find_workspace(resumed_id).folder, LABELS_FILE))
        stored: Stored = {
            key: (source, False) for key, (source, _) in kept.items() if key[0] is not Label.EGRESS
        }
        if stored:
            path = os.path.join(self._find_workspace(session_id).folder, LABELS_FILE)
            write_labels(path, stored)

    def keep_in(self, session_id: str, folder: str) -> None:
        """In the folder of a snapshot; see `resume` for what is not kept."""
        sources = self.of_session(session_id).sources
        stored: Stored = {
            each.key: (each, False) for each in sources if each.label is not Label.EGRESS
        }
        if stored:
            write_labels(os.path.join(folder, LABELS_FILE), stored)

    def begin_with(self, session_id: str, folder: str) -> None:
        """The labels of a snapshot, for a session that is made from it."""
        stored = read_labels(os.path.join(folder, LABELS_FILE))
        if stored:
            path = os.path.join(self._find_workspace(session_id).folder, LABELS_FILE)
            write_labels(path, stored)

    def apply_changes(self, session_id: str, directory: str) -> None:
        untrusted = self.of_session(session_id).of(Label.UNTRUSTED)
        if untrusted:
            self.folder.taint(directory, untrusted)

    def keep_with(self, workspace_id: str, sources: Iterable[LabelSource]) -> None:
        """A single run leaves changes that may be applied later; raises where no file can tell."""
        folder = self._find_workspace(workspace_id).folder
        stored: Stored = {each.key: (each, False) for each in sources}
        write_labels(os.path.join(folder, LABELS_FILE), stored)

    def end_session(self, session_id: str) -> None:
        with self.lock:
            self._sessions.pop(session_id, None)

    def end_context(self, context: str) -> None:
        """The conversation is over."""
        with self.lock:
            scope = self._contexts.pop(context, None)
        if scope is not None and scope.path is not None:
            self.folder.remove(scope.path)

    # --- under the lock

    def session_scope(self, session_id: str) -> LabelScope:
        """Raises where the session has no workspace, or none that can be read: its labels would be
        unknown."""
        scope = self._sessions.get(session_id)
        if scope is None:
            workspace = self._find_workspace(session_id)
            path = os.path.join(workspace.folder, LABELS_FILE)
            scope = LabelScope(path, workspace.request, read_labels(path))
            self._sessions[session_id] = scope
        return scope

    def context_scope(self, context: str) -> LabelScope:
        scope = self._contexts.get(context)
        if scope is None:
            if len(self._contexts) >= _MAX_CONTEXTS:  # the files have all that is dropped here
                idle = next((key for key, each in self._contexts.items() if not each.pending), None)
                if idle is not None:
                    del self._contexts[idle]
            scope = self._contexts[context] = LabelScope(self.folder.path_of(context))
        self.refresh(scope)
        return scope

    def refresh(self, scope: LabelScope) -> bool:
        """Take over what another process has written, such as a hook that ran alone; whether there
        was anything."""
        if scope.path is None or (stamp := stamp_of(scope.path)) == scope.stamp:
            return False
        before = scope.held
        scope.update(read_labels(scope.path))
        scope.stamp = stamp
        self.folder.touch(scope.path, stamp)
        return scope.held != before

    @contextmanager
    def changing(self, scope: LabelScope | None) -> Iterator[bool]:
        """Change a conversation, and save it. No other process changes it meanwhile; tells whether
        one has before."""
        if scope is None or scope.path is None:
            yield False
            return
        with self.folder.locked():
            yield self.refresh(scope)
            if scope.unsaved:
                self.folder.append_to_context(scope.path, scope.to_save)
                scope.stamp = stamp_of(scope.path)
                scope.unsaved.clear()

    def save(self, scope: LabelScope | None) -> None:
        """The labels of a session, which no other process changes."""
        if scope is not None and scope.path is not None and scope.unsaved:
            append_labels(scope.path, scope.to_save)
            scope.unsaved.clear()


def recorded_labels(home: str, session_id: str) -> LabelSet:
    """The labels of a session, also of one of another process, or of a kept workspace."""
    path = os.path.join(home, "workspaces", check_id(session_id), LABELS_FILE)
    return LabelSet(tuple(source for source, _ in read_labels(path).values()))
