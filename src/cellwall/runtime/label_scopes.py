"""The labels of one session or of one conversation of an agent, in memory (POL-9)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cellwall.core.labels import (
    MAX_SOURCES,
    MORE_SOURCES,
    Label,
    LabelKey,
    LabelSet,
    LabelSource,
)
from cellwall.core.types import Action, ToolResult, UseTool, WorkspaceRequest
from cellwall.runtime.label_files import Stamp, Stored

_PRIVATE = WorkspaceRequest()


@dataclass(slots=True, eq=False)
class LabelScope:
    """A session or a conversation: its labels, and those of actions that were judged and have not
    begun."""

    path: str | None
    """None: a single run, which ends with its action."""
    workspace: WorkspaceRequest = _PRIVATE
    stored: Stored = field(default_factory=dict)
    pending: dict[int, tuple[LabelSource, ...]] = field(default_factory=dict)
    stamp: Stamp | None = None
    """Of the file of a conversation, when it was read."""

    def held_beside(self, number: int) -> LabelSet:
        """All labels, without those that this action itself is about to bring."""
        found = {key: source for key, (source, _) in self.stored.items()}
        for other, sources in self.pending.items():
            if other != number:
                found |= {each.key: each for each in sources if each.key not in found}
        return LabelSet(tuple(found.values()))

    @property
    def admitted(self) -> set[LabelKey]:
        return {key for key, (_, is_admitted) in self.stored.items() if is_admitted}

    def add(self, sources: Iterable[LabelSource], admitted: frozenset[LabelKey]) -> set[LabelKey]:
        """What has changed."""
        changed: set[LabelKey] = set()
        for source in sources:
            kept = source
            if source.key not in self.stored and self._is_full(source.label):
                kept = LabelSource(source.label, MORE_SOURCES, source.action_id)
            is_admitted = kept is source and source.key in admitted
            before = self.stored.get(kept.key)
            if before is None or (is_admitted and not before[1]):
                self.stored[kept.key] = (before[0] if before else kept, is_admitted)
                changed.add(kept.key)
        return changed

    def _is_full(self, label: Label) -> bool:
        return sum(key[0] is label for key in self.stored) >= MAX_SOURCES

    def withdraw_egress(self) -> set[LabelKey]:
        """The three have met without a person's consent: sending anything needs one from now on."""
        changed = {key for key in self.stored if key[0] is Label.EGRESS}
        for key in changed:
            self.stored[key] = (self.stored[key][0], False)
        return changed


def context_of(action: Action) -> str:
    """The name of the conversation to which an action belongs; empty: to none."""
    operation = action.operation
    if isinstance(operation, UseTool | ToolResult) and operation.agent_session:
        return f"agent {operation.agent_session}"
    if action.context or action.session_id is not None or not action.tools:
        return action.context
    return run_context(action)


def run_context(action: Action) -> str:
    """Of a single run and the calls of host functions that its code makes."""
    return f"run {action.id}"
