"""The labels of sessions (POL-9): what each action brings, and whether the three would meet.

   (1) judge: what the action brings, beside what the session has and what other actions of the
       session are about to bring; these three together are judged, without an await in between
   (2) commit: the session has the labels before the action has an effect
   (3) end: a refused action brings nothing; what the guard found in a result is added

Labels belong to a session, and to the conversation of the agent that uses several sessions, which
carries content from one to the other: `Action.context`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from cellwall.config.models import Settings
from cellwall.core.errors import CellwallError
from cellwall.core.labels import FlowMode, Label, LabelKey, LabelSet, LabelSource
from cellwall.core.outcomes import Finding, Outcome
from cellwall.core.tool_servers import CallServerTool
from cellwall.core.types import (
    Action,
    Json,
    UseTool,
    WorkspaceMode,
    WorkspaceRequest,
    check_id,
)
from cellwall.core.verdict import Decision, Verdict
from cellwall.policy.rule_of_two import object_to, unconsented
from cellwall.runtime.action_labels import BroughtLabels, LabelRules, finding_sources
from cellwall.runtime.label_files import (
    LABELS_FILE,
    LabelFolder,
    Stored,
    read_labels,
    stamp_of,
    write_labels,
)
from cellwall.runtime.label_scopes import LabelScope, context_of, run_context
from cellwall.sandbox.workspace.store import StoredWorkspace

_MODES: Mapping[str, FlowMode] = {"ask": "ask", "deny": "deny", "show": "show"}
_VERDICTS = {"ask": Verdict.ASK, "deny": Verdict.DENY}
_MAX_CONTEXTS = 1000
_WRITERS = frozenset({"Bash", "Write", "Edit", "MultiEdit", "NotebookEdit"})


def flow_mode(settings: Settings) -> FlowMode:
    """What follows where the three labels would meet."""
    policy = settings.policy
    if policy.dangerously_without_rule_of_two or policy.dangerously_observe:
        return "show"
    return _MODES[policy.rule_of_two]


class SessionLabels:
    """Implements `LabelsPort`."""

    def __init__(
        self,
        home: str,
        *,
        find_workspace: Callable[[str], StoredWorkspace],
        mode: FlowMode,
        rules: LabelRules,
    ) -> None:
        self._home = home
        self.folder = LabelFolder(home)
        self.mode: FlowMode = mode
        self.rules = rules
        self._find_workspace = find_workspace
        self._sessions: dict[str, LabelScope] = {}
        self._contexts: dict[str, LabelScope] = {}
        self.lock = threading.Lock()
        """Actions of one session may run on several event loops."""

    def begin(self, action: Action) -> ActionLabels:
        return ActionLabels(self, action)

    def of_session(self, session_id: str) -> LabelSet:
        with self.lock:
            scope = self._sessions.get(session_id)
            if scope is not None:
                return scope.held_beside(0)
        return recorded_labels(self._home, session_id)

    def of_context(self, context: str) -> LabelSet:
        """The labels of the conversation of an agent."""
        with self.lock:
            return self.context_scope(context).held_beside(0)

    def resume(self, session_id: str, resumed_id: str) -> None:
        """Egress is no property of files, and consent ended with the session that had it."""
        kept = read_labels(os.path.join(self._find_workspace(resumed_id).folder, LABELS_FILE))
        stored: Stored = {
            key: (source, False) for key, (source, _) in kept.items() if key[0] is not Label.EGRESS
        }
        if stored:
            path = os.path.join(self._find_workspace(session_id).folder, LABELS_FILE)
            write_labels(path, stored)

    def apply_changes(self, session_id: str, directory: str) -> None:
        untrusted = self.of_session(session_id).of(Label.UNTRUSTED)
        if untrusted:
            self.folder.taint(directory, untrusted)

    def keep_with(self, workspace_id: str, sources: Iterable[LabelSource]) -> None:
        """A single run has left changes that may be applied later."""
        with suppress(CellwallError):
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
        scope = self._sessions.get(session_id)
        if scope is None:
            try:
                workspace = self._find_workspace(session_id)
            except CellwallError:  # of no workspace: nothing is kept, either
                scope = LabelScope(None)
            else:
                path = os.path.join(workspace.folder, LABELS_FILE)
                scope = LabelScope(path, workspace.request, read_labels(path))
            self._sessions[session_id] = scope
        return scope

    def context_scope(self, context: str) -> LabelScope:
        scope = self._contexts.get(context)
        path = self.folder.path_of(context)
        if scope is None:
            if len(self._contexts) >= _MAX_CONTEXTS:  # the files have all that is dropped here
                idle = next((key for key, each in self._contexts.items() if not each.pending), None)
                if idle is not None:
                    del self._contexts[idle]
            scope = self._contexts[context] = LabelScope(path)
        # A hook that ran alone, in a process of its own, may have changed the file.
        if (stamp := stamp_of(path)) != scope.stamp:
            scope.stored, scope.stamp = {**scope.stored, **read_labels(path)}, stamp
        return scope

    def save(self, scope: LabelScope, changed: set[LabelKey], *, is_shared: bool) -> None:
        if scope.path is None or not changed:
            return
        if is_shared:
            own: Stored = {key: scope.stored[key] for key in changed}
            scope.stored = {**scope.stored, **self.folder.merge(scope.path, own)}
            scope.stamp = stamp_of(scope.path)
        else:
            write_labels(scope.path, scope.stored)


class ActionLabels:
    """Implements `ActionLabelsPort`."""

    __slots__ = ("_action", "_admits_all", "_brought", "_needed", "_own", "_owner", "_shared")

    def __init__(self, owner: SessionLabels, action: Action) -> None:
        self._owner, self._action = owner, action
        self._brought = BroughtLabels(())
        self._needed: tuple[LabelSource, ...] = ()
        self._shared: LabelScope | None = None
        """Of the conversation."""
        self._own: LabelScope | None = None
        """Of the session, or of this single run."""
        self._admits_all = False

    def judge(self, action: Action) -> Decision | None:
        owner = self._owner
        self._action = action
        with owner.lock:
            self._find_scopes(action)
            self._brought = self._collect(action)
            scope = self._scope
            if scope is None or not self._brought.sources:
                return None
            held = scope.held_beside(id(self))
            self._needed = unconsented(
                held,
                self._brought.sources,
                admitted=scope.admitted,
                named=self._brought.named,
            )
            # Another action that is judged now must see it, whatever this one still waits for.
            scope.pending[id(self)] = self._brought.sources
        verdict = _VERDICTS.get(owner.mode)
        if not self._needed or verdict is None:
            return None
        return object_to(held, self._brought.sources, verdict=verdict, action_id=action.id)

    def admit_for_session(self) -> None:
        self._admits_all = True

    def commit(self) -> dict[str, Json]:
        scope, owner = self._scope, self._owner
        if scope is None or not (self._brought.sources or scope.stored):
            return {}
        needed = frozenset() if self._admits_all else {each.key for each in self._needed}
        admitted = frozenset(each.key for each in self._brought.sources) - needed
        with owner.lock:
            scope.pending.pop(id(self), None)
            self._add(self._brought.sources, admitted)
            held = scope.held_beside(0)
        self._taint_directory(held)
        return held.to_json()

    def receive(self, findings: Sequence[Finding]) -> dict[str, Json]:
        """The result of a tool that has run on the agent's host, perhaps after its user's yes."""
        with self._owner.lock:
            self._find_scopes(self._action)
            found = finding_sources(self._action.id, findings)
            if self._scope is None:
                return {}
            self._observe((*self._collect(self._action).sources, *found))
            return self._scope.held_beside(0).to_json()

    def end(self, outcome: Outcome | None) -> None:
        scope, owner = self._scope, self._owner
        if scope is None:
            return
        found = () if outcome is None else finding_sources(self._action.id, outcome.findings)
        with owner.lock:
            scope.pending.pop(id(self), None)
            if found:
                with suppress(CellwallError):  # the outcome is there: memory has the label
                    self._observe(found)
        action, held = self._action, scope.held_beside(0)
        if context_of(action) == run_context(action):
            owner.end_context(run_context(action))
        if outcome is None or outcome.workspace_id is None or action.session_id is not None:
            return
        if action.workspace.mode is WorkspaceMode.COPY_ON_WRITE and held.sources:
            owner.keep_with(outcome.workspace_id, held.sources)

    # --- under the lock

    @property
    def _scope(self) -> LabelScope | None:
        """Where the three must not meet."""
        return self._shared or self._own

    def _find_scopes(self, action: Action) -> None:
        context = context_of(action)
        if context:
            self._shared = self._owner.context_scope(context)
        if action.session_id is None:
            self._own = LabelScope(None, action.workspace)
        elif not isinstance(action.operation, CallServerTool):  # whose session is the server's
            self._own = self._owner.session_scope(action.session_id)

    def _collect(self, action: Action) -> BroughtLabels:
        own = self._own
        request = WorkspaceRequest() if own is None else own.workspace
        place = request.directory if request.mode is not WorkspaceMode.PRIVATE else None
        if place is not None and action.session_id is None:
            place = os.path.realpath(place)
        read = place
        if isinstance(action.operation, UseTool):
            read = os.path.realpath(action.operation.cwd)
        server = LabelSet()
        if isinstance(action.operation, CallServerTool) and action.session_id is not None:
            server = self._owner.session_scope(action.session_id).held_beside(0)
        content = () if read is None else self._owner.folder.content_in(read)
        brought = self._owner.rules.labels_of(
            action, directory=place, content=content, server=server
        )
        if self._shared is not None and own is not None and own.stored:
            # What the session has read elsewhere comes into the conversation with its use.
            known = self._shared.stored
            inherited = [each for each, _ in own.stored.values() if each.key not in known]
            merged = dict.fromkeys((*brought.sources, *inherited))
            return BroughtLabels(tuple(merged), brought.named)
        return brought

    def _add(self, sources: Iterable[LabelSource], admitted: frozenset[LabelKey]) -> None:
        for scope, is_shared in ((self._shared, True), (self._own, False)):
            if scope is not None:
                self._owner.save(scope, scope.add(sources, admitted), is_shared=is_shared)

    def _observe(self, sources: tuple[LabelSource, ...]) -> None:
        """Add labels without a question."""
        for scope, is_shared in ((self._shared, True), (self._own, False)):
            if scope is None:
                continue
            was_complete = scope.held_beside(0).is_complete
            changed = scope.add(sources, frozenset())
            if changed and not was_complete and scope.held_beside(0).is_complete:
                changed |= scope.withdraw_egress()
            self._owner.save(scope, changed, is_shared=is_shared)

    def _taint_directory(self, held: LabelSet) -> None:
        """Before the action writes: a run may end with the power of the host."""
        operation, untrusted = self._action.operation, held.of(Label.UNTRUSTED)
        place: str | None = None
        if isinstance(operation, UseTool) and operation.tool in _WRITERS:
            place = operation.cwd
        elif self._own is not None and self._own.workspace.mode is WorkspaceMode.READ_WRITE:
            place = self._own.workspace.directory
        if place is not None and untrusted:
            self._owner.folder.taint(os.path.realpath(place), untrusted)


def recorded_labels(home: str, session_id: str) -> LabelSet:
    """The labels of a session, also of one of another process, or of a kept workspace."""
    path = os.path.join(home, "workspaces", check_id(session_id), LABELS_FILE)
    return LabelSet(tuple(source for source, _ in read_labels(path).values()))
