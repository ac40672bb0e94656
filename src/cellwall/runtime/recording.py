"""What happens to an action, put on record (AUD-1)."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from cellwall.core.errors import AuditFailed
from cellwall.core.events import Event, EventKind
from cellwall.core.ports import AuditPort
from cellwall.core.types import Action, Json

_SHORT_CHARACTERS = 4096


class Traffic(threading.local):
    """How many actions are under way on this thread's event loop."""

    count = 0


@dataclass(frozen=True, slots=True)
class Recorder:
    """Writes about actions."""

    audit: AuditPort
    traffic: Traffic = field(default_factory=Traffic)

    async def record(self, action: Action, kind: EventKind, body: dict[str, Json]) -> str:
        """On the disk when it returns; its id."""
        event = _event(action, kind, body)
        # Alone on its loop, the way through another thread takes longer than the disk, and other
        # threads share the flush anyway; among many tasks, none waits for another's disk.
        # What is long enough to take long is looked through in a thread in any case.
        is_alone = self.traffic.count < 2 and len(str(body)) <= _SHORT_CHARACTERS
        return self.audit.write(event) if is_alone else await self.audit.record(event)

    def quietly(
        self, action: Action, body: dict[str, Json], kind: EventKind = EventKind.OUTCOME
    ) -> str:
        """For what already failed: a second failure must not hide the first."""
        try:
            return self.audit.write(_event(action, kind, body))
        except AuditFailed:
            return ""


def _event(action: Action, kind: EventKind, body: dict[str, Json]) -> Event:
    who = action.principal
    return Event(kind, action.id, who.name, who.interface, body, action.session_id or "")
