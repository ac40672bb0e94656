"""The facts of a record that alert rules see. Pure.

Only the words of a body that stand in clear: alerts need no key of a session, and nothing that an
agent or the network wrote can reach a message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cellwall.audit.sealed_bodies import clear_words
from cellwall.config.alerts_section import WATCH_KIND, AlertRuleTable, EventSelector

_RECORD_ID = re.compile(r"evt_[0-9a-z]{1,60}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertEvent:
    """One record, or a finding of the evaluation itself."""

    time_s: float
    kind: str
    id: str = ""
    action: str = ""
    status: str = ""
    limit: str = ""
    verdict: str = ""
    error_code: str = ""
    principal: str = ""
    session: str = ""
    interface: str = ""
    finding: str = ""
    """Of a finding: the sentence for people."""

    @property
    def words(self) -> tuple[str, ...]:
        """All that selectors look at."""
        return self.kind, self.action, self.status, self.limit, self.verdict, self.error_code

    @classmethod
    def of(cls, record: dict[str, Any]) -> AlertEvent:
        words = clear_words(record)
        return cls(
            time_s=datetime.fromisoformat(record["time"]).timestamp(),
            kind=record["kind"],
            id=record["id"] if _RECORD_ID.fullmatch(record["id"]) else "",
            action=words.get("action_kind", ""),
            status=words.get("status", ""),
            limit=words.get("limit", ""),
            verdict=words.get("verdict", ""),
            error_code=words.get("error_code", ""),
            principal=record["principal"],
            session=record["session_id"],
            interface=record["interface"],
        )

    @classmethod
    def found(cls, *, time_s: float, code: str, finding: str) -> AlertEvent:
        """Something that the evaluation has found, such as a broken chain."""
        return cls(time_s=time_s, kind=WATCH_KIND, error_code=code, finding=finding)


def selects(selector: EventSelector, event: AlertEvent) -> bool:
    """Whether each key of the selector holds."""
    return (
        (not selector.kinds or event.kind in selector.kinds)
        and (not selector.actions or event.action in selector.actions)
        and (not selector.statuses or event.status in selector.statuses)
        and (not selector.limits or event.limit in selector.limits)
        and (not selector.verdicts or event.verdict in selector.verdicts)
        and (not selector.error_codes or _is_code(selector.error_codes, event.error_code))
    )


def selects_any(selectors: Sequence[EventSelector], event: AlertEvent) -> bool:
    """Whether one of the selectors matches."""
    return any(selects(each, event) for each in selectors)


def group_of(rule: AlertRuleTable, event: AlertEvent) -> str:
    """The value that the rule counts apart; empty where it counts all together."""
    return "" if rule.by == "all" else str(getattr(event, rule.by))


def _is_code(codes: Sequence[str], code: str) -> bool:
    return bool(code) and any(
        code.startswith(each[:-1]) if each.endswith("*") else code == each for each in codes
    )
