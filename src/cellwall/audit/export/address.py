"""Where an export goes: a file, standard output, a socket or a URL."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

from cellwall.core.errors import BadInput
from cellwall.core.text import to_bytes

Choice = TypeVar("Choice", bound=StrEnum)

_PORTS = {"udp": 514, "tcp": 601, "tls": 6514, "http": 4318, "https": 443}
"""Those of RFC 5426, RFC 6587, RFC 5425 and OTLP over HTTP."""
_OTLP_PATH = "/v1/logs"
_MAX_PATH_BYTES = 4096
_MAX_UNIX_PATH_BYTES = 107
_HOST = re.compile(r"(?=.{1,253}$)[0-9A-Za-z_-]{1,63}(?:\.[0-9A-Za-z_-]{1,63})*\.?")
_URL_PATH = re.compile(r"/[\x21-\x7e]*")
_FORGOTTEN = re.compile(r"[^/]+:[0-9]+")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


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


_WAYS = {
    Form.JSONL: {Way.STDOUT, Way.FILE},
    Form.CSV: {Way.STDOUT, Way.FILE},
    Form.SYSLOG: {Way.UDP, Way.TCP, Way.TLS, Way.UNIX},
    Form.OTLP: {Way.STDOUT, Way.FILE, Way.HTTP, Way.HTTPS},
}
_EXAMPLES = {
    Form.JSONL: "a file, or `-` for standard output",
    Form.CSV: "a file, or `-` for standard output",
    Form.SYSLOG: "udp://HOST:PORT, tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH",
    Form.OTLP: "https://HOST:PORT/v1/logs, http://HOST:PORT/v1/logs, a file, or `-`",
}


@dataclass(frozen=True, slots=True)
class Address:
    """`path` is that of the file or socket, or the path and query of the URL."""

    way: Way
    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, form: Form, destination: str) -> Address:
        """`BadInput` if it is none, or none for this form."""
        address = _parsed(destination)
        if address is None or address.way not in _WAYS[form]:
            # What was typed is not repeated: it may hold a path or a password.
            raise unfit(f"this destination is not one for {form}", f"Give {_EXAMPLES[form]}.")
        return address

    @property
    def has_tls(self) -> bool:
        return self.way in (Way.TLS, Way.HTTPS)

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def unfit(message: str, hint: str) -> BadInput:
    """What cannot be meant; nothing was opened or sent."""
    return BadInput(message, hint=hint, code="CW-EXPORT-TARGET")


def choice(text: str, kind: type[Choice], what: str) -> Choice:
    """One of the words, or `BadInput` that lists them."""
    try:
        return kind(text)
    except ValueError:
        raise unfit(f"this {what} is not known", f"Give one of: {', '.join(kind)}.") from None


def _parsed(destination: str) -> Address | None:
    if destination == "-":
        return Address(Way.STDOUT)
    if not destination or "\0" in destination or _length(destination) > _MAX_PATH_BYTES:
        return None
    if _SCHEME.match(destination) is None:
        # `host:514` must not quietly become a file of that name.
        return None if _FORGOTTEN.fullmatch(destination) else Address(Way.FILE, path=destination)
    try:
        url = urlsplit(destination)
        port = url.port
    except ValueError:
        return None
    if url.scheme == "unix":
        return _unix(url)
    if url.scheme == "file":
        return Address(Way.FILE, path=url.path) if url.path[1:] and not url.netloc else None
    if url.scheme not in _PORTS or not _is_host(url.hostname) or port == 0:
        return None
    if url.username is not None or url.password is not None:
        raise unfit(
            "a destination holds no user or password", "Give credentials in a header, from a file."
        )
    address = Address(
        Way(url.scheme), host=url.hostname or "", port=port or _PORTS[url.scheme], path=url.path
    )
    return _with_url_path(address, url) if url.scheme in ("http", "https") else _bare(address, url)


def _length(path: str) -> int:
    return len(to_bytes(path, what="the destination"))


def _unix(url: SplitResult) -> Address | None:
    is_plain = not (url.netloc or url.query or url.fragment) and url.path[1:]
    if not is_plain or _length(url.path) > _MAX_UNIX_PATH_BYTES:
        return None
    return Address(Way.UNIX, path=url.path)


def _bare(address: Address, url: SplitResult) -> Address | None:
    is_bare = address.path in ("", "/") and not url.query and not url.fragment
    return Address(address.way, address.host, address.port) if is_bare else None


def _with_url_path(address: Address, url: SplitResult) -> Address | None:
    path = address.path if address.path not in ("", "/") else _OTLP_PATH
    path += f"?{url.query}" if url.query else ""
    if url.fragment or _URL_PATH.fullmatch(path) is None:
        return None
    return Address(address.way, address.host, address.port, path)


def _is_host(host: str | None) -> bool:
    if host is None:
        return False
    if ":" in host:
        try:
            return ipaddress.IPv6Address(host) is not None
        except ValueError:
            return False
    return _HOST.fullmatch(host) is not None
