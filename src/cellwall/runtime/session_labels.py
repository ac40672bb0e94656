"""The labels of sessions (POL-9): what each action brings, and whether the three would meet.

   (1) judge: what the action brings, beside what the session has and what other actions of the
       session are about to bring; these three together are judged, without an await in between
   (2) commit: the session has the labels before the action has an effect; if another process has
       changed them since, the action is judged again
   (3) end: a refused action brings nothing; what the guard found in a result is added

Labels belong to a session, and to the conversation of the agent that uses several sessions, which
carries content from one to the other: `Action.context`. So a session in which the agent acts has
read what the conversation has read, also for those who use its files later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from cellwall.config.models import Settings
from cellwall.core.errors import CellwallError, Denied
from cellwall.core.labels import FlowMode, Label, LabelSet, LabelSource, is_complete
from cellwall.core.outcomes import Finding, Outcome
from cellwall.core.tool_servers import CallServerTool
from cellwall.core.types import Action, FetchUrl, Json, UseTool, WorkspaceMode
from cellwall.core.verdict import Decision, Verdict
from cellwall.policy.rule_of_two import object_to, unconsented
from cellwall.runtime.action_labels import NOTHING, BroughtLabels, LabelRules, finding_sources
from cellwall.runtime.label_scopes import LabelScope, context_of, run_context
from cellwall.runtime.label_store import LabelStore
from cellwall.runtime.tool_places import places_of
from cellwall.sandbox.workspace.store import StoredWorkspace

_MODES: Mapping[str, FlowMode] = {"ask": "ask", "deny": "deny", "show": "show"}
_NO_LABELS = LabelSet()
_VERDICTS = {"ask": Verdict.ASK, "deny": Verdict.DENY}


def flow_mode(settings: Settings) -> FlowMode:
    """What follows where the three labels would meet."""
    policy = settings.policy
    if policy.dangerously_without_rule_of_two or policy.dangerously_observe:
        return "show"
    return _MODES[policy.rule_of_two]


class SessionLabels(LabelStore):
    """Implements `LabelsPort`."""

    def __init__(
        self,
        home: str,
        *,
        find_workspace: Callable[[str], StoredWorkspace],
        mode: FlowMode,
        rules: LabelRules,
    ) -> None:
        super().__init__(home, find_workspace=find_workspace)
        self.mode: FlowMode = mode
        self.rules = rules

    def begin(self, action: Action) -> ActionLabels:
        return ActionLabels(self, action)

    def label_session(self, action: Action) -> None:
        labels = self.begin(action)
        labels.judge(action)
        labels.commit()


class ActionLabels:
    """Implements `ActionLabelsPort`."""

    __slots__ = (
        "_action",
        "_admits_all",
        "_brought",
        "_needed",
        "_own",
        "_owner",
        "_server",
        "_shared",
    )

    def __init__(self, owner: SessionLabels, action: Action) -> None:
        self._owner, self._action = owner, action
        self._brought = NOTHING
        self._needed: tuple[LabelSource, ...] = ()
        self._shared: LabelScope | None = None
        """Of the conversation."""
        self._own: LabelScope | None = None
        """Of the session, or of this single run."""
        self._server: LabelScope | None = None
        """Of the session of the server whose tool is called."""
        self._admits_all = False

    def judge(self, action: Action, *, is_named: bool = False) -> Decision | None:
        owner = self._owner
        self._action = action
        with owner.lock:
            self._find_scopes(action)
            self._brought = brought = self._collect(action, is_named=is_named)
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

    def narrow(self, action: Action) -> Action:
        """Attack: a host with consent that redirects, with the data in the address, to another."""
        scope, owner = self._scope, self._owner
        if not isinstance(action.operation, FetchUrl) or scope is None or owner.mode == "show":
            return action
        with owner.lock:
            return owner.rules.without_redirects(action, scope.held.labels, scope.admitted)

    def commit(self) -> dict[str, Json]:
        scope, owner = self._scope, self._owner
        if scope is None:
            return {}
        with owner.lock:
            scope.pending.pop(id(self), None)
            if not self._is_known:
                self._take_over()
            held = scope.held
            if held.sources:
                self._taint_directories(held)
            return scope.shown

    def keep_with(self, workspace_id: str | None) -> None:
        action, scope = self._action, self._scope
        is_copy = action.workspace.mode is WorkspaceMode.COPY_ON_WRITE
        if workspace_id is not None and action.session_id is None and is_copy and scope is not None:
            self._owner.keep_with(workspace_id, scope.held.sources)

    def receive(self, findings: Sequence[Finding]) -> dict[str, Json]:
        """The result of a tool that has run on the agent's host, perhaps after its user's yes."""
        with self._owner.lock:
            self._find_scopes(self._action)
            self._brought = self._collect(self._action, is_named=False)
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
                        self.keep_with(None if outcome is None else outcome.workspace_id)
        if action.session_id is None and context_of(action) == run_context(action):
            owner.end_context(run_context(action))

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
        context, owner = context_of(action), self._owner
        if context:
            self._shared = owner.context_scope(context)
        if action.session_id is None:
            self._own = LabelScope(None, action.workspace)
        elif isinstance(action.operation, CallServerTool):
            self._server = owner.session_scope(action.session_id)
        else:
            self._own = owner.session_scope(action.session_id)

    def _collect(self, action: Action, *, is_named: bool) -> BroughtLabels:
        own, owner, server, operation = self._own, self._owner, self._server, action.operation
        place = None if own is None else own.place
        reads: tuple[str, ...] = () if place is None else (place,)
        if isinstance(operation, UseTool):
            reads = places_of(operation).read
        of_server = _NO_LABELS if server is None else server.of_server()
        brought = owner.rules.labels_of(action, directory=place, server=of_server)
        if is_named:
            brought = BroughtLabels(brought.sources, brought.keys)
        content = owner.folder.content_in_all(reads)
        if content:
            brought = brought.joined(content) if own is None else own.joined(brought, content)
        shared, other = self._shared, own or server
        if shared is None or other is None or other.keys <= shared.keys:
            return brought
        # What the session has read elsewhere comes into the conversation with its use.
        new = (other.keys if server is None else server.carried) - shared.keys
        return brought.joined([each for each in other.held.sources if each.key in new])

    @property
    def _is_known(self) -> bool:
        """Nothing is to be added: so it is for most actions."""
        keys, shared, other = self._brought.keys, self._shared, self._own or self._server
        return all(
            scope is None or (keys <= scope.admitted and not scope.unsaved)
            for scope in (shared, self._own)
        ) and (shared is None or other is None or other.carried_from is shared.held)

    def _take_over(self) -> None:
        """The session and the conversation get the labels; in the files first the conversation."""
        owner, shared, own = self._owner, self._shared, self._own
        needed = () if self._admits_all else (each.key for each in self._needed)
        sources, admitted = self._sources, self._brought.keys.difference(needed)
        with owner.changing(shared) as is_other:
            if shared is not None:
                if is_other:
                    self._judge_again(shared)
                shared.add(sources, admitted)
        if own is not None:
            own.add(sources, admitted)
        other = own or self._server
        if shared is not None and other is not None:
            other.carry(shared.held)
        owner.save(other)

    def _judge_again(self, scope: LabelScope) -> None:
        """Attack: two hooks at once, in two processes, that each bring one of the last two."""
        sources, owner = self._sources, self._owner
        held = scope.held_beside(id(self))
        needed = unconsented(held, sources, admitted=scope.admitted, named=self._brought.named)
        if not needed or owner.mode not in _VERDICTS:
            return
        reason = object_to(held, sources, verdict=Verdict.DENY, action_id=self._action.id).reason
        raise Denied(
            f"another action has changed the labels meanwhile: {reason}",
            hint="Try it again: a person is asked then.",
            code="CW-RULE-OF-TWO",
        )

    def _observe(self, sources: tuple[LabelSource, ...]) -> None:
        """Add labels without a question."""
        owner, shared, own = self._owner, self._shared, self._own
        if own is not None:
            _add_unasked(own, sources)
        with owner.changing(shared):
            if shared is not None:
                _add_unasked(shared, sources)
        owner.save(own)

    def _taint_directories(self, held: LabelSet) -> None:
        """Before the action writes: a run may end with the power of the host."""
        operation, folder = self._action.operation, self._owner.folder
        other = self._own or self._server
        if isinstance(operation, UseTool):
            for place in places_of(operation).written:
                folder.taint(place, held.of(Label.UNTRUSTED))
        elif other is not None and other.workspace.mode is WorkspaceMode.READ_WRITE and other.place:
            state = held, folder.stamp
            if other.tainted != state:  # also after a person has cleared the label meanwhile
                folder.taint(other.place, held.of(Label.UNTRUSTED))
                other.tainted = held, folder.stamp


def _add_unasked(scope: LabelScope, sources: tuple[LabelSource, ...]) -> None:
    had_consent = is_complete(label for label, _ in scope.admitted)
    if scope.add(sources, frozenset()) and not had_consent and scope.held.is_complete:
        scope.withdraw_egress()
