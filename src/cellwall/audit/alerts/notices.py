"""Messages about alerts, and their forms: JSON, e-mail, syslog and Slack. Pure.

A text has a summary of the configuration, counts, ids of records, and at most the name of a group,
which an agent may have chosen: it is redacted, shortened and escaped before any form is built. No
body of a record is quoted, so there is no secret and no path of the host to leave out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from typing import Any

from cellwall.audit.alerts.series import Alert
from cellwall.audit.export.encodings import escape_unprintable
from cellwall.audit.redaction import redact_text
from cellwall.core.outcomes import SEVERITIES
from cellwall.core.text import INVISIBLE, plain

_MAX_TEXT_CHARACTERS = 500
_SYSLOG_SEVERITIES = {"critical": 2, "high": 3, "medium": 4, "low": 5}
_RESOLVED_SEVERITY = 6
TEST_RULE = "test"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One message to a receiver. Its id stays the same when it is sent again."""

    id: str
    event: str
    """`firing`, `repeated`, `resolved` or `test`."""
    alert: Alert
    host: str
    link: str = ""
    unsent: int = 0
    """Messages before this one that were counted and not sent."""

    @classmethod
    def about(cls, alert: Alert, event: str, *, number: int, host: str, link: str) -> Notice:
        """The message about an alert; `number` tells repeated ones apart."""
        clean = replace(
            alert,
            group=safe_text(alert.group),
            summary=safe_text(alert.summary),
            reason=safe_text(alert.reason),
        )
        record = alert.records[-1] if alert.records else ""
        where = f"{link.rstrip('/')}/ui/audit/{record}" if link and record else link
        return cls(
            id=f"{alert.id}-{event}-{number}", event=event, alert=clean, host=host, link=where
        )

    @property
    def severity(self) -> int:
        """As a number, the highest for critical alerts."""
        return SEVERITIES.index(self.alert.severity)

    @property
    def title(self) -> str:
        alert = self.alert
        about = f" ({alert.group})" if alert.group else ""
        return f"[{self.event}] {alert.severity}: {alert.summary}{about}"

    @property
    def lines(self) -> list[str]:
        """The text for people."""
        alert = self.alert
        found = [self.title, "", f"why: {alert.reason}", f"rule: {alert.rule}"]
        found.append(f"since: {utc_text(alert.since_s)}")
        found += [f"ended: {utc_text(alert.ended_s)}"] if alert.ended_s is not None else []
        found.append(f"host: {self.host}")
        if alert.records:
            found.append(f"records: {' '.join(alert.records)}")
            found.append(f"look at one: cellwall audit show {alert.records[-1]}")
        found += [f"link: {self.link}"] if self.link else []
        found += [f"{self.unsent} messages before this one were not sent"] if self.unsent else []
        return found

    def to_json(self) -> dict[str, Any]:
        """For programs, and as stored until it is delivered."""
        return {
            "id": self.id,
            "event": self.event,
            "host": self.host,
            "link": self.link,
            "unsent": self.unsent,
            "alert": self.alert.to_json(),
        }

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Notice:
        """From `to_json`."""
        return cls(**{**fields, "alert": Alert.of(fields["alert"])})

    def json_bytes(self) -> bytes:
        """One line of ASCII."""
        return json.dumps(plain(self.to_json()), sort_keys=True).encode("ascii")


def safe_text(text: str) -> str:
    r"""One bounded line without credentials; control, bidi and invisible characters are `\u….`."""
    # Bounded before and after: the scan is linear, and the result is what a header can hold.
    clean = redact_text(text[: 4 * _MAX_TEXT_CHARACTERS])[:_MAX_TEXT_CHARACTERS]
    clean = INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", clean)
    return escape_unprintable(clean)[:_MAX_TEXT_CHARACTERS]


def utc_text(time_s: float) -> str:
    """As in RFC 3339."""
    try:
        return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):  # a clock far out of range
        return "unknown"


def slack_body(notice: Notice) -> bytes:
    """Text without markup: the three characters of Slack's syntax are escaped, and no @ calls
    people in a channel (Mattermost reads `@channel` in plain text)."""
    text = "\n".join(notice.lines)
    for character, written in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("@", "(at)")):
        text = text.replace(character, written)
    return json.dumps({"text": text, "mrkdwn": False}).encode("ascii")


def email_message(notice: Notice, *, sender: str, recipients: tuple[str, ...]) -> EmailMessage:
    """RFC 5322; a line break in a header raises, and `safe_text` has left none."""
    message = EmailMessage(policy=SMTP)
    message["From"] = sender
    message["To"] = ", ".join(recipients)
    message["Subject"] = f"Cellwall {notice.title}"[:200]
    message["Date"] = datetime.now(UTC)
    message["Message-ID"] = f"<{notice.id}@cellwall.invalid>"
    message["Auto-Submitted"] = "auto-generated"  # no vacation reply (RFC 3834)
    message.set_content("\n".join(notice.lines) + "\n", cte="quoted-printable")
    return message


def syslog_message(notice: Notice, *, facility: int, hostname: str) -> bytes:
    """RFC 5424; the text is the JSON object, in ASCII."""
    alert = notice.alert
    is_over = notice.event == "resolved"
    level = _RESOLVED_SEVERITY if is_over else _SYSLOG_SEVERITIES[alert.severity]
    words = {"rule": alert.rule, "severity": alert.severity, "event": notice.event, "id": notice.id}
    # Words of ours: names of rules have letters, digits and dashes, so nothing needs an escape.
    data = " ".join(f'{name}="{text}"' for name, text in words.items())
    time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    head = f"<{facility * 8 + level}>1 {time} {hostname} cellwall - alert [cellwall@32473 {data}] "
    return head.encode("ascii") + notice.json_bytes()
