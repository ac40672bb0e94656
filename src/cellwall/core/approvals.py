"""A question to a person, and the answer (POL-8). Plain data, shared by all who ask or answer."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from cellwall.core.types import Json, Principal

ID_PREFIX = "ask"
CHANNELS = ("terminal", "queue", "callback", "elicitation")
"""The ways to a person. `callback` is a function that the embedding program gives, `elicitation`
the form that an agent's client shows (MCP)."""


class AnswerKind(StrEnum):
    """What a person can say."""

    ONCE = "once"
    SESSION = "session"
    RULE = "rule"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class Proposal:
    """A rule that could be written, and what else it would let through."""

    rule: str
    also_allows: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a person is asked. `shown` is what they see, whole, safe for a terminal."""

    id: str
    action_id: str
    session_id: str
    """Empty where there is no session; then nothing can be allowed for its rest."""
    principal: Principal
    tool: str
    text: str
    """The command, path or address itself; raw, for programs, without its middle if very long."""
    details: tuple[str, ...]
    """Under what circumstances: directory, variables, domains."""
    reason: str
    rule: str
    parts: tuple[str, ...]
    """Which parts of it the policy asks about."""
    proposals: tuple[Proposal, ...]
    call_sha256: str
    """Of the whole call; empty if it cannot be told from others, and so not be remembered."""
    shown: str
    asked_s: float
    deadline_s: float
    """Both in seconds since 1970, as other processes count."""

    @property
    def shown_sha256(self) -> str:
        return hashlib.sha256(self.shown.encode()).hexdigest()

    def takes(self, kind: AnswerKind, rule: str = "") -> bool:
        """Whether this is one of the answers that it offers."""
        match kind:
            case AnswerKind.SESSION:
                return bool(self.session_id and self.call_sha256)
            case AnswerKind.RULE:
                return any(proposal.rule == rule for proposal in self.proposals)
            case AnswerKind.ONCE | AnswerKind.DENY:
                return not rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a question; a denial where nobody answered."""

    kind: AnswerKind
    by: Principal
    via: str
    """The channel; `nobody` where there was no person."""
    rule: str = ""
    reason: str = ""
    """Why it is a denial, where it is not simply a person's no."""
    signature: str = ""
    """The approver's, where the configuration names one."""

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
    """The answer where there is none."""
    return Answer(kind=AnswerKind.DENY, by=NOBODY, via="nobody", reason=reason)
