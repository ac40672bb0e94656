"""Labels of information flow (POL-9): what a session has read, and where it can send data.

A label has sources: what brought it into the session, and by which action. Labels only grow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol, TypeAlias

from cellwall.core.outcomes import Finding, Outcome
from cellwall.core.types import Action, Json
from cellwall.core.verdict import Decision

FlowMode: TypeAlias = Literal["ask", "deny", "show"]
RULE_OF_TWO = "rule-of-two"
"""The rule of decisions about labels."""
MAX_SOURCES = 64
"""Of one label in one session; the sources beyond them have one name together."""
MORE_SOURCES = "further sources"
MAX_SHOWN_SOURCES = 8
"""Of one label, in a record and in a reason."""
_MAX_NAME = 200


class Label(StrEnum):
    """The three that meet in one session only with a person's consent."""

    UNTRUSTED = "untrusted"
    """It has read content that other people can write."""
    PRIVATE = "private"
    """It has read data that others must not have, or uses a secret."""
    EGRESS = "egress"
    """It can send data to others."""

    # As of an equal text; an enumeration's own is a function in Python, and each key has a label.
    __hash__ = str.__hash__

    @property
    def words(self) -> str:
        """For people."""
        return _WORDS[self]


_WORDS = {
    Label.UNTRUSTED: "untrusted content",
    Label.PRIVATE: "private data",
    Label.EGRESS: "egress",
}
_LABELS = tuple(Label)
LabelKey: TypeAlias = tuple[Label, str]


@dataclass(frozen=True, slots=True)
class LabelSource:
    """What brings a label: a page, a directory, a domain. Equal names are the same source."""

    label: Label
    name: str
    action_id: str = field(default="", compare=False)
    """The first action that brought it."""

    def __post_init__(self) -> None:
        if len(self.name) > _MAX_NAME:
            # With a digest: consent to one name is none to another that begins like it.
            digest = hashlib.sha256(self.name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
            object.__setattr__(self, "name", f"{self.name[: _MAX_NAME - 20]}… ({digest})")

    @property
    def key(self) -> LabelKey:
        return self.label, self.name

    def to_json(self) -> dict[str, Json]:
        return {"source": self.name, "action": self.action_id}


@dataclass(frozen=True, slots=True)
class LabelSet:
    """The labels of a session at one moment."""

    sources: tuple[LabelSource, ...] = ()

    @property
    def labels(self) -> frozenset[Label]:
        return frozenset(each.label for each in self.sources)

    @property
    def is_complete(self) -> bool:
        """Whether all three are there."""
        return is_complete(each.label for each in self.sources)

    def of(self, label: Label) -> tuple[LabelSource, ...]:
        """The sources of one label, the oldest first."""
        return tuple(each for each in self.sources if each.label is label)

    def to_json(self) -> dict[str, Json]:
        """Each label with its first sources; labels without a source are left out."""
        listed: dict[Label, list[Json]] = {}
        for each in self.sources:
            found = listed.setdefault(each.label, [])
            if len(found) < MAX_SHOWN_SOURCES:
                found.append(each.to_json())
        return {str(label): listed[label] for label in _LABELS if label in listed}

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> LabelSet:
        """From `to_json`; what does not fit is left out."""
        found = [
            LabelSource(label, each["source"], str(each.get("action", "")))
            for label in Label
            if isinstance(listed := fields.get(label.value), list)
            for each in listed
            if isinstance(each, Mapping) and isinstance(each.get("source"), str)
        ]
        return cls(tuple(found))


def is_complete(labels: Iterable[Label]) -> bool:
    """Whether all three labels are among these."""
    return len(set(labels)) == len(_LABELS)


class ActionLabelsPort(Protocol):
    """The labels that one action brings, from its judgement to its end."""

    def judge(self, action: Action, *, is_named: bool = False) -> Decision | None:
        """ASK or DENY if the action brings the three labels together; None: nothing to object.
        `is_named`: a person has named together all that the called server itself brings.

        From now on other actions of the session are judged as if this one had run."""

    def admit_for_session(self) -> None:
        """A person has consented for the rest of the session."""

    def narrow(self, action: Action) -> Action:
        """The action without the domains to which a page must not redirect it."""

    def commit(self) -> dict[str, Json]:
        """The action begins, or its host asks its user and does not tell the answer: the session
        has its labels from now on. Returns the labels. Raises `Denied` if another process has
        brought the rest of the three since the judgement."""

    def keep_with(self, workspace_id: str | None) -> None:
        """Before a single run: changes that it leaves in a copy can be applied later, also if this
        process is killed."""

    def receive(self, findings: Sequence[Finding]) -> dict[str, Json]:
        """For the result of a tool that has run on the agent's host: the session has its labels.
        Returns the labels."""

    def end(self, outcome: Outcome | None) -> None:
        """The action has ended, or was refused."""


class LabelsPort(Protocol):
    """The labels of all sessions."""

    @property
    def mode(self) -> FlowMode:
        """What follows where the three would meet."""

    def begin(self, action: Action) -> ActionLabelsPort: ...

    def label_session(self, action: Action) -> None:
        """The session has the labels of an action that a person has configured, before it runs."""

    def of_session(self, session_id: str) -> LabelSet:
        """Also of a session of another process, as far as it is recorded."""

    def resume(self, session_id: str, resumed_id: str) -> None:
        """The new session has the files of a kept one, and what is in them."""

    def keep_in(self, session_id: str, folder: str) -> None:
        """A snapshot of the session is about to be stored in this folder."""

    def begin_with(self, session_id: str, folder: str) -> None:
        """The new session has the files of the snapshot in this folder, and what is in them."""

    def apply_changes(self, session_id: str, directory: str) -> None:
        """The files of a copy-on-write session are about to come into its directory."""

    def end_session(self, session_id: str) -> None:
        """Drop the state of a session that has ended; its file stays with its workspace."""

    def end_context(self, context: str) -> None:
        """Forget a conversation that is over."""


class _NoLabels:
    """Implements `LabelsPort`: nothing has a label."""

    mode: FlowMode = "show"

    def begin(self, action: Action) -> ActionLabelsPort:  # noqa: ARG002  # as the port has it
        return _NO_ACTION

    def of_session(self, session_id: str) -> LabelSet:  # noqa: ARG002  # as the port has it
        return LabelSet()

    def label_session(self, action: Action) -> None:
        pass

    def keep_in(self, session_id: str, folder: str) -> None:
        pass

    def begin_with(self, session_id: str, folder: str) -> None:
        pass

    def resume(self, session_id: str, resumed_id: str) -> None:
        pass

    def apply_changes(self, session_id: str, directory: str) -> None:
        pass

    def end_session(self, session_id: str) -> None:
        pass

    def end_context(self, context: str) -> None:
        pass


class _NoActionLabels:
    def judge(
        self,
        action: Action,  # noqa: ARG002  # as the port has it
        *,
        is_named: bool = False,  # noqa: ARG002  # as the port has it
    ) -> Decision | None:
        return None

    def admit_for_session(self) -> None:
        pass

    def narrow(self, action: Action) -> Action:
        return action

    def commit(self) -> dict[str, Json]:
        return {}

    def keep_with(self, workspace_id: str | None) -> None:
        pass

    def receive(self, findings: Sequence[Finding]) -> dict[str, Json]:  # noqa: ARG002  # see above
        return {}

    def end(self, outcome: Outcome | None) -> None:
        pass


_NO_ACTION = _NoActionLabels()
NO_LABELS: LabelsPort = _NoLabels()
"""For a runtime that keeps no labels."""
