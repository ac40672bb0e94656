"""What an export is to be. What does not fit together is refused, never ignored."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cellwall.audit.export.address import Address, Form, Way, choice, unfit

__all__ = ["ExportTarget", "Form", "Framing", "TlsSettings", "Way", "parse_headers"]

FACILITIES = (
    *("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron"),
    *("authpriv", "ftp", "ntp", "audit", "alert", "clock"),
    *(f"local{number}" for number in range(8)),
)
"""By their numbers in RFC 5424, table 1; `audit` is its 13, "log audit"."""

MIN_MESSAGE_BYTES = 1024
"""Below it nothing but the cut marks of a message would be left; RFC 5424 asks receivers for 480
and hopes for 2048."""
_MAX_MESSAGE_BYTES = 1024 * 1024
_MAX_BATCH = 10_000
_TIMEOUT_S = (0.1, 600.0)
_MAX_HEADERS = 32
_MAX_HEADER_CHARACTERS = 8192
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
_NOT_THEIRS = re.compile(
    r"host|connection|te|upgrade|expect|trailer|transfer-encoding|accept-encoding|content-.*",
    re.IGNORECASE,
)
_CREDENTIAL = re.compile(r"auth|cookie|token|key|secret|passw|credential", re.IGNORECASE)


def parse_headers(text: str) -> dict[str, str]:
    """A file of headers, `Name: value` on each line: there a token is seen by no list of processes.

    Empty lines and lines that begin with # are left out.
    """
    headers: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, value = line.partition(":")
        if not colon or name in headers:
            raise unfit("a line of the headers is not one", "Write each once, as `Name: value`.")
        headers[name] = value.strip()
    return headers


class Framing(StrEnum):
    """Where a message ends on a stream (RFC 6587)."""

    OCTET_COUNTING = "octet-counting"
    NEWLINE = "newline"


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
    """Made by `parse`, which has checked it. Its text leaves the headers out: they hold tokens."""

    form: Form
    address: Address
    append: bool = False
    timeout_s: float = 10.0
    hostname: str = "-"
    """This machine, as receivers are to know it."""
    tls: TlsSettings = TlsSettings()
    facility: int = FACILITIES.index("audit")
    framing: Framing = Framing.OCTET_COUNTING
    max_message_bytes: int | None = None
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
        """Checks all of it before anything is opened or sent; `BadInput` if it cannot be meant."""
        kind = choice(form, Form, "form")
        address = Address.parse(kind, destination)
        tls = TlsSettings(
            ca_file, client_cert_file, client_key_file, dangerously_accept_any_certificate
        )
        is_web = address.way in (Way.HTTP, Way.HTTPS)
        is_syslog = kind is Form.SYSLOG
        for name, is_given, is_right, where in (
            ("append", append, address.way is Way.FILE, "a file"),
            ("hostname", hostname is not None, is_syslog or kind is Form.OTLP, "syslog and otlp"),
            ("TLS", tls != TlsSettings(), address.has_tls, "tls:// and https://"),
            ("facility", facility is not None, is_syslog, "syslog"),
            ("framing", framing is not None, is_syslog and address.way is not Way.UDP, "streams"),
            ("max-message", max_message_bytes is not None, is_syslog, "syslog"),
            ("header", bool(headers), is_web, "http:// and https://"),
            ("batch", batch_records is not None, kind is Form.OTLP, "otlp"),
        ):
            if is_given and not is_right:
                raise unfit(f"the option {name} is only for {where}", "Leave it out.")
        if client_key_file is not None and client_cert_file is None:
            raise unfit("a client key needs its certificate", "Give the client certificate, too.")
        return cls(
            form=kind,
            address=address,
            append=append,
            timeout_s=_within("timeout", timeout_s, *_TIMEOUT_S),
            hostname=_hostname(socket.gethostname() if hostname is None else hostname),
            tls=tls,
            facility=_facility("audit" if facility is None else facility),
            framing=choice(framing or Framing.OCTET_COUNTING, Framing, "framing"),
            max_message_bytes=_number(
                "max-message", max_message_bytes, MIN_MESSAGE_BYTES, _MAX_MESSAGE_BYTES
            ),
            headers=_headers(headers or {}, address),
            batch_records=_number("batch", batch_records, 1, _MAX_BATCH) or 512,
        )


def _number(name: str, value: int | None, least: int, most: int) -> int | None:
    if value is not None:
        _within(name, value, least, most)
    return value


def _within(name: str, value: float, least: float, most: float) -> float:
    if not least <= value <= most:  # NaN is not, either
        raise unfit(f"{name} is out of bounds", f"Give {least:g} to {most:g}.")
    return value


def _hostname(text: str) -> str:
    """PRINTUSASCII of at most 255, or the nil value (RFC 5424, 6.2.4)."""
    return re.sub(r"[^\x21-\x7e]", "", text)[:255] or "-"


def _facility(text: str) -> int:
    if text in FACILITIES:
        return FACILITIES.index(text)
    if re.fullmatch(r"[0-9]{1,2}", text) and int(text) < len(FACILITIES):
        return int(text)
    raise unfit("this facility is not known", f"Give 0 to 23 or one of: {', '.join(FACILITIES)}.")


def _headers(headers: Mapping[str, str], address: Address) -> tuple[tuple[str, str], ...]:
    if len(headers) > _MAX_HEADERS:
        raise unfit("there are too many headers", f"Give at most {_MAX_HEADERS}.")
    for name, value in headers.items():
        is_name = _HEADER_NAME.fullmatch(name) and not _NOT_THEIRS.fullmatch(name)
        # A line break in a value would begin another header, or another request.
        if not is_name or not _HEADER_VALUE.fullmatch(value) or len(value) > _MAX_HEADER_CHARACTERS:
            raise unfit(
                "a header cannot be sent", "Give a name and one line of ASCII; not one of ours."
            )
        if _CREDENTIAL.search(name) and not (address.has_tls or address.is_loopback):
            raise unfit(
                "a header that looks like a credential would be sent in the clear",
                "Use https://, or http:// to a collector on this machine.",
            )
    return tuple(headers.items())
