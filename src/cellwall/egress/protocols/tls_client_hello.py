"""The server name (SNI) in a TLS ClientHello, parsed without interception (NET-6). Pure.

Where TLS is not intercepted, only this name can be compared with the allowed host. So a hello that
two parsers could read as two names is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from cellwall.core.errors import EgressRefused

MAX_HELLO_BYTES = 64 * 1024
_MAX_RECORDS = 64
"""A hello in thousands of one-byte records would cost far more to parse than to send."""
_MAX_FRAGMENT_BYTES = 1 << 14
_RECORD_HEAD_BYTES = 5
_MESSAGE_HEAD_BYTES = 4
_HANDSHAKE = 22
_CLIENT_HELLO = 1
_VERSIONS = frozenset({0x0301, 0x0302, 0x0303})
"""TLS 1.3 states 1.0 or 1.2 here and its own version in an extension; SSL 3.0 is refused."""
_SERVER_NAME = 0
_HOST_NAME = 0
_PROTOCOLS = 16
_ENCRYPTED_HELLO = 0xFE0D
_MAX_NAME_BYTES = 255


@dataclass(frozen=True, slots=True)
class Hello:
    """A ClientHello."""

    name: str | None
    """SNI as sent; None without one."""
    protocols: tuple[bytes, ...] = ()
    """The protocols that ALPN offers."""


def read_hello(data: bytes, *, is_intercepted: bool = False) -> Hello | None:
    """Parse a ClientHello; None while bytes are missing.

    `is_intercepted`: TLS ends here, with the session's own authority.
    """
    message = _message(data)
    return (
        None if message is None else _hello(_VectorReader(message), is_intercepted=is_intercepted)
    )


def _message(data: bytes) -> bytes | None:
    """The body of the handshake message, from its records; None while bytes are missing."""
    fragments = bytearray()
    at = 0
    for _ in range(_MAX_RECORDS):
        _check_record_start(data[at : at + _RECORD_HEAD_BYTES], is_first=at == 0)
        if len(data) - at < _RECORD_HEAD_BYTES:
            return _none_yet(data)
        size = int.from_bytes(data[at + 3 : at + _RECORD_HEAD_BYTES], "big")
        at += _RECORD_HEAD_BYTES
        fragments += data[at : at + size]
        if fragments[:1] not in (b"", bytes([_CLIENT_HELLO])):
            raise _bad("it does not begin with a client's hello")
        if len(fragments) >= _MESSAGE_HEAD_BYTES:
            needed = _MESSAGE_HEAD_BYTES + int.from_bytes(fragments[1:_MESSAGE_HEAD_BYTES], "big")
            if needed > MAX_HELLO_BYTES:
                raise _bad("its hello is too long")
            # Some parsers skip a second message behind the hello in the same record.
            if len(fragments) > needed or at + size - len(data) > needed - len(fragments):
                raise _bad("something follows the hello within its record")
            if len(fragments) == needed:
                return bytes(fragments[_MESSAGE_HEAD_BYTES:])
        at += size
        if at > len(data):
            return _none_yet(data)
    raise _bad("its hello is split into too many records")


def _check_record_start(head: bytes, *, is_first: bool) -> None:
    """Refuse at the first byte that no hello has, without waiting for more."""
    if head[:1] not in (b"", bytes([_HANDSHAKE])) or (head[1:2] not in (b"", b"\x03")):
        raise _not_tls() if is_first else _bad("its hello is interrupted")
    if len(head) >= 3 and int.from_bytes(head[1:3], "big") not in _VERSIONS:
        raise _bad("its version is not supported")
    if len(head) == _RECORD_HEAD_BYTES:
        size = int.from_bytes(head[3:], "big")
        if not 0 < size <= _MAX_FRAGMENT_BYTES:
            raise _bad("a record has an impossible length")


def _none_yet(data: bytes) -> bytes | None:
    if len(data) >= MAX_HELLO_BYTES + _MAX_RECORDS * _RECORD_HEAD_BYTES:
        raise _bad("its hello is too long")
    return None


class _VectorReader:
    """A parser position; every length must fit its enclosing vector exactly."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._data)

    def take(self, count: int) -> bytes:
        data = self._data[self._at : self._at + count]
        if len(data) != count:
            raise _bad("a length in its hello points past the end")
        self._at += count
        return data

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def vector(self, width: int) -> bytes:
        return self.take(self.number(width))

    def end(self) -> None:
        if not self.is_at_end:
            raise _bad("its hello has bytes left over")


def _hello(hello: _VectorReader, *, is_intercepted: bool) -> Hello:
    if hello.number(2) not in _VERSIONS:
        raise _bad("its version is not supported")
    hello.take(32)
    session, suites, compressions = hello.vector(1), hello.vector(2), hello.vector(1)
    if len(session) > 32 or not suites or len(suites) % 2 or not compressions:
        raise _bad("its hello is malformed")
    if hello.is_at_end:
        return Hello(None)
    extensions = _VectorReader(hello.vector(2))
    hello.end()
    by_kind: dict[int, bytes] = {}
    while not extensions.is_at_end:
        kind, content = extensions.number(2), extensions.vector(2)
        if kind in by_kind:
            raise _bad("its hello has an extension twice")
        by_kind[kind] = content
    if _ENCRYPTED_HELLO in by_kind and not is_intercepted:
        # The outer name is a decoy: the server uses the encrypted one.
        raise EgressRefused(
            "the TLS connection encrypts its server name (Encrypted Client Hello)",
            hint="Turn Encrypted Client Hello off in the client.",
            code="CW-BAD-TLS",
        )
    return Hello(
        _one_name(_VectorReader(by_kind[_SERVER_NAME])) if _SERVER_NAME in by_kind else None,
        _protocols(_VectorReader(by_kind[_PROTOCOLS])) if _PROTOCOLS in by_kind else (),
    )


def _protocols(extension: _VectorReader) -> tuple[bytes, ...]:
    names = _VectorReader(extension.vector(2))
    extension.end()
    protocols = []
    while not names.is_at_end:
        protocols.append(names.vector(1))
    return tuple(protocols)


def _one_name(extension: _VectorReader) -> str:
    names = _VectorReader(extension.vector(2))
    extension.end()
    kind, name = names.number(1), names.vector(2)
    names.end()
    if kind != _HOST_NAME:
        raise _bad("its server name is not a host name")
    # Printable ASCII only: a NUL ends the name for some parsers and not for others.
    if not 0 < len(name) <= _MAX_NAME_BYTES or not all(0x21 <= byte <= 0x7E for byte in name):
        raise _bad("its server name is malformed")
    return name.decode("ascii")


def _not_tls() -> EgressRefused:
    return EgressRefused(
        "the connection does not speak TLS",
        hint="Connect to this port with TLS, or ask for a port that is served without it.",
        code="CW-NOT-TLS",
    )


def _bad(why: str) -> EgressRefused:
    return EgressRefused(
        f"the TLS connection is refused: {why}",
        hint="Use a common TLS library with its usual settings.",
        code="CW-BAD-TLS",
    )
