"""What the record holds: one intent before an action's effect, one outcome after it (AUD-1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.core.types import Json


class EventKind(StrEnum):
    """The kinds of events; a reader that meets another kind must refuse, not guess."""

    INTENT = "intent"
    OUTCOME = "outcome"
    DENIAL = "denial"
    RECOVERY = "recovery"
    APPLY = "apply"
    TEMPLATE = "template"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. `body` holds bounded, already redacted plain data."""

    kind: EventKind
    action_id: str
    principal: str
    interface: str
    body: dict[str, Json] = field(default_factory=dict)
