"""The labels of one session or of one conversation of an agent, in memory (POL-9)."""

from __future__ import annotations

import os
from collections.abc import Iterable

from cellwall.core.errors import WorkspaceError
from cellwall.core.labels import (
    MAX_SHOWN_SOURCES,
    MAX_SOURCES,
    MORE_SOURCES,
    Label,
    LabelKey,
    LabelSet,
    LabelSource,
)
from cellwall.core.types import Action, Json, ToolResult, UseTool, WorkspaceMode, WorkspaceRequest
from cellwall.runtime.action_labels import BroughtLabels
from cellwall.runtime.label_files import Stamp, Stored

_PRIVATE = WorkspaceRequest()


def real_directory(path: str) -> str:
    """The directory to which labels belong, whatever links lead there. Raises `WorkspaceError` for
    a path that is none, or that another process changes now."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        raise WorkspaceError(
            "the directory of the workspace cannot be found for sure",
            hint="Name a directory that exists and that no process renames meanwhile.",
            code="CW-WORKSPACE-REFUSED",
        ) from None


class LabelScope:
    """A session or a conversation: its labels, and those of actions that were judged and have not
    begun. Most actions bring nothing new: what they ask for is kept ready."""

    __slots__ = (
        "_counts",
        "_held",
        "_joined",
        "_shown",
        "_stored",
        "admitted",
        "carried",
        "carried_from",
        "keys",
        "path",
        "pending",
        "place",
        "stamp",
        "tainted",
        "unsaved",
        "workspace",
    )

    def __init__(
        self, path: str | None, workspace: WorkspaceRequest = _PRIVATE, stored: Stored | None = None
    ) -> None:
        self.path = path
        """None: a single run, which ends with its action."""
        self.workspace = workspace
        place = None if workspace.mode is WorkspaceMode.PRIVATE else workspace.host_path
        self.place = None if place is None else real_directory(place)
        """The directory of the host."""
        self.pending: dict[int, tuple[LabelSource, ...]] = {}
        self.stamp: Stamp | None = None
        """Of the file of a conversation, when it was read."""
        self.tainted: object = None
        """What the directory was last labelled with."""
        self.keys: set[LabelKey] = set()
        self.admitted: set[LabelKey] = set()
        self.unsaved: set[LabelKey] = set()
        """What memory has and the file lacks; more than this action has brought, if writing it has
        failed before."""
        self.carried: set[LabelKey] = set()
        """What a conversation has read elsewhere and may have brought here."""
        self.carried_from: LabelSet | None = None
        self._stored: Stored = {}
        self._counts = dict.fromkeys(Label, 0)
        """Sources of each label."""
        self._held: LabelSet | None = None
        self._joined: tuple[BroughtLabels, tuple[LabelSource, ...], BroughtLabels] | None = None
        self._shown: dict[str, Json] | None = None
        self.update(stored or {})

    @property
    def to_save(self) -> Stored:
        return {key: self._stored[key] for key in self.unsaved}

    def update(self, stored: Stored) -> None:
        """Take over what a file has."""
        for key, (source, is_admitted) in stored.items():
            self._put(key, source, is_admitted=is_admitted)

    def _put(self, key: LabelKey, source: LabelSource, *, is_admitted: bool) -> None:
        is_new = key not in self.keys
        if is_new:
            self.keys.add(key)
            self._counts[key[0]] += 1
        self._stored[key] = (source, is_admitted)
        (self.admitted.add if is_admitted else self.admitted.discard)(key)
        self._held = None
        if not is_new or self._counts[key[0]] <= MAX_SHOWN_SOURCES:
            self._shown = None  # one more source than are shown changes nothing in a record

    @property
    def held(self) -> LabelSet:
        """The labels of all actions that have begun."""
        if self._held is None:
            self._held = LabelSet(tuple([source for source, _ in self._stored.values()]))
        return self._held

    @property
    def shown(self) -> dict[str, Json]:
        """The same, for a record."""
        if self._shown is None:
            self._shown = self.held.to_json()
        return self._shown

    def joined(self, brought: BroughtLabels, content: tuple[LabelSource, ...]) -> BroughtLabels:
        """What an action brings, with the content of the files; most actions bring the same."""
        if self._joined is None or self._joined[0] is not brought or self._joined[1] is not content:
            self._joined = brought, content, brought.joined(content)
        return self._joined[2]

    def held_beside(self, number: int) -> LabelSet:
        """All labels, without those that this action itself is about to bring."""
        others = [
            each for other, sources in self.pending.items() if other != number for each in sources
        ]
        if not others:
            return self.held
        return LabelSet(
            (*self.held.sources, *(each for each in others if each.key not in self.keys))
        )

    def add(self, sources: Iterable[LabelSource], admitted: frozenset[LabelKey]) -> set[LabelKey]:
        """What has changed."""
        changed: set[LabelKey] = set()
        for source in sources:
            kept = source
            if source.key not in self.keys and self._is_full(source.label):
                kept = LabelSource(source.label, MORE_SOURCES, source.action_id)
            is_admitted = kept is source and source.key in admitted
            before = self._stored.get(kept.key)
            if before is None or (is_admitted and not before[1]):
                self._put(kept.key, before[0] if before else kept, is_admitted=is_admitted)
                changed.add(kept.key)
        self.unsaved |= changed
        return changed

    def carry(self, conversation: LabelSet) -> None:
        """A model has acted here, which may have written down all that it has read. Egress is no
        property of content."""
        known = self.keys
        new = [
            each
            for each in conversation.sources
            if each.label is not Label.EGRESS and each.key not in known
        ]
        changed = self.add(new, frozenset())
        self.carried |= changed
        self.carried_from = conversation

    def of_server(self) -> LabelSet:
        """What the server in this session has by its configuration."""
        return LabelSet(tuple(each for each in self.held.sources if each.key not in self.carried))

    def _is_full(self, label: Label) -> bool:
        return self._counts[label] >= MAX_SOURCES

    def withdraw_egress(self) -> None:
        """The three have met without a person's consent: sending anything needs one from now on."""
        for key in [key for key in self.admitted if key[0] is Label.EGRESS]:
            self._put(key, self._stored[key][0], is_admitted=False)
            self.unsaved.add(key)


def context_of(action: Action) -> str:
    """The name of the conversation to which an action belongs; empty: to none."""
    operation = action.operation
    if isinstance(operation, UseTool | ToolResult) and operation.agent_session:
        return agent_context(operation.agent_session)
    has_calls = bool(action.tools) or action.asks_destinations
    if action.context or action.session_id is not None or not has_calls:
        return action.context
    return run_context(action)


def agent_context(agent_session: str) -> str:
    """Of the tools of an agent's own host."""
    return f"agent {agent_session}"


def run_context(action: Action) -> str:
    """Of a single run, the calls of host functions that its code makes, and the destinations that
    it asks for."""
    return f"run {action.id}"
