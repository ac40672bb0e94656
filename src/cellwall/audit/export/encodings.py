"""What of a record the receivers sort and search by: plain names, a severity, a time. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

from cellwall.audit.failures import altered
from cellwall.audit.search import Found
from cellwall.core.events import EventKind

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KIND = re.compile(r"[a-z]{1,32}")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?Z")


class Severity(Enum):
    """Its number for syslog (RFC 5424, table 2), and number and name for OTLP."""

    ERROR = (3, 17, "ERROR")
    WARNING = (4, 13, "WARN")
    NOTICE = (5, 10, "NOTICE")
    INFO = (6, 9, "INFO")

    @property
    def syslog(self) -> int:
        return self.value[0]

    @property
    def otlp(self) -> int:
        return self.value[1]

    @property
    def word(self) -> str:
        return self.value[2]


_OF_KIND = {
    EventKind.DENIAL.value: Severity.WARNING,
    EventKind.RECOVERY.value: Severity.WARNING,
    EventKind.WITNESS.value: Severity.WARNING,
    EventKind.APPLY.value: Severity.NOTICE,
    EventKind.TEMPLATE.value: Severity.NOTICE,
    EventKind.SKILL.value: Severity.NOTICE,
    EventKind.CONFIG.value: Severity.NOTICE,
    EventKind.BEGIN.value: Severity.NOTICE,
    EventKind.KEY.value: Severity.NOTICE,
    EventKind.RETENTION.value: Severity.NOTICE,
    EventKind.HOLD.value: Severity.NOTICE,
}
# A run that fails is everyday work for an agent; that Cellwall itself failed is not.
_OF_STATUS = {
    "error": Severity.ERROR,
    "interrupted": Severity.ERROR,
    "denied": Severity.WARNING,
    "limit": Severity.NOTICE,
}
_OF_VERDICT = {"deny": Severity.WARNING, "ask": Severity.NOTICE}


@dataclass(frozen=True, slots=True)
class Facts:
    """One record, flat. Texts are as they stand in the record: whoever writes them escapes them."""

    seq: int
    time: str
    kind: str
    id: str
    action_id: str
    session_id: str
    principal: str
    interface: str
    verdict: str
    status: str

    @classmethod
    def of(cls, found: Found) -> Facts:
        record = found.record
        # These go unescaped into heads and numbers; only a forged record has others.
        if not _KIND.fullmatch(record["kind"]) or not _is_time(record["time"]):
            raise altered("a record of the audit log was altered: its kind or time is none")
        body: dict[str, Any] = record["body"]
        decision = body.get("decision")
        return cls(
            seq=record["seq"],
            time=record["time"],
            kind=record["kind"],
            id=record["id"],
            action_id=record["action_id"],
            session_id=record["session_id"],
            principal=record["principal"],
            interface=record["interface"],
            verdict=_word(decision if isinstance(decision, dict) else body, "verdict"),
            status=_word(body, "status"),
        )

    @property
    def severity(self) -> Severity:
        """The worst that kind, verdict and status say."""
        said = (
            _OF_KIND.get(self.kind, Severity.INFO),
            _OF_VERDICT.get(self.verdict, Severity.INFO),
            _OF_STATUS.get(self.status, Severity.INFO),
        )
        return min(said, key=lambda severity: severity.syslog)

    @property
    def unix_nanoseconds(self) -> int:
        """Whole numbers all the way: a float would lose the microseconds."""
        since = datetime.fromisoformat(self.time) - _EPOCH
        return since // timedelta(microseconds=1) * 1000


def visible(text: str) -> str:
    r"""The text with `\u....` for all that is not seen: it can steer no terminal and end no line.

    Lone surrogates are among them, so that the result can always be written as UTF-8.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escape(ord(each)) for each in text)


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _is_time(text: str) -> bool:
    try:
        return _TIME.fullmatch(text) is not None and datetime.fromisoformat(text) >= _EPOCH
    except ValueError:
        return False


def _word(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    return value if isinstance(value, str) else ""
