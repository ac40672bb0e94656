"""A record as a message of RFC 5424. Pure.

    <108>1 2026-01-31T12:00:00.000000Z host cellwall - denial [cellwall@32473 seq="7" ...] {...}

PRI is the facility (13, log audit) and a severity; MSGID is the kind of the event; MSG is the line
of the record as it stands in the log, so that it can still be checked. That line is ASCII, so it
goes without a byte order mark: only a MSG in UTF-8 beyond that must have one (6.4), and readers of
JSON stumble over it.

Cellwall has no enterprise number of its own: 32473 is the one kept for such cases (RFC 5612).
"""

from __future__ import annotations

import hashlib
import re

from cellwall.audit.export.encodings import Facts, visible
from cellwall.audit.search import Found

SD_ID = "cellwall@32473"
_APP_NAME = "cellwall"
_BOM = b"\xef\xbb\xbf"
_MAX_VALUE_CHARACTERS = 256
_TO_ESCAPE = re.compile(r'(["\\\]])')
_NAMES = {
    "id": "id",
    "action_id": "actionId",
    "session_id": "sessionId",
    "principal": "principal",
    "interface": "interface",
    "verdict": "verdict",
    "status": "status",
}


def message(
    found: Found, *, facility: int, hostname: str, max_bytes: int | None = None
) -> tuple[bytes, bool]:
    """The message, and whether it had to be cut.

    A cut one says so in its structured data, with length and SHA-256 of the whole line: one long
    record must not keep all later ones from being sent, and nobody must take its start for all.
    """
    facts = Facts.of(found)
    line = found.line if found.line.isascii() else _BOM + found.line
    head = (
        f"<{facility * 8 + facts.severity.syslog}>1 {facts.time} {hostname} {_APP_NAME} - "
        f"{facts.kind} [{SD_ID} {_data(facts)}"
    )
    whole = f"{head}] ".encode() + line
    if max_bytes is None or len(whole) <= max_bytes:
        return whole, False
    digest = hashlib.sha256(found.line).hexdigest()
    start = f'{head} cut="{len(found.line)}" sha256="{digest}"] '.encode()
    if len(start) > max_bytes:  # names as long as they may be; the number still finds the record
        head = head[: head.index("[")] + f'[{SD_ID} seq="{facts.seq}" id="{facts.id}"'
        start = f'{head} cut="{len(found.line)}" sha256="{digest}"] '.encode()
    return start + line[: max_bytes - len(start)], True


def _data(facts: Facts) -> str:
    values = {"seq": str(facts.seq)}
    values |= {name: getattr(facts, field) for field, name in _NAMES.items()}
    return " ".join(f'{name}="{_value(text)}"' for name, text in values.items() if text)


def _value(text: str) -> str:
    """Without control characters (6.3.3 lets receivers alter those), and with its three escapes."""
    return _TO_ESCAPE.sub(r"\\\1", visible(text)[:_MAX_VALUE_CHARACTERS])
