"""Messages that mean one thing to the proxy and another to a server (NET-2, NET-6)."""

from __future__ import annotations

import pytest

from adversarial.egress import World, the_world  # noqa: F401  # a fixture

# What is asked for by CONNECT (or by the address that stands for it), and what the TLS in it says.
HELLOS = {
    "its own name": ("secure", "secure.example", "through"),
    "its own name in pieces": ("secure", "secure.example", "through"),
    "its own name in capitals": ("secure", "SECURE.example", "through"),
    "another allowed name": ("secure", "opened.example", "refused"),
    "another allowed name in pieces": ("secure", "opened.example", "refused"),
    "a forbidden name": ("secure", "trap.example", "refused"),
    "no name": ("secure", None, "refused"),
    "opened, its own name": ("opened", "opened.example", "through"),
    "opened, another allowed name": ("opened", "secure.example", "refused"),
    "opened, a forbidden name in pieces": ("opened", "trap.example", "refused"),
    "opened, no name": ("opened", None, "refused"),
}


@pytest.mark.requirement("NET-6", "NET-7")
@pytest.mark.parametrize("way", ["tls_by_connect", "tls_transparent"])
@pytest.mark.parametrize("case", HELLOS)
@pytest.mark.table("case")
def test_tls_is_for_the_host_that_was_asked_for(
    case: str, way: str, world: World, path: str
) -> None:
    site, name, expected = HELLOS[case]
    before = {key: len(each.seen) for key, each in world.sites.items()}
    asks = f"GET /public HTTP/1.1\r\nHost: {site}.example\r\nConnection: close\r\n\r\n"
    found = world.inside(
        path,
        f"{way}(b'{site}.example', 443, {name!r}, asks={asks.encode()!r},"
        f" pieces={7 if 'pieces' in case else 1})",
    )
    assert found[0] == expected, found
    came = {key for key, each in world.sites.items() if len(each.seen) > before[key]}
    assert came == ({site} if expected == "through" else set())


# The request inside, once the connection is there for one host; all but the first are refused.
INNER = {
    "its own Host": ("GET /public", "opened.example", "hello from outside\n"),
    "another Host": ("GET /public", "secure.example", "CW-HOST-MISMATCH"),
    "a forbidden Host": ("GET /public", "trap.example", "CW-HOST-MISMATCH"),
    "another port": ("GET /public", "opened.example:444", "CW-HOST-MISMATCH"),
    "whole URL": ("GET https://secure.example/public", "secure.example", "CW-HOST-MISMATCH"),
    "whole URL, own Host": ("GET https://trap.example/public", "opened.example", "CW-BAD-REQUEST"),
    "no Host": ("GET /public", None, "CW-BAD-REQUEST"),
    "two Hosts": ("GET /public", "opened.example\r\nHost: trap.example", "CW-BAD-REQUEST"),
    "another method": ("PUT /public", "opened.example", "CW-NOT-ALLOWED"),
    "method that says to mean another": (
        "GET /public", "opened.example\r\nX-HTTP-Method-Override: DELETE", "CW-NOT-ALLOWED",
    ),
    "CONNECT again": ("CONNECT trap.example:443", "trap.example:443", "CW-BAD-REQUEST"),
    "another path": ("GET /private", "opened.example", "CW-NOT-ALLOWED"),
    "dots": ("GET /public/../private", "opened.example", "CW-NOT-ALLOWED"),
    "encoded dots": ("GET /public/%2e%2e/private", "opened.example", "CW-NOT-ALLOWED"),
    "encoded slash": ("GET /public/..%2fprivate", "opened.example", "CW-NOT-ALLOWED"),
    "twice encoded": ("GET /public/%252e%252e/private", "opened.example", "CW-NOT-ALLOWED"),
    "backslash": ("GET /public\\..\\private", "opened.example", "CW-NOT-ALLOWED"),
    "parameter": ("GET /public;/../private", "opened.example", "CW-NOT-ALLOWED"),
    "begins alike": ("GET /publicity", "opened.example", "CW-NOT-ALLOWED"),
    "two slashes": ("GET //private/../public", "opened.example", "CW-NOT-ALLOWED"),
}  # fmt: skip


@pytest.mark.requirement("NET-2", "NET-6")
@pytest.mark.parametrize("case", INNER)
@pytest.mark.table("case")
def test_request_in_opened_tls_is_held_to_its_host_method_and_path(
    case: str, world: World, path: str
) -> None:
    first, host, expected = INNER[case]
    before = len(world.sites["opened"].seen)
    lines = [f"{first} HTTP/1.1", *([f"Host: {host}"] if host else []), "Connection: close"]
    asks = ("\r\n".join(lines) + "\r\n\r\n").encode()
    found = world.inside(
        path,
        f"tls_by_connect(b'opened.example', 443, 'opened.example', asks={asks!r})",
    )
    is_control = case == "its own Host"
    assert found == ["through" if is_control else "refused", expected]
    assert len(world.sites["opened"].seen) - before == int(is_control)


def _get(host: str, *, url: str = "/") -> bytes:
    return f"GET {url} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()


def _by_connect(host: str, port: int, then: bytes) -> bytes:
    return f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode() + then


# Bytes to the proxy, or to the address of a name at a port; and whether a server may hear of it.
PROMISES = {
    "port 80": (_get("plain.example"), ("plain.example", 80), True),
    "port 80, another Host": (_get("secure.example"), ("plain.example", 80), False),
    "port 80, a forbidden Host": (_get("trap.example"), ("plain.example", 80), False),
    "port 80, TLS": (b"\x16\x03\x01\x00\x05hello", ("plain.example", 80), False),
    "port 80, anything": (b"EHLO plain.example\r\n", ("plain.example", 80), False),
    "port 443, no TLS": (_get("secure.example"), ("secure.example", 443), False),
    "port 443, no TLS, opened": (_get("opened.example"), ("opened.example", 443), False),
    "port 443 at the proxy": (_get("secure.example:443", url="http://secure.example:443/"), None, False),
    "https at the proxy": (_get("secure.example", url="https://secure.example/"), None, False),
    "ftp at the proxy": (_get("plain.example", url="ftp://plain.example/"), None, False),
    "no URL at the proxy": (_get("plain.example"), None, False),
    "at the proxy": (_get("plain.example", url="http://plain.example/"), None, True),
    "CONNECT": (_by_connect("plain.example", 80, _get("plain.example")), None, True),
    "CONNECT, another Host": (_by_connect("plain.example", 80, _get("trap.example")), None, False),
    "CONNECT in CONNECT": (
        _by_connect("plain.example", 80, _by_connect("trap.example", 80, _get("trap.example"))), None, False,
    ),
}  # fmt: skip


@pytest.mark.requirement("NET-2", "NET-6", "NET-7")
@pytest.mark.parametrize("case", PROMISES)
@pytest.mark.table("case")
def test_port_carries_what_it_promises(case: str, world: World, path: str) -> None:
    data, to, is_heard = PROMISES[case]
    before = {key: len(each.seen) for key, each in world.sites.items()}
    where = "" if to is None else f", transparent_to=({to[0].encode()!r}, {to[1]})"
    answer = world.inside(path, f"say({data!r}{where})")
    came = {key for key, each in world.sites.items() if len(each.seen) > before[key]}
    assert (came, "hello from outside" in answer) == ({"plain"} if is_heard else set(), is_heard)


# What a server may take for a second request, in the body of the first. `{}` is where it is sent to.
SECRET = "GET /secret HTTP/1.1\r\nHost: raw.example\r\n\r\n"
HEAD = "POST {}/public HTTP/1.1\r\nHost: {}\r\n"
BOTH = f"0\r\n\r\n{SECRET}"
SMUGGLED = {
    "length and chunks": f"{HEAD}Content-Length: {len(BOTH)}\r\nTransfer-Encoding: chunked\r\n\r\n{BOTH}",
    "chunks and length": f"{HEAD}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n{BOTH}",
    "two lengths": f"{HEAD}Content-Length: 0\r\nContent-Length: {len(SECRET)}\r\n\r\n{SECRET}",
    "the same length twice": f"{HEAD}Content-Length: 0\r\nContent-Length: 0\r\n\r\n{SECRET}",
    "a list of lengths": f"{HEAD}Content-Length: 0, 0\r\n\r\n{SECRET}",
    "a length with a sign": f"{HEAD}Content-Length: +0\r\n\r\n{SECRET}",
    "a length below nothing": f"{HEAD}Content-Length: -1\r\n\r\n{SECRET}",
    "a length in hexadecimal": f"{HEAD}Content-Length: 0x0\r\n\r\n{SECRET}",
    "a length with an underscore": f"{HEAD}Content-Length: 0_0\r\n\r\n{SECRET}",
    "chunked and something": f"{HEAD}Transfer-Encoding: chunked, identity\r\n\r\n{BOTH}",
    "something and chunked": f"{HEAD}Transfer-Encoding: identity, chunked\r\n\r\n{BOTH}",
    "almost chunked": f"{HEAD}Transfer-Encoding: xchunked\r\n\r\n{BOTH}",
    "chunked in two headers": f"{HEAD}Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n{BOTH}",
    "chunked after a tab": f"{HEAD}Transfer-Encoding:\x0bchunked\r\n\r\n{BOTH}",
    "chunked in quotes": f'{HEAD}Transfer-Encoding: "chunked"\r\n\r\n{BOTH}',
    "space before the colon": f"{HEAD}Transfer-Encoding : chunked\r\n\r\n{BOTH}",
    "folded": f"{HEAD}X: y\r\n Transfer-Encoding: chunked\r\n\r\n{BOTH}",
    "folded value": f"{HEAD}Transfer-Encoding:\r\n chunked\r\n\r\n{BOTH}",
    "bare LF before a header": f"{HEAD}X: y\nTransfer-Encoding: chunked\r\n\r\n{BOTH}",
    "bare CR before a header": f"{HEAD}X: y\rTransfer-Encoding: chunked\r\n\r\n{BOTH}",
    "only LF": f"{HEAD}Content-Length: 0\r\n\r\n{SECRET}".replace("\r\n", "\n"),
    "NUL in a header": f"{HEAD}X: y\0\r\nContent-Length: 0\r\n\r\n{SECRET}",
    "header without a name": f"{HEAD}: chunked\r\nContent-Length: 0\r\n\r\n{SECRET}",
    "space in a name": f"{HEAD}X Y: z\r\nContent-Length: 0\r\n\r\n{SECRET}",
    "line before the first": f"X: y\r\n{HEAD}Content-Length: 0\r\n\r\n{SECRET}",
    "three words too many": "POST {}/public HTTP/1.1 HTTP/1.1\r\nHost: {}\r\n\r\n" + SECRET,
    "version of old": "POST {}/public HTTP/1.0\r\nHost: {}\r\nTransfer-Encoding: chunked\r\n\r\n"
    + BOTH,
    "version unknown": "POST {}/public HTTP/1.2\r\nHost: {}\r\nContent-Length: 0\r\n\r\n" + SECRET,
    "two Hosts": f"{HEAD}Host: trap.example\r\nContent-Length: 0\r\n\r\n{SECRET}",
    "chunk with 0x": f"{HEAD}Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n{SECRET}",
    "chunk with a sign": f"{HEAD}Transfer-Encoding: chunked\r\n\r\n+0\r\n\r\n{SECRET}",
    "chunk that overflows": f"{HEAD}Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n{SECRET}",
    "chunk that ends with LF": f"{HEAD}Transfer-Encoding: chunked\r\n\r\n0\n\n{SECRET}",
    "extension that ends with LF": f"{HEAD}Transfer-Encoding: chunked\r\n\r\n2;\nxx\r\n{BOTH}",
    "chunk longer than it says": f"{HEAD}Transfer-Encoding: chunked\r\n\r\n1\r\nxx\r\n{BOTH}",
    "a trailer with a length": f"{HEAD}Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 9\r\nBad\r\n\r\n{SECRET}",
    "Host that is not the URL's": "POST http://raw.example:1/public HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\n\r\n",
    "a second request": f"{HEAD}Content-Length: 0\r\n\r\n"
    "GET {}/secret HTTP/1.1\r\nHost: {}\r\n\r\n",
    "header that takes another away": f"{HEAD}Connection: Content-Length\r\nContent-Length: {len(SECRET)}\r\n\r\n{SECRET}",
    "switch to HTTP/2": f"{HEAD}Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nContent-Length: 0\r\n\r\n{SECRET}",
    "HTTP/2 at once": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


GOOD_FIRST = {"a second request", "switch to HTTP/2"}


def exchange(world: World, path: str, text: str, *, by: str) -> tuple[str, bytes]:
    """Everything that came back, and everything that the server was sent."""
    where = f"raw.example:{world.ports['raw']}"
    data = text.replace("{}/", f"http://{where}/" if by == "proxy" else "/").replace("{}", where)
    to = "" if by == "proxy" else f", transparent_to=(b'raw.example', {world.ports['raw']})"
    world.endpoints.forget()
    answer = world.inside(path, f"say({data.encode('latin-1')!r}{to})")
    return answer, world.endpoints.heard.get("raw", b"")


@pytest.mark.requirement("NET-2")
@pytest.mark.parametrize("by", ["proxy", "address"])
@pytest.mark.parametrize("case", SMUGGLED)
@pytest.mark.table("case")
def test_second_request_is_not_smuggled_in_the_first(
    case: str, by: str, world: World, path: str
) -> None:
    answer, heard = exchange(world, path, SMUGGLED[case], by=by)
    assert "\r\nX-Cellwall-Refused: " in answer
    # Of a good first request the server hears; of what comes behind it, or of a bad one, nothing.
    first = f"POST /public HTTP/1.1\r\nhost: raw.example:{world.ports['raw']}\r\ncontent-length: 0"
    assert heard == (f"{first}\r\n\r\n".encode() if case in GOOD_FIRST else b"")


@pytest.mark.requirement("NET-2")
@pytest.mark.parametrize("by", ["proxy", "address"])
def test_plain_requests_get_there_one_after_the_other(by: str, world: World, path: str) -> None:
    """The control: a body of each kind, and a second request that is allowed."""
    text = (
        f"{HEAD}Content-Length: 3\r\n\r\nabc"
        f"{HEAD}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        "GET {}/public/more HTTP/1.1\r\nHost: {}\r\n\r\n"
    )
    answer, heard = exchange(world, path, text, by=by)
    assert answer.count("HTTP/1.1 200 OK\r\n") == 3
    assert [line for line in heard.split(b"\r\n") if line.endswith(b"HTTP/1.1")] == [
        b"POST /public HTTP/1.1",
        b"abcPOST /public HTTP/1.1",
        b"GET /public/more HTTP/1.1",
    ]
