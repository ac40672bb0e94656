"""The target of an export: a file, standard output, a socket or a URL, and its options.

Options that do not fit together are refused, never ignored.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

from cellwall.core.errors import BadInput
from cellwall.core.text import to_bytes

_Choice = TypeVar("_Choice", bound=StrEnum)

_PORTS = {"udp": 514, "tcp": 601, "tls": 6514, "http": 4318, "https": 443}
"""The ports of RFC 5426, RFC 6587, RFC 5425 and OTLP over HTTP."""
_OTLP_PATH = "/v1/logs"
_MAX_PATH_BYTES = 4096
_MAX_UNIX_PATH_BYTES = 107
_HOST = re.compile(r"(?=.{1,253}$)[0-9A-Za-z_-]{1,63}(?:\.[0-9A-Za-z_-]{1,63})*\.?")
_URL_PATH = re.compile(r"/[\x21-\x7e]*")
_HOST_AND_PORT = re.compile(r"[^/]+:[0-9]+")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class ExportForm(StrEnum):
    """The format of the exported records."""

    JSONL = "jsonl"
    CSV = "csv"
    SYSLOG = "syslog"
    OTLP = "otlp"


class Transport(StrEnum):
    """How the records are sent."""

    STDOUT = "stdout"
    FILE = "file"
    UDP = "udp"
    TCP = "tcp"
    TLS = "tls"
    UNIX = "unix"
    HTTP = "http"
    HTTPS = "https"


_TRANSPORTS = {
    ExportForm.JSONL: {Transport.STDOUT, Transport.FILE},
    ExportForm.CSV: {Transport.STDOUT, Transport.FILE},
    ExportForm.SYSLOG: {Transport.UDP, Transport.TCP, Transport.TLS, Transport.UNIX},
    ExportForm.OTLP: {Transport.STDOUT, Transport.FILE, Transport.HTTP, Transport.HTTPS},
}
_EXAMPLES = {
    ExportForm.JSONL: "a file, or `-` for standard output",
    ExportForm.CSV: "a file, or `-` for standard output",
    ExportForm.SYSLOG: "udp://HOST:PORT, tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH",
    ExportForm.OTLP: "https://HOST:PORT/v1/logs, http://HOST:PORT/v1/logs, a file, or `-`",
}


@dataclass(frozen=True, slots=True)
class ExportAddress:
    """`path` is that of the file or socket, or the path and query of the URL."""

    transport: Transport
    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, form: ExportForm, destination: str) -> ExportAddress:
        """Raises `BadInput` if the destination is malformed or does not fit the form."""
        address = _parse(destination)
        if address is None or address.transport not in _TRANSPORTS[form]:
            # The destination is not echoed: it may contain a path or a password.
            raise target_error(
                f"this destination does not fit the form {form}", f"Give {_EXAMPLES[form]}."
            )
        return address

    @property
    def has_tls(self) -> bool:
        return self.transport in (Transport.TLS, Transport.HTTPS)

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def target_error(message: str, hint: str) -> BadInput:
    """An invalid target; nothing was opened or sent."""
    return BadInput(message, hint=hint, code="CW-EXPORT-TARGET")


def parse_choice(text: str, kind: type[_Choice], what: str) -> _Choice:
    """One of the enum's values; `BadInput` lists them."""
    try:
        return kind(text)
    except ValueError:
        raise target_error(
            f"this {what} is not known", f"Give one of: {', '.join(kind)}."
        ) from None


def _parse(destination: str) -> ExportAddress | None:
    if destination == "-":
        return ExportAddress(Transport.STDOUT)
    if not destination or "\0" in destination or _length(destination) > _MAX_PATH_BYTES:
        return None
    if _SCHEME.match(destination) is None:
        # `host:514` must not quietly become a file of that name.
        is_file = _HOST_AND_PORT.fullmatch(destination) is None
        return ExportAddress(Transport.FILE, path=destination) if is_file else None
    try:
        url = urlsplit(destination)
        return _parse_url(url, url.port)
    except ValueError:
        return None


def _parse_url(url: SplitResult, port: int | None) -> ExportAddress | None:
    if url.scheme == "file":
        is_plain = bool(url.path[1:]) and not url.netloc
        return ExportAddress(Transport.FILE, path=url.path) if is_plain else None
    if url.scheme == "unix":
        is_plain = bool(url.path[1:]) and not (url.netloc or url.query or url.fragment)
        fits = is_plain and _length(url.path) <= _MAX_UNIX_PATH_BYTES
        return ExportAddress(Transport.UNIX, path=url.path) if fits else None
    if url.scheme not in _PORTS or not _is_host(url.hostname) or port == 0 or url.fragment:
        return None
    if url.username is not None or url.password is not None:
        raise target_error(
            "a destination must not contain a user or password",
            "Give credentials in a header, from a file.",
        )
    path, is_valid = "", url.path in ("", "/") and not url.query
    if url.scheme in ("http", "https"):
        path = _OTLP_PATH if url.path in ("", "/") else url.path
        path += f"?{url.query}" if url.query else ""
        is_valid = _URL_PATH.fullmatch(path) is not None
    address = ExportAddress(
        Transport(url.scheme), url.hostname or "", port or _PORTS[url.scheme], path
    )
    return address if is_valid else None


def _length(path: str) -> int:
    return len(to_bytes(path, what="the destination"))


def _is_host(host: str | None) -> bool:
    if host is None:
        return False
    if ":" in host:
        try:
            return ipaddress.IPv6Address(host) is not None
        except ValueError:
            return False
    return _HOST.fullmatch(host) is not None


FACILITIES = (
    *("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron"),
    *("authpriv", "ftp", "ntp", "audit", "alert", "clock"),
    *(f"local{number}" for number in range(8)),
)
"""By their numbers in RFC 5424, table 1; `audit` is number 13, "log audit"."""

MIN_MESSAGE_BYTES = 1024
"""With less, a message would consist of truncation marks only; RFC 5424 requires receivers to
take 480 and recommends 2048."""
_MAX_MESSAGE_BYTES = 1024 * 1024
_MAX_BATCH = 10_000
_TIMEOUT_S = (0.1, 600.0)
_MAX_HEADERS = 32
_MAX_HEADER_CHARACTERS = 8192
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
_RESERVED_HEADERS = re.compile(
    r"host|connection|te|upgrade|expect|trailer|transfer-encoding|accept-encoding|content-.*",
    re.IGNORECASE,
)
_CREDENTIAL = re.compile(r"auth|cookie|token|key|secret|passw|credential", re.IGNORECASE)


def parse_headers(text: str) -> dict[str, str]:
    """A file of headers, `Name: value` on each line: a token there does not show in the process
    list.

    Empty lines and lines that begin with # are ignored.
    """
    headers: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, value = line.partition(":")
        if not colon or name in headers:
            raise target_error(
                "a line of the headers is malformed", "Write each once, as `Name: value`."
            )
        headers[name] = value.strip()
    return headers


class Framing(StrEnum):
    """How a message ends on a stream (RFC 6587)."""

    OCTET_COUNTING = "octet-counting"
    NEWLINE = "newline"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Trusted authorities and the client certificate."""

    ca_file: str | None = None
    """Trusted instead of the system's authorities."""
    client_cert_file: str | None = None
    client_key_file: str | None = None
    dangerously_accept_any_certificate: bool = False


@dataclass(frozen=True, slots=True)
class ExportTarget:
    """Created by `parse`, which validates it. Its repr omits the headers: they contain tokens."""

    form: ExportForm
    address: ExportAddress
    append: bool = False
    timeout_s: float = 10.0
    hostname: str = "-"
    """This machine's name as sent to receivers."""
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
        """Validates everything before anything is opened or sent; raises `BadInput`."""
        kind = parse_choice(form, ExportForm, "form")
        address = ExportAddress.parse(kind, destination)
        tls = TlsSettings(
            ca_file, client_cert_file, client_key_file, dangerously_accept_any_certificate
        )
        is_web = address.transport in (Transport.HTTP, Transport.HTTPS)
        is_syslog = kind is ExportForm.SYSLOG
        for name, is_given, is_right, where in (
            ("append", append, address.transport is Transport.FILE, "a file"),
            (
                "hostname",
                hostname is not None,
                is_syslog or kind is ExportForm.OTLP,
                "syslog and otlp",
            ),
            ("TLS", tls != TlsSettings(), address.has_tls, "tls:// and https://"),
            ("facility", facility is not None, is_syslog, "syslog"),
            (
                "framing",
                framing is not None,
                is_syslog and address.transport is not Transport.UDP,
                "streams",
            ),
            ("max-message", max_message_bytes is not None, is_syslog, "syslog"),
            ("header", bool(headers), is_web, "http:// and https://"),
            ("batch", batch_records is not None, kind is ExportForm.OTLP, "otlp"),
        ):
            if is_given and not is_right:
                raise target_error(f"the option {name} is only for {where}", "Leave it out.")
        if client_key_file is not None and client_cert_file is None:
            raise target_error(
                "a client key needs its certificate", "Give the client certificate, too."
            )
        return cls(
            form=kind,
            address=address,
            append=append,
            timeout_s=_within("timeout", timeout_s, *_TIMEOUT_S),
            hostname=_hostname(socket.gethostname() if hostname is None else hostname),
            tls=tls,
            facility=_facility("audit" if facility is None else facility),
            framing=parse_choice(framing or Framing.OCTET_COUNTING, Framing, "framing"),
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
    if not least <= value <= most:  # also refuses NaN
        raise target_error(f"{name} is out of bounds", f"Give {least:g} to {most:g}.")
    return value


def _hostname(text: str) -> str:
    """PRINTUSASCII, at most 255 characters, or the nil value (RFC 5424, 6.2.4)."""
    return re.sub(r"[^\x21-\x7e]", "", text)[:255] or "-"


def _facility(text: str) -> int:
    if text in FACILITIES:
        return FACILITIES.index(text)
    if re.fullmatch(r"[0-9]{1,2}", text) and int(text) < len(FACILITIES):
        return int(text)
    raise target_error(
        "this facility is not known", f"Give 0 to 23 or one of: {', '.join(FACILITIES)}."
    )


def _headers(headers: Mapping[str, str], address: ExportAddress) -> tuple[tuple[str, str], ...]:
    if len(headers) > _MAX_HEADERS:
        raise target_error("there are too many headers", f"Give at most {_MAX_HEADERS}.")
    for name, value in headers.items():
        is_name = _HEADER_NAME.fullmatch(name) and not _RESERVED_HEADERS.fullmatch(name)
        # A line break in a value would start another header or another request (header injection).
        if not is_name or not _HEADER_VALUE.fullmatch(value) or len(value) > _MAX_HEADER_CHARACTERS:
            raise target_error(
                "a header cannot be sent", "Give a name and one line of ASCII; not one of ours."
            )
        if _CREDENTIAL.search(name) and not (address.has_tls or address.is_loopback):
            raise target_error(
                "a header that looks like a credential would be sent in the clear",
                "Use https://, or http:// to a collector on this machine.",
            )
    return tuple(headers.items())
