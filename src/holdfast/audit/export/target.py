"""Where an export goes and in which form. What does not fit together is refused, never ignored."""

from __future__ import annotations

import math
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import SplitResult, urlsplit

from holdfast.core.errors import BadInput

LOG_AUDIT = "audit"
FACILITIES = (
    *("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron"),
    *("authpriv", "ftp", "ntp", LOG_AUDIT, "alert", "clock"),
    *(f"local{number}" for number in range(8)),
)
"""By their number in RFC 5424; `audit` is its 13, "log audit"."""

LEAST_MESSAGE_BYTES = 480
"""What every receiver of syslog must take (RFC 5424, 6.1)."""
_MOST_MESSAGE_BYTES = 16 * 1024 * 1024
_MOST_BATCH = 10_000
_MOST_TIMEOUT_S = 600.0
_MOST_HEADERS = 32
_MOST_HEADER_BYTES = 8192
_PORTS = {"udp": 514, "tcp": 601, "tls": 6514, "http": 80, "https": 443}
_NETWORK_PATH = "/v1/logs"
_NOT_IN_NAMES = re.compile(r"[^\x21-\x7e]")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
_OURS = {"host", "connection", "transfer-encoding", "te", "upgrade", "expect", "trailer"}
_CREDENTIAL = re.compile(r"authoriz|cookie|token|key|secret|passw|credential", re.IGNORECASE)


class Form(StrEnum):
    """What the records are written as."""

    JSONL = "jsonl"
    CSV = "csv"
    SYSLOG = "syslog"
    OTLP = "otlp"


class Way(StrEnum):
    """How they get there."""

    STDOUT = "stdout"
    FILE = "file"
    UDP = "udp"
    TCP = "tcp"
    TLS = "tls"
    UNIX = "unix"
    HTTP = "http"
    HTTPS = "https"


class Framing(StrEnum):
    """Where a message ends on a stream (RFC 6587)."""

    OCTET_COUNTING = "octet-counting"
    NEWLINE = "newline"


_WAYS = {
    Form.JSONL: {Way.STDOUT, Way.FILE},
    Form.CSV: {Way.STDOUT, Way.FILE},
    Form.SYSLOG: {Way.UDP, Way.TCP, Way.TLS, Way.UNIX},
    Form.OTLP: {Way.STDOUT, Way.FILE, Way.HTTP, Way.HTTPS},
}
_STREAMS = {Way.TCP, Way.TLS, Way.UNIX}
_EXAMPLES = {
    Form.JSONL: "a file or `-` for standard output",
    Form.CSV: "a file or `-` for standard output",
    Form.SYSLOG: "udp://HOST:PORT, tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH",
    Form.OTLP: "https://HOST:PORT/v1/logs, http://HOST:PORT/v1/logs, a file or `-`",
}


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Whom to believe, and who we are."""

    ca_file: str | None = None
    """Believed instead of the system's authorities."""
    client_cert_file: str | None = None
    client_key_file: str | None = None
    dangerously_accept_any_certificate: bool = False


@dataclass(frozen=True, slots=True)
class ExportTarget:
    """Made by `parse`, which has checked it. Shown without the values of headers: they may be
    tokens."""

    form: Form
    way: Way
    host: str = ""
    port: int = 0
    path: str = ""
    """Of the file or socket, or the path and query of the URL."""
    append: bool = False
    timeout_s: float = 10.0
    tls: TlsSettings = TlsSettings()
    facility: int = FACILITIES.index(LOG_AUDIT)
    framing: Framing = Framing.OCTET_COUNTING
    max_message_bytes: int | None = None
    hostname: str = "-"
    """Of this machine, as receivers are to know it."""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    batch_records: int = 512

    @classmethod
    def parse(
        cls,
        form: str,
        destination: str,
        *,
        append: bool = False,
        timeout_s: float = 10.0,
        hostname: str | None = None,
        ca_file: str | None = None,
        client_cert_file: str | None = None,
        client_key_file: str | None = None,
        dangerously_accept_any_certificate: bool = False,
        facility: str | None = None,
        framing: str | None = None,
        max_message_bytes: int | None = None,
        headers: Mapping[str, str] | None = None,
        batch_records: int | None = None,
    ) -> ExportTarget:
        """Checks all of it, before anything is opened or sent; `BadInput` if it cannot be meant."""
        kind = _choice(form, Form, "form")
        way, host, port, path = _address(kind, destination)
        has_tls = way in (Way.TLS, Way.HTTPS)
        given_only_for = (
            ("append", append, way is Way.FILE, "a file"),
            ("ca_file", ca_file, has_tls, "tls:// and https://"),
            ("client_cert_file", client_cert_file, has_tls, "tls:// and https://"),
            ("client_key_file", client_key_file, has_tls, "tls:// and https://"),
            (
                "dangerously_accept_any_certificate",
                dangerously_accept_any_certificate,
                has_tls,
                "tls:// and https://",
            ),
            ("facility", facility is not None, kind is Form.SYSLOG, "syslog"),
            ("framing", framing is not None, way in _STREAMS, "syslog over tcp, tls and unix"),
            ("max_message_bytes", max_message_bytes is not None, kind is Form.SYSLOG, "syslog"),
            ("headers", headers, way in (Way.HTTP, Way.HTTPS), "OTLP over http and https"),
            ("batch_records", batch_records is not None, kind is Form.OTLP, "otlp"),
            ("hostname", hostname, kind in (Form.SYSLOG, Form.OTLP), "syslog and otlp"),
        )
        for name, is_given, is_right, where in given_only_for:
            if is_given and not is_right:
                raise _bad(f"`{name}` is only for {where}", "Leave it out.")
        return cls(
            form=kind,
            way=way,
            host=host,
            port=port,
            path=path,
            append=append,
            timeout_s=_within("timeout_s", timeout_s, 0.1, _MOST_TIMEOUT_S),
            tls=_tls(
                TlsSettings(
                    ca_file, client_cert_file, client_key_file, dangerously_accept_any_certificate
                )
            ),
            facility=_facility(LOG_AUDIT if facility is None else facility),
            framing=_choice(framing or Framing.OCTET_COUNTING, Framing, "framing"),
            max_message_bytes=max_message_bytes
            and int(
                _within(
                    "max_message_bytes", max_message_bytes, LEAST_MESSAGE_BYTES, _MOST_MESSAGE_BYTES
                )
            ),
            hostname=_hostname(hostname),
            headers=_headers(headers or {}, is_safe=way is Way.HTTPS or _is_loopback(host)),
            batch_records=int(
                _within("batch_records", 512 if batch_records is None else batch_records, 1, 10_000)
            ),
        )


def _bad(message: str, mend: str) -> BadInput:
    return BadInput(message, mend=mend, code="HF-EXPORT-TARGET")
