"""The section of alerts: rules, receivers, and how often both are used (OBS-2).

The built-in rules are data, alert_rules.toml. A table of the configuration is put over the built-in
rule of its name, key by key.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Annotated, Any
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from cellwall.config.fields import (
    Section,
    absolute_path,
    danger,
    listed,
    matching,
    number,
    one_of,
    word,
)
from cellwall.config.server_section import is_loopback
from cellwall.core.outcomes import SEVERITIES, EventKind

WATCH_KIND = "watch"
"""The kind of what the evaluation itself has found; no record has it."""
_KINDS = (*(each.value for each in EventKind), WATCH_KIND)
_MAX_RULES = 100
_MAX_RECEIVERS = 20
_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
_CODE = r"CW-[A-Z0-9-]{0,60}\*?"
_WORD = r"[A-Za-z][0-9A-Za-z_-]{0,39}"
_MAILBOX = r"[!#$%&'*+/=?^_`{|}~.0-9A-Za-z-]{1,64}@[0-9A-Za-z.-]{1,253}"
_Word = Annotated[str, matching(_WORD, "is not one word of letters, digits, - and _.")]


class EventSelector(Section):
    """Selects records: each key that is given must hold, by one of its words."""

    kinds: tuple[Annotated[str, one_of(*_KINDS, noun="a kind of record")], ...] = listed(
        (), "kinds of records", most=32
    )
    actions: tuple[_Word, ...] = listed((), "what was asked for, such as run-code", most=32)
    statuses: tuple[_Word, ...] = listed((), "how it ended, such as failed or refused", most=32)
    limits: tuple[_Word, ...] = listed((), "the limit that ended a run", most=32)
    verdicts: tuple[_Word, ...] = listed((), "allow, ask or deny", most=3)
    error_codes: tuple[
        Annotated[str, matching(_CODE, 'is not a code. Write "CW-BUSY", or "CW-VAULT-*".')], ...
    ] = listed((), "codes of errors; a * at the end stands for any rest", most=64)

    @model_validator(mode="after")
    def _check_not_empty(self) -> EventSelector:
        if not any(getattr(self, name) for name in type(self).model_fields):
            raise PydanticCustomError("selector", "selects every record. Name a kind or a status.")
        return self


class AlertRuleTable(Section):
    """One rule: a count or a ratio of records in a window, and when it is too high."""

    summary: str = Field(default="", description="one sentence for people", max_length=200)
    severity: Annotated[str, one_of(*SEVERITIES)] = word(
        "how much it matters", "medium", "low", "high", "critical"
    )
    state: Annotated[str, one_of("on", "off")] = word("whether it is evaluated", "on", "off")
    measure: Annotated[str, one_of("count", "ratio")] = word(
        "the number of selected records, or their share", "count", "ratio"
    )
    of: tuple[EventSelector, ...] = Field(
        default=(), description="the counted records", max_length=16, strict=False
    )
    among: tuple[EventSelector, ...] = Field(
        default=(), description="of a ratio: all records", max_length=16, strict=False
    )
    by: Annotated[
        str, one_of("all", "error_code", "limit", "principal", "session", "interface")
    ] = word(
        "count all together, or for each value apart",
        *("all", "error_code", "limit", "principal", "session", "interface"),
    )
    over: float = number(0.0, "the alert fires above this", least=0.0, most=1e9)
    min_events: int = number(
        20, "of a ratio: fewer records in the window prove nothing", least=1, most=1_000_000
    )
    window_s: int = number(900, "the sliding window", least=10, most=604_800)
    hold_s: int = number(0, "pending for this time before it fires", least=0, most=86_400)
    resolve_s: int = number(300, "below for this time before it is resolved", least=0, most=86_400)

    @model_validator(mode="after")
    def _check_whole(self) -> AlertRuleTable:
        if not self.summary.isprintable() or not self.summary:
            raise PydanticCustomError("rule", "has no summary. Write one line for people.")
        if not self.of:
            raise PydanticCustomError(
                "rule", 'counts nothing. Write for example of = [{ kinds = ["denial"] }].'
            )
        is_ratio = self.measure == "ratio"
        if is_ratio != bool(self.among):
            raise PydanticCustomError("rule", "has `among` if, and only if, it is a ratio.")
        if is_ratio and self.over >= 1:
            raise PydanticCustomError(
                "rule", "is a ratio that is never above 1. Write 0.1 for 10 %."
            )
        return self


class AlertReceiverTable(Section):
    """One receiver of alerts. Secrets are named here, and lie in the vault."""

    kind: Annotated[str, one_of("webhook", "slack", "email", "syslog", "file")] = word(
        "what the receiver is", "webhook", "slack", "email", "syslog", "file"
    )
    to: str = Field(
        default="",
        description="https://…, smtps://…, smtp://… (STARTTLS), tls://…, unix:///dev/log, or a "
        "file; left out for slack, whose URL is a secret",
        max_length=2048,
    )
    secret: Annotated[str, matching(r"[A-Za-z_][A-Za-z0-9_]{0,63}", "is not a name.")] | None = (
        Field(
            default=None,
            description="its secret in the vault: the signing key of a webhook, the URL of slack, "
            "the password of e-mail",
        )
    )
    user: str = Field(default="", description="the user name for e-mail", max_length=200)
    sender: Annotated[str, matching(f"|{_MAILBOX}", "is not an address.")] = Field(
        default="", description="the address that e-mail comes from", max_length=320
    )
    recipients: tuple[Annotated[str, matching(_MAILBOX, "is not an address.")], ...] = listed(
        (), "the addresses that e-mail goes to", most=50
    )
    ca_file: Annotated[str, absolute_path("/etc/ssl/company.pem")] | None = Field(
        default=None, description="authorities of the receiver, in place of the system's"
    )
    min_severity: Annotated[str, one_of(*SEVERITIES)] = word(
        "send alerts of this severity and above", *SEVERITIES
    )

    @property
    def address(self) -> SplitResult:
        return urlsplit(self.to)

    @model_validator(mode="after")
    def _check_whole(self) -> AlertReceiverTable:
        problem = _receiver_problem(self)
        if problem:
            raise PydanticCustomError("receiver", problem)
        return self


_SCHEMES = {
    "webhook": ("https", "http"),
    "email": ("smtps", "smtp"),
    "syslog": ("tls", "tcp", "udp", "unix"),
    "file": ("",),
    "slack": ("",),
}
_EXAMPLES = {
    "webhook": "https://hooks.example/cellwall",
    "email": "smtps://mail.example:465",
    "syslog": "tls://logs.example:6514",
    "file": "/var/log/cellwall/alerts.jsonl",
    "slack": "",
}


def _receiver_problem(table: AlertReceiverTable) -> str:
    kind, example = table.kind, _EXAMPLES[table.kind]
    if not _is_destination(table):
        if kind == "slack":
            return "has a secret in its URL. Leave `to` out, and name the URL in the vault."
        return f'has no usable `to`. Write for example to = "{example}".'
    if kind in {"webhook", "slack"} and table.secret is None:
        return "needs a secret. Run `cellwall vault set NAME`, and write secret = NAME here."
    if kind == "email" and not (table.sender and table.recipients):
        return "needs sender and recipients."
    if kind != "email" and (table.sender or table.recipients or table.user):
        return "has addresses, which are for e-mail."
    if kind == "email" and bool(table.user) != (table.secret is not None):
        return "has a user without a secret, or a secret without a user."
    return ""


def _is_destination(table: AlertReceiverTable) -> bool:
    text = table.to
    if not text.isprintable() or " " in text:
        return False
    try:
        parts = urlsplit(text)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        return False
    if parts.scheme not in _SCHEMES[table.kind] or parts.username or parts.password:
        return False
    if table.kind == "slack":
        return not text
    if table.kind == "file":
        return text.startswith("/")
    if parts.scheme == "unix":
        return parts.path.startswith("/") and not parts.netloc
    return text.isascii() and bool(parts.hostname) and has_port and not parts.fragment


@cache
def shipped_alert_rules() -> Mapping[str, Any]:
    """The built-in rules as data."""
    text = resources.files("cellwall.config").joinpath("alert_rules.toml").read_text("utf-8")
    return tomllib.loads(text)


def _over_shipped(given: object) -> object:
    """Each table over the built-in rule of its name."""
    if not isinstance(given, Mapping):
        return given
    shipped = shipped_alert_rules()
    merged = dict(shipped)
    for name, table in given.items():
        if isinstance(table, Mapping):
            merged[name] = {**shipped.get(name, {}), **table}
        else:
            merged[name] = table
    return merged


def _check_names(tables: dict[str, Any]) -> dict[str, Any]:
    for name in tables:
        if _NAME.fullmatch(name) is None:
            raise PydanticCustomError(
                "name", "has a name that is not short, in lower case, with letters, digits and -."
            )
    return tables


class AlertsSection(Section):
    """Alerts from the audit log (OBS-2)."""

    watch: Annotated[str, one_of("on", "off")] = word(
        "the service evaluates the rules while it runs", "on", "off"
    )
    rules: Annotated[
        dict[str, AlertRuleTable],
        BeforeValidator(_over_shipped),
        AfterValidator(_check_names),
    ] = Field(
        default={},
        description="rules by name, over the built-in ones: docs/guides/alerts.md",
        max_length=_MAX_RULES,
    )
    receivers: Annotated[dict[str, AlertReceiverTable], AfterValidator(_check_names)] = Field(
        default={},
        description="receivers by name: docs/guides/alerts.md",
        max_length=_MAX_RECEIVERS,
    )
    link: Annotated[
        str, matching(r"|https?://[!-~]{1,300}", 'is not a URL. Write "https://cellwall.example".')
    ] = Field(
        default="",
        description="the address of the service for people; alerts link to their records there",
        max_length=320,
    )
    repeat_s: int = number(
        14_400, "an alert that still fires is sent again after this time", least=60, most=604_800
    )
    verify_s: int = number(
        86_400, "the whole audit log is verified after this time", least=60, most=2_592_000
    )
    max_per_hour: int = number(
        30,
        "messages of one rule to one receiver; more are counted, not sent, but for critical ones",
        least=1,
        most=10_000,
    )
    dangerously_without_tls: bool = danger(
        "send alerts to other machines without TLS, where others can read and change them"
    )

    @model_validator(mode="after")
    def _check_tls(self) -> AlertsSection:
        for name, receiver in self.receivers.items():
            parts = receiver.address
            is_clear = parts.scheme in {"http", "tcp", "udp"}
            is_remote = not is_loopback(parts.hostname or "")
            if is_clear and is_remote and not self.dangerously_without_tls:
                raise PydanticCustomError(
                    "url", f"has a receiver ({name}) on another machine without TLS. Use TLS."
                )
        return self
