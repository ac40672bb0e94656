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
from cellwall.core.types import Action, Json, UseTool, WorkspaceMode, check_id
from cellwall.core.verdict import Decision, Verdict
from cellwall.policy.rule_of_two import object_to, unconsented
from cellwall.runtime.action_labels import NOTHING, BroughtLabels, LabelRules, finding_sources
from cellwall.runtime.label_files import (
    LABELS_FILE,
    LabelFolder,
    Stored,
    read_labels,
    stamp_of,
    write_labels,
)
from cellwall.runtime.label_scopes import LabelScope, context_of, real_directory, run_context
from cellwall.sandbox.workspace.store import StoredWorkspace

_MODES: Mapping[str, FlowMode] = {"ask": "ask", "deny": "deny", "show": "show"}
_NO_LABELS = LabelSet()
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

    def label_session(self, action: Action) -> None:
        labels = self.begin(action)
        labels.judge(action)
        labels.commit()

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
            scope.update(read_labels(path))
            scope.stamp = stamp
        return scope

    def save(self, scope: LabelScope, changed: set[LabelKey], *, is_shared: bool) -> None:
        if scope.path is None or not changed:
            return
        if is_shared:
            own: Stored = {key: scope.stored[key] for key in changed}
            scope.update(self.folder.merge(scope.path, own))
            scope.stamp = stamp_of(scope.path)
        else:
            write_labels(scope.path, scope.stored)


class ActionLabels:
    """Implements `ActionLabelsPort`."""

    __slots__ = ("_action", "_admits_all", "_brought", "_needed", "_own", "_owner", "_shared")

    def __init__(self, owner: SessionLabels, action: Action) -> None:
        self._owner, self._action = owner, action
        self._brought = NOTHING
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
            self._brought = brought = self._collect(action)
            scope = self._scope
            if scope is None or brought.keys <= scope.admitted:
                return None  # nothing new, and all with consent
            sources = self._sources
            held = scope.held_beside(id(self))
            self._needed = unconsented(held, sources, admitted=scope.admitted, named=brought.named)
            # Another action that is judged now must see it, whatever this one still waits for.
            scope.pending[id(self)] = sources
        verdict = _VERDICTS.get(owner.mode)
        if not self._needed or verdict is None:
            return None
        return object_to(held, sources, verdict=verdict, action_id=action.id)

    def admit_for_session(self) -> None:
        self._admits_all = True

    def commit(self) -> dict[str, Json]:
        scope, owner = self._scope, self._owner
        if scope is None:
            return {}
        with owner.lock:
            scope.pending.pop(id(self), None)
            keys = self._brought.keys
            if not (keys <= scope.admitted and (self._own is None or keys <= self._own.admitted)):
                needed = () if self._admits_all else (each.key for each in self._needed)
                self._add(self._sources, keys.difference(needed))
            held, shown = scope.held, scope.shown
        if held.sources:
            self._taint_directory(held)
        return shown

    def receive(self, findings: Sequence[Finding]) -> dict[str, Json]:
        """The result of a tool that has run on the agent's host, perhaps after its user's yes."""
        with self._owner.lock:
            self._find_scopes(self._action)
            self._brought = self._collect(self._action)
            if self._scope is None:
                return {}
            self._observe((*self._sources, *finding_sources(self._action.id, findings)))
            return self._scope.shown

    def end(self, outcome: Outcome | None) -> None:
        scope, owner, action = self._scope, self._owner, self._action
        if scope is None:
            return
        findings = () if outcome is None else outcome.findings
        if findings or scope.pending:
            with owner.lock:
                scope.pending.pop(id(self), None)
                if found := finding_sources(action.id, findings):
                    with suppress(CellwallError):  # the outcome is there: memory has the label
                        self._observe(found)
        if action.session_id is not None:
            return
        if context_of(action) == run_context(action):
            owner.end_context(run_context(action))
        is_copy = action.workspace.mode is WorkspaceMode.COPY_ON_WRITE
        if outcome is not None and outcome.workspace_id is not None and is_copy:
            owner.keep_with(outcome.workspace_id, scope.held.sources)

    # --- under the lock

    @property
    def _scope(self) -> LabelScope | None:
        """Where the three must not meet."""
        return self._shared or self._own

    @property
    def _sources(self) -> tuple[LabelSource, ...]:
        """What the action brings, by this action unless it came from elsewhere."""
        action_id = self._action.id
        return tuple(
            each if each.action_id else LabelSource(each.label, each.name, action_id)
            for each in self._brought.sources
        )

    def _find_scopes(self, action: Action) -> None:
        context = context_of(action)
        if context:
            self._shared = self._owner.context_scope(context)
        if action.session_id is None:
            self._own = LabelScope(None, action.workspace)
        elif not isinstance(action.operation, CallServerTool):  # whose session is the server's
            self._own = self._owner.session_scope(action.session_id)

    def _collect(self, action: Action) -> BroughtLabels:
        own, owner = self._own, self._owner
        place = None if own is None else own.place
        read = place
        if isinstance(action.operation, UseTool):
            read = real_directory(action.operation.cwd)
        server = _NO_LABELS
        if isinstance(action.operation, CallServerTool) and action.session_id is not None:
            server = owner.session_scope(action.session_id).held
        brought = owner.rules.labels_of(action, directory=place, server=server)
        content = () if read is None else owner.folder.content_in(read)
        if content:
            brought = brought.joined(content) if own is None else own.joined(brought, content)
        if self._shared is None or own is None or own.keys <= self._shared.keys:
            return brought
        # What the session has read elsewhere comes into the conversation with its use.
        inherited = [each for each in own.held.sources if each.key not in self._shared.keys]
        return brought.joined(inherited)

    def _add(self, sources: Iterable[LabelSource], admitted: frozenset[LabelKey]) -> None:
        for scope, is_shared in ((self._shared, True), (self._own, False)):
            if scope is not None:
                self._owner.save(scope, scope.add(sources, admitted), is_shared=is_shared)

    def _observe(self, sources: tuple[LabelSource, ...]) -> None:
        """Add labels without a question."""
        for scope, is_shared in ((self._shared, True), (self._own, False)):
            if scope is None:
                continue
            was_complete = scope.held.is_complete
            changed = scope.add(sources, frozenset())
            if changed and not was_complete and scope.held.is_complete:
                changed |= scope.withdraw_egress()
            self._owner.save(scope, changed, is_shared=is_shared)

    def _taint_directory(self, held: LabelSet) -> None:
        """Before the action writes: a run may end with the power of the host."""
        operation, own, folder = self._action.operation, self._own, self._owner.folder
        if isinstance(operation, UseTool) and operation.tool in _WRITERS:
            folder.taint(real_directory(operation.cwd), held.of(Label.UNTRUSTED))
        elif own is not None and own.workspace.mode is WorkspaceMode.READ_WRITE and own.place:
            state = held, folder.stamp
            if own.tainted != state:  # also after a person has cleared the label meanwhile
                folder.taint(own.place, held.of(Label.UNTRUSTED))
                own.tainted = held, folder.stamp


def recorded_labels(home: str, session_id: str) -> LabelSet:
    """The labels of a session, also of one of another process, or of a kept workspace."""
    path = os.path.join(home, "workspaces", check_id(session_id), LABELS_FILE)
    return LabelSet(tuple(source for source, _ in read_labels(path).values()))
