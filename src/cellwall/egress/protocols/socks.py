"""The server side of SOCKS5 (RFC 1928): CONNECT without authentication. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address

from cellwall.core.errors import EgressRefused

OK = 0
FAILED = 1
NOT_ALLOWED = 2
HOST_UNREACHABLE = 4
CONNECTION_REFUSED = 5
COMMAND_NOT_SUPPORTED = 7
ADDRESS_TYPE_NOT_SUPPORTED = 8

VERSION = 5
"""Also the first byte, which distinguishes SOCKS from HTTP."""
_NO_AUTHENTICATION = 0
_NO_METHOD = b"\x05\xff"
_CONNECT = 1
_IPV4, _DOMAIN, _IPV6 = 1, 3, 4


class SocksRefused(EgressRefused):
    """An unsupported request; `answer` is sent before the connection ends."""

    default_code = "CW-SOCKS"

    def __init__(self, message: str, *, code: str, hint: str, answer: bytes) -> None:
        super().__init__(message, code=code, hint=hint)
        self.answer = answer


def reply(code: int) -> bytes:
    """The reply to a request; the bound address is not disclosed to the cell."""
    return bytes([VERSION, code, 0, _IPV4, 0, 0, 0, 0, 0, 0])


class Handshake:
    """The handshake of a client, until its target is known.

    Then `target` is set: the host as text for `hostnames.host_of`, and the port. The caller
    sends `reply`, and continues with `rest`.
    """

    def __init__(self) -> None:
        self.target: tuple[str, int] | None = None
        self._data = bytearray()
        self._is_greeted = False

    @property
    def rest(self) -> bytes:
        """The bytes behind the request: the first ones for the server."""
        return bytes(self._data) if self.target is not None else b""

    def feed(self, data: bytes) -> Sequence[bytes]:
        """The replies to send; `SocksRefused` ends the handshake."""
        self._data += data
        sends: list[bytes] = []
        try:
            if not self._is_greeted and self._greet():
                sends.append(bytes([VERSION, _NO_AUTHENTICATION]))
            if self._is_greeted and self.target is None:
                self._read_request()
        except SocksRefused as refusal:
            refusal.answer = b"".join(sends) + refusal.answer
            raise
        return sends

    def _greet(self) -> bool:
        if self._data and self._data[0] != VERSION:
            raise _malformed("it is not version 5", answer=b"")
        if len(self._data) < 2 or len(self._data) < 2 + self._data[1]:
            return False
        end = 2 + self._data[1]
        if _NO_AUTHENTICATION not in self._data[2:end]:
            raise SocksRefused(
                "the SOCKS client requires password authentication",
                code="CW-SOCKS-LOGIN",
                hint="Remove user and password: the proxy needs none.",
                answer=_NO_METHOD,
            )
        del self._data[:end]
        self._is_greeted = True
        return True

    def _read_request(self) -> None:
        head = self._data[:5]
        if head and head[0] != VERSION:
            raise _malformed("it is not version 5", answer=reply(FAILED))
        if len(head) >= 2 and head[1] != _CONNECT:
            raise SocksRefused(
                "SOCKS supports only CONNECT here, neither BIND nor UDP",
                code="CW-SOCKS-COMMAND",
                hint="Use TCP connections that the client opens.",
                answer=reply(COMMAND_NOT_SUPPORTED),
            )
        if len(head) >= 3 and head[2] != 0:
            raise _malformed("a reserved byte is used", answer=reply(FAILED))
        if len(head) >= 4 and head[3] not in (_IPV4, _DOMAIN, _IPV6):
            raise SocksRefused(
                "the SOCKS request has an unknown type of address",
                code="CW-SOCKS-ADDRESS",
                hint="Request a host name (socks5h://).",
                answer=reply(ADDRESS_TYPE_NOT_SUPPORTED),
            )
        if len(head) < 5:
            return
        begin, size = {_IPV4: (4, 4), _DOMAIN: (5, head[4]), _IPV6: (4, 16)}[head[3]]
        end = begin + size
        if len(self._data) < end + 2:
            return
        host = _host(head[3], bytes(self._data[begin:end]))
        port = int.from_bytes(self._data[end : end + 2], "big")
        if port == 0:
            raise _malformed("there is no port 0", answer=reply(FAILED))
        del self._data[: end + 2]
        self.target = host, port


def _host(kind: int, content: bytes) -> str:
    if kind == _IPV4:
        return str(IPv4Address(content))
    if kind == _IPV6:
        return f"[{IPv6Address(content)}]"
    # `evil.com\0.allowed.com` is one name for a rule and another one for a C resolver.
    if not content or not all(0x21 <= byte <= 0x7E for byte in content):
        raise _malformed("the host name is malformed", answer=reply(FAILED))
    return content.decode("ascii")


def _malformed(why: str, *, answer: bytes) -> SocksRefused:
    return SocksRefused(
        f"the SOCKS request cannot be read: {why}",
        code="CW-SOCKS",
        hint="Use a client that speaks SOCKS5 as in RFC 1928.",
        answer=answer,
    )
