"""A question to a person, and the answer (POL-8). Plain data."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from cellwall.core.types import Json, Principal

ID_PREFIX = "ask"
CONNECT = "Connect"
"""The tool of a question about a destination that no rule names (NET-9)."""
CHANNELS = ("terminal", "queue", "callback", "elicitation", "http")
"""The channels to a person. `callback` is a function of the embedding program, `elicitation` the
form that an MCP client shows, `http` the users of the service."""


class AnswerKind(StrEnum):
    """The possible answers."""

    ONCE = "once"
    SESSION = "session"
    RULE = "rule"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class Proposal:
    """A rule that could be written, and what else it would allow."""

    rule: str
    also_allows: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question. `shown` is the complete text for the person, safe for a terminal."""

    id: str
    action_id: str
    session_id: str
    """Empty without a session; then no answer can hold for a session."""
    principal: Principal
    tool: str
    text: str
    """The command, path or URL, raw, for programs; a very long one without its middle."""
    details: tuple[str, ...]
    """The context: directory, variables, domains."""
    reason: str
    rule: str
    parts: tuple[str, ...]
    """The parts about which the policy asks."""
    proposals: tuple[Proposal, ...]
    call_sha256: str
    """The digest of the whole call; empty: calls cannot be compared, so none is remembered."""
    shown: str
    asked_s: float
    deadline_s: float
    """Both in seconds since the epoch, comparable between processes."""

    @property
    def shown_sha256(self) -> str:
        return hashlib.sha256(self.shown.encode()).hexdigest()

    def takes(self, kind: AnswerKind, rule: str = "") -> bool:
        """Whether the question offers this answer."""
        match kind:
            case AnswerKind.SESSION:
                return bool(self.session_id and self.call_sha256)
            case AnswerKind.RULE:
                return any(proposal.rule == rule for proposal in self.proposals)
            case AnswerKind.ONCE | AnswerKind.DENY:
                return not rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a question; a denial where no person answered."""

    kind: AnswerKind
    by: Principal
    via: str
    """The channel; `denial` makes an answer without a person."""
    rule: str = ""
    reason: str = ""
    """The reason of a denial that no person gave."""
    signature: str = ""
    """The approver's signature, where the configuration has an approver's key."""

    @property
    def allows(self) -> bool:
        return self.kind is not AnswerKind.DENY

    def to_json(self) -> dict[str, Json]:
        return {
            "answer": self.kind.value,
            "by": self.by.name,
            "interface": self.by.interface,
            "via": self.via,
            "rule": self.rule,
            "reason": self.reason,
            **({"signature": self.signature} if self.signature else {}),
        }


NOBODY = Principal("nobody", "none")


def denial(reason: str) -> Answer:
    """The answer if no person has answered."""
    return Answer(kind=AnswerKind.DENY, by=NOBODY, via="nobody", reason=reason)
