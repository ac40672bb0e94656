"""The head of one HTTP/1.1 request on its way to a server inside a sandbox.

Only the first request of a connection is read here; `Connection: close` makes it the only one, so
that each request shows the token, and none of them carries the token inside.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

MAX_HEAD_BYTES = 64 * 1024
TOKEN_PARAMETER = "cellwall_token"  # noqa: S105  # a name
TOKEN_COOKIE = "cellwall_token"  # noqa: S105  # a name
_IN_ADDRESS = f"{TOKEN_PARAMETER}="
_LINE = re.compile(rb"([A-Z]{1,20}) (/[\x21-\x7e]*) HTTP/1\.[01]")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00\r\n]*?)[ \t]*")
_BEARER = re.compile(r"bearer +(\S+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request line with headers, and the bytes that came behind it."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    rest: bytes

    @property
    def host(self) -> str:
        """The name in `Host`, without the port; empty if there is not exactly one."""
        found = [value for name, value in self.headers if name.lower() == "host"]
        return found[0].lower().partition(":")[0] if len(found) == 1 else ""

    @property
    def token_in_address(self) -> str:
        for piece in self.target.partition("?")[2].split("&"):
            if piece.startswith(_IN_ADDRESS):
                return piece.removeprefix(_IN_ADDRESS)
        return ""

    @property
    def bare_target(self) -> str:
        """The address without the token."""
        path, _, query = self.target.partition("?")
        kept = "&".join(each for each in query.split("&") if not each.startswith(_IN_ADDRESS))
        return f"{path}?{kept}" if kept else path

    @property
    def redirect_target(self) -> str:
        """The same for a redirect: one to //other.example would lead to another host."""
        return "/" + self.bare_target.lstrip("/\\")

    def shown_tokens(self, own_host: str) -> list[str]:
        """Every token that the request shows. Cookies count under `own_host` alone: browsers send
        those of 127.0.0.1 to every port of it, with those of the dashboard among them."""
        is_own = self.host == own_host
        found = [self.token_in_address] if is_own else []
        for name, value in self.headers:
            if name.lower() == "x-cellwall-token":
                found.append(value)
            elif name.lower() == "authorization" and (match := _BEARER.fullmatch(value)):
                found.append(match[1])
            elif name.lower() == "cookie" and is_own:
                found += [value for name, value in cookies_of(value) if name == TOKEN_COOKIE]
        return [each for each in found if each]

    def for_server(self, own_host: str) -> bytes:
        """The request for the server inside, without the token and without cookies of others; one
        request for a connection."""
        own = self.shown_tokens(own_host)
        is_upgrade = any(name.lower() == "upgrade" for name, _ in self.headers)
        lines = [f"{self.method} {self.bare_target} HTTP/1.1"]
        for name, value in self.headers:
            kept = value
            match name.lower():
                case "x-cellwall-token" | "keep-alive":
                    kept = ""
                case "connection" if not is_upgrade:
                    kept = ""
                case "authorization" if any(each in value for each in own):
                    kept = ""
                case "cookie":
                    kept = without_token(value) if self.host == own_host else ""
            if kept or not value:
                lines.append(f"{name}: {kept}")
        if not is_upgrade:
            lines.append("Connection: close")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + self.rest


def cookies_of(header: str) -> list[tuple[str, str]]:
    """Names and values of a `Cookie` header."""
    pairs = (each.strip().partition("=") for each in header.split(";"))
    return [(name, value) for name, _, value in pairs if name]


def without_token(header: str) -> str:
    """A `Cookie` header without the token."""
    return "; ".join(f"{n}={v}" for n, v in cookies_of(header) if n != TOKEN_COOKIE)


async def read_head(receive: Callable[[], Awaitable[bytes]]) -> RequestHead | None:
    """None for bytes that are no request, or a head that is too long."""
    data = b""
    while b"\r\n\r\n" not in data:
        if len(data) > MAX_HEAD_BYTES:
            return None
        data += await receive()
    head, _, rest = data.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    line = _LINE.fullmatch(first)
    headers = [_HEADER.fullmatch(each) for each in lines]
    if line is None or None in headers or len(head) > MAX_HEAD_BYTES:
        return None
    found = tuple((h[1].decode(), h[2].decode("latin-1")) for h in headers if h is not None)
    return RequestHead(line[1].decode(), line[2].decode(), found, rest)


def refusal(status: int, why: str) -> bytes:
    """A response of Cellwall itself."""
    body = f"Cellwall: {why}\n".encode("utf-8", "replace")
    return (
        f"HTTP/1.1 {status} Refused\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    ).encode() + body


def token_cookie(head: RequestHead, token: str) -> bytes:
    """Keep the token in a cookie, and send the browser to the address without it."""
    return (
        f"HTTP/1.1 303 See Other\r\nLocation: {head.redirect_target}\r\n"
        f"Set-Cookie: {TOKEN_COOKIE}={token}; HttpOnly; SameSite=Lax; Path=/\r\n"
        "Referrer-Policy: no-referrer\r\nCache-Control: no-store\r\nContent-Length: 0\r\n"
        "Connection: close\r\n\r\n"
    ).encode("latin-1")
