"""The name in a TLS hello: real hellos in any number of pieces, and every way to say two things."""

from __future__ import annotations

import ssl

import pytest

from cellwall.core.errors import EgressRefused
from cellwall.egress.protocols.tls_client_hello import MAX_HELLO_BYTES, read_hello

pytestmark = pytest.mark.requirement("NET-6")


INCOMPLETE = object()


def server_name(data: bytes, *, is_intercepted: bool = False) -> object:
    found = read_hello(data, is_intercepted=is_intercepted)
    return INCOMPLETE if found is None else found.name


def hello(name: str | None = "api.example.com", **settings: object) -> bytes:
    """What OpenSSL's client sends first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    for key, value in settings.items():
        setattr(context, key, value)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def record(fragment: bytes, *, kind: int = 22, version: bytes = b"\x03\x01") -> bytes:
    return bytes([kind]) + version + len(fragment).to_bytes(2, "big") + fragment


def records(data: bytes, size: int) -> bytes:
    """The same hello, cut into records of this size."""
    message = data[5:]
    return b"".join(record(message[at : at + size]) for at in range(0, len(message), size))


def vector(width: int, content: bytes) -> bytes:
    return len(content).to_bytes(width, "big") + content


def extension(kind: int, content: bytes) -> bytes:
    return kind.to_bytes(2, "big") + vector(2, content)


def names(*entries: tuple[int, bytes]) -> bytes:
    return extension(
        0, vector(2, b"".join(bytes([kind]) + vector(2, name) for kind, name in entries))
    )


def built(
    extensions: bytes | None,
    *,
    version: bytes = b"\x03\x03",
    session: bytes = bytes(32),
    suites: bytes = b"\x13\x01",
    compressions: bytes = b"\x00",
    tail: bytes = b"",
    kind: int = 1,
) -> bytes:
    """A hello by hand, in one record."""
    body = version + bytes(32) + vector(1, session) + vector(2, suites) + vector(1, compressions)
    if extensions is not None:
        body += vector(2, extensions)
    return record(bytes([kind]) + vector(3, body + tail))


GOOD = names((0, b"api.example.com"))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"maximum_version": ssl.TLSVersion.TLSv1_2},
        {"minimum_version": ssl.TLSVersion.TLSv1_3},
    ],
)
def test_the_name_of_a_real_hello_is_read(settings: dict[str, object]) -> None:
    assert server_name(hello("api.example.com", **settings)) == "api.example.com"


def test_a_real_hello_without_a_name_has_none() -> None:
    assert server_name(hello(None)) is None


def test_a_hello_without_extensions_has_no_name() -> None:
    assert server_name(built(None)) is None


def test_the_name_is_given_as_it_was_sent() -> None:
    assert server_name(built(names((0, b"API.Example.COM.")))) == "API.Example.COM."


@pytest.mark.parametrize("size", [16, 17, 100, 255, 512])
def test_a_hello_cut_into_records_is_put_together(size: int) -> None:
    # With TLS 1.3 a hello may hold post-quantum key shares (OpenSSL 3.5: 1.5 KB), too many records.
    data = hello(maximum_version=ssl.TLSVersion.TLSv1_2)
    assert server_name(records(data, size)) == "api.example.com"


@pytest.mark.parametrize("size", [40, 5000])
def test_every_beginning_of_a_hello_is_incomplete(size: int) -> None:
    data = records(hello(), size)
    assert [server_name(data[:end]) for end in range(len(data))] == [INCOMPLETE] * len(data)
    assert server_name(data) == "api.example.com"


def test_what_follows_in_records_of_its_own_is_the_servers_business() -> None:
    """Early data of TLS 1.3, or a client that goes on without waiting."""
    following = record(b"\x01", kind=20) + record(b"early", kind=23)
    assert server_name(hello() + following) == "api.example.com"


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x80\x2e\x01\x03\x01",
        b"SSH-2.0-x\r\n",
        b"\x00",
        b"\x17\x03\x03",
        b"\x16\x02",
    ],
)
def test_what_is_not_tls_is_refused_at_its_first_bytes(data: bytes) -> None:
    with pytest.raises(EgressRefused) as refused:
        server_name(data)
    assert refused.value.code == "CW-NOT-TLS"


BAD = {
    "ssl 3": record(hello()[5:], version=b"\x03\x00"),
    "unknown record version": record(hello()[5:], version=b"\x03\x04"),
    "an empty record": record(b"") + hello(),
    "a record that is too long": b"\x16\x03\x01\x40\x01",
    "another message": built(GOOD, kind=2),
    "another message, one byte of it": b"\x16\x03\x01\x00\x20\x02",
    "a hello that is too long": record(b"\x01\x01\x00\x00"),
    "a second message in the record": record(hello()[5:] + b"\x01\x00\x00\x00"),
    "a second message to come": record(hello()[5:] + b"\x01\x00\x00\x00")[:-4],
    "interrupted by an alert": records(hello(), 100)[:105] + record(b"\x01\x00", kind=21),
    "too many records": b"".join(record(bytes([byte])) for byte in hello()[5:]),
    "ssl 3 within": built(GOOD, version=b"\x03\x00"),
    "tls 1.3 within": built(GOOD, version=b"\x03\x04"),
    "a long session": built(GOOD, session=bytes(33)),
    "no suites": built(GOOD, suites=b""),
    "half a suite": built(GOOD, suites=b"\x13\x01\x00"),
    "no compression": built(GOOD, compressions=b""),
    "bytes behind the extensions": built(GOOD, tail=b"\x00"),
    "extensions cut off": built(GOOD[:-1]),
    "half an extension": built(GOOD + b"\x00"),
    "the name twice": built(GOOD + names((0, b"other.example.com"))),
    "another extension twice": built(GOOD + extension(16, b"") * 2),
    "two names": built(names((0, b"api.example.com"), (0, b"other.example.com"))),
    "a name of another type": built(names((1, b"api.example.com"))),
    "a name and one of another type": built(names((0, b"api.example.com"), (1, b"x"))),
    "no name in the list": built(names()),
    "an empty extension": built(extension(0, b"")),
    "an empty name": built(names((0, b""))),
    "a long name": built(names((0, b"a" * 256))),
    "a NUL": built(names((0, b"evil.example.net\0.example.com"))),
    "a space": built(names((0, b"api.example.com "))),
    "a line break": built(names((0, b"api.example.com\r\nx"))),
    "not ASCII": built(names((0, "ä.example.com".encode()))),
    "bytes behind the list": built(extension(0, GOOD[4:] + b"\x00")),
    "a list longer than its extension": built(extension(0, b"\x00\xff" + GOOD[6:])),
    "a list shorter than its names": built(extension(0, b"\x00\x01" + GOOD[6:])),
    "a hidden name": built(GOOD + extension(0xFE0D, bytes(64))),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_a_hello_with_two_meanings_is_refused(data: bytes) -> None:
    assert server_name(built(GOOD)) == "api.example.com", "the control must be read"
    with pytest.raises(EgressRefused) as refused:
        server_name(data)
    assert refused.value.code == "CW-BAD-TLS"
    assert refused.value.hint


def test_a_hidden_name_does_not_matter_where_tls_ends_here() -> None:
    data = built(GOOD + extension(0xFE0D, bytes(64)))
    assert server_name(data, is_intercepted=True) == "api.example.com"


def test_a_hello_that_never_ends_is_refused() -> None:
    size = MAX_HELLO_BYTES - 4
    message = b"\x01" + size.to_bytes(3, "big") + bytes(size)
    pieces = [message[at : at + 1024] for at in range(0, len(message), 1024)]
    data = b"".join(map(record, pieces))
    assert server_name(data[:-1]) is INCOMPLETE
    longer = b"\x01" + (size + 1).to_bytes(3, "big")
    with pytest.raises(EgressRefused):
        server_name(record(longer))
