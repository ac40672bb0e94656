"""A record of the audit log as one line of a list for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cellwall.admin.record_text import body_summary
from cellwall.audit.index import verdict_of
from cellwall.core.outcomes import EventKind

_MAX_TEXT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLine:
    """One decision or event, as a line of the live list."""

    seq: int
    id: str
    at_s: float
    kind: str
    by: str
    session_id: str
    action_id: str
    verdict: str
    """`allow`, `ask` or `deny`; `limit` for a run that exceeded one; empty for other events."""
    text: str
    reason: str
    rule: str


_SHOWN_KINDS = frozenset(
    {
        EventKind.INTENT,
        EventKind.DENIAL,
        EventKind.APPROVAL,
        EventKind.CONNECTION,
        EventKind.SESSION,
        EventKind.SIGN_IN,
    }
)


def event_line(record: Mapping[str, Any], at_s: float) -> EventLine | None:
    """The line for a record; None for one that is no news: an outcome without a limit."""
    body, kind = record["body"], record["kind"]
    if kind == EventKind.OUTCOME:
        if not body.get("limit"):
            return None
        verdict, text = "limit", f"ended by the {body['limit']} limit"
    elif kind in _SHOWN_KINDS:
        verdict, text = str(verdict_of(body) or ""), _text_of(body)
    else:
        return None
    decision = body.get("decision")
    about = decision if isinstance(decision, dict) else body
    return EventLine(
        seq=record["seq"],
        id=record["id"],
        at_s=at_s,
        kind=kind,
        by=record["principal"],
        session_id=record["session_id"],
        action_id=record["action_id"],
        verdict=verdict if verdict in {"allow", "ask", "deny", "limit"} else "",
        text=text,
        reason=str(about.get("reason", ""))[:300],
        rule=str(about.get("rule", ""))[:200],
    )


def event_lines(records: Sequence[Mapping[str, Any]]) -> list[EventLine]:
    """The lines of records, for lists that show every kind of event."""
    found = []
    for record in records:
        at_s = datetime.fromisoformat(record["time"]).timestamp()
        line = event_line(record, at_s) or _plain(record, at_s)
        found.append(line)
    return found


def _plain(record: Mapping[str, Any], at_s: float) -> EventLine:
    body = record["body"]
    return EventLine(
        seq=record["seq"],
        id=record["id"],
        at_s=at_s,
        kind=record["kind"],
        by=record["principal"],
        session_id=record["session_id"],
        action_id=record["action_id"],
        verdict="",
        text=_result_of(body) if record["kind"] == EventKind.OUTCOME else _text_of(body),
        reason="",
        rule="",
    )


def _text_of(body: Mapping[str, Any]) -> str:
    """A shell's script without the shell: it is what people read."""
    match body.get("command"):
        case ["/bin/sh" | "/bin/bash" | "sh" | "bash", "-c", str() as script]:
            return script[:_MAX_TEXT]
    match body:
        case {"file": str() as operation, "path": str() as path}:
            return f"{operation} {path}"[:_MAX_TEXT]
    return body_summary(dict(body))


def _result_of(body: Mapping[str, Any]) -> str:
    """`ok, exit code 0, 0.12 s`."""
    words = [str(body.get("status", ""))]
    if body.get("exit_code"):
        words.append(f"exit code {body['exit_code']}")
    usage = body.get("usage")
    if isinstance(usage, dict) and usage.get("wall_s"):
        words.append(f"{usage['wall_s']:.3g} s")
    if body.get("message"):
        words.append(str(body["message"])[:_MAX_TEXT])
    return ", ".join(words)
