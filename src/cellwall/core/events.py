"""Events of the audit log: one intent before an action's effect, one outcome after (AUD-1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from cellwall.core.types import Json


class EventKind(StrEnum):
    """The kinds of events. The second group concerns the log itself."""

    INTENT = "intent"
    OUTCOME = "outcome"
    DENIAL = "denial"
    APPROVAL = "approval"
    SESSION = "session"
    APPLY = "apply"
    TEMPLATE = "template"
    SKILL = "skill"
    CONFIG = "config"
    CONNECTION = "connection"
    VAULT = "vault"

    BEGIN = "begin"
    KEY = "key"
    RECOVERY = "recovery"
    SEAL = "seal"
    RETENTION = "retention"
    HOLD = "hold"
    WITNESS = "witness"


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `body` holds bounded, redacted plain data."""

    kind: EventKind
    action_id: str
    principal: str
    interface: str
    body: dict[str, Json] = field(default_factory=dict)
    session_id: str = ""
