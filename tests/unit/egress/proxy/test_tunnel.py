"""TLS that is opened by the session's authority: rules inside it, secrets put in and taken out."""

from __future__ import annotations

import gzip
import socket
import ssl
import threading

import pytest

from cellwall.core.errors import VaultError
from cellwall.core.network import Binding, SecretUse
from cellwall.egress.proxy.certificate_authority import Authority
from unit.egress.loopback import (
    WAIT_S,
    Cell,
    House,
    Known,
    Server,
    Talk,
    answer,
    everything,
    final_bytes,
    head_of,
    refusal_of,
    repeat_requests,
    request_of,
)
from unit.egress.proxy.test_http1_exchange import unchunked

HOST = "api.example.com"
VALUE = b"s3cr3t/value+for=tests"
PLACEHOLDER = "hfsecret_token_abcdefghijklmnopqrstuvwxyz"


class Outside:
    """An authority that the proxy trusts as it trusts the system's, and servers that have it."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._authority = Authority()
        self.trust = ssl.create_default_context(cadata=self._authority.pem.decode())

    def server(self, talk: Talk, host: str = HOST, *, certificate: str | None = None) -> Server:
        context = self._authority.context_for(certificate or host)
        return self._house.server(talk, host, tls=context)


@pytest.fixture
def outside(house: House) -> Outside:
    return Outside(house)


def opened(
    cell: Cell,
    port: int,
    *,
    host: str = HOST,
    name: str | None = HOST,
    protocols: tuple[str, ...] = ("http/1.1",),
) -> ssl.SSLSocket:
    """As a program inside, which trusts what SSL_CERT_FILE names, gets it.

    For one that speaks HTTP/1.1 alone nothing is dialled before a request is allowed.
    """
    context = cell.trust()
    context.set_alpn_protocols(list(protocols))
    context.check_hostname = name is not None
    sock = cell.tunnel(host, port)
    try:
        return context.wrap_socket(sock, server_hostname=name)
    except BaseException:
        sock.close()
        raise


def request(
    port: int, path: str = "/", *headers: str, method: str = "GET", host: str = HOST
) -> bytes:
    lines = (f"{method} {path} HTTP/1.1", f"Host: {host}:{port}", *headers)
    return "\r\n".join((*lines, "Connection: close", "", "")).encode()


def ask(cell: Cell, port: int, data: bytes, *, host: str = HOST) -> bytes:
    with opened(cell, port, host=host, name=host) as sock:
        sock.sendall(data)
        return everything(sock)


def secret(port: int, *, host: str = HOST, **changes: object) -> SecretUse:
    binding = Binding(host=host, ports=(port,), **changes)  # type: ignore[arg-type]  # of a test
    return SecretUse(
        name="TOKEN",
        placeholder=PLACEHOLDER,
        bindings=(binding,),
        reveal=lambda: VALUE,
    )


@pytest.mark.requirement("NET-6")
@pytest.mark.slow
def test_rules_on_method_and_path_hold_inside_tls(house: House, outside: Outside) -> None:
    server = outside.server(repeat_requests)
    cell = house.cell(f"GET {HOST}:{server.port}/v1", upstream_tls=outside.trust)
    good = ask(cell, server.port, request(server.port, "/v1/x"))
    assert good.partition(b"\r\n\r\n")[2].startswith(b"GET /v1/x HTTP/1.1\r\nhost: api")
    for bad in (request(server.port, "/v2"), request(server.port, "/v1", method="PUT")):
        assert refusal_of(ask(cell, server.port, bad)) == (403, "CW-NOT-ALLOWED")
    assert server.connections == 1
    cell.network.end()
    assert [body["tls_opened"] for body in house.record.of("opened")] == [True]


@pytest.mark.requirement("NET-6")
@pytest.mark.slow
def test_authority_is_the_cells_alone_and_speaks_what_the_server_does(
    house: House, outside: Outside
) -> None:
    server = outside.server(repeat_requests)
    cell = house.cell(f"{HOST}:{server.port}/v1", upstream_tls=outside.trust)
    other = house.cell(f"{HOST}:{server.port}/v1", upstream_tls=outside.trust)
    assert cell.network.env["SSL_CERT_FILE"] == "/.cellwall/net/ca.pem"
    with opened(cell, server.port, protocols=("h2", "http/1.1")) as sock:
        assert sock.selected_alpn_protocol() == "http/1.1"
    strange = ssl.create_default_context(cadata=other.network.files["ca.pem"].decode())
    with cell.tunnel(HOST, server.port) as plain, pytest.raises(ssl.SSLCertVerificationError):
        strange.wrap_socket(plain, server_hostname=HOST)
    plain_cell = house.cell(f"{HOST}:{server.port}")
    assert "ca.pem" not in plain_cell.network.files
    assert "SSL_CERT_FILE" not in plain_cell.network.env


@pytest.mark.requirement("NET-6")
@pytest.mark.slow
def test_name_in_the_hello_and_in_the_request_must_be_the_one_asked_for(
    house: House, outside: Outside
) -> None:
    server = outside.server(repeat_requests)
    house.zone.names["b.example.com"] = ["127.0.0.1"]
    rules = f"{HOST}:{server.port}/v1", f"b.example.com:{server.port}/v1"
    cell = house.cell(*rules, upstream_tls=outside.trust)
    for name in ("b.example.com", None):
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            opened(cell, server.port, name=name)
    for host in ("b.example.com", "evil.example.net"):
        reply = ask(cell, server.port, request(server.port, "/v1", host=host))
        assert refusal_of(reply) == (403, "CW-HOST-MISMATCH")
    without_port = request(server.port, "/v1").replace(f":{server.port}".encode(), b"")
    assert refusal_of(ask(cell, server.port, without_port)) == (403, "CW-HOST-MISMATCH")
    assert server.connections == 0
    assert ask(cell, server.port, request(server.port, "/v1")).startswith(b"HTTP/1.1 200 ")


@pytest.mark.requirement("NET-6")
@pytest.mark.slow
def test_server_whose_certificate_is_not_good_gets_no_request(
    house: House, outside: Outside
) -> None:
    server = outside.server(repeat_requests, certificate="other.example.com")
    cell = house.cell(f"{HOST}:{server.port}/v1", upstream_tls=outside.trust)
    reply = ask(cell, server.port, request(server.port, "/v1"))
    assert refusal_of(reply)[1] == "CW-UPSTREAM-TLS"
    unknown = outside.server(repeat_requests, "b.example.com")
    system = house.cell(f"b.example.com:{unknown.port}/v1")
    reply = ask(
        system,
        unknown.port,
        request(unknown.port, "/v1", host="b.example.com"),
        host="b.example.com",
    )
    assert refusal_of(reply)[1] == "CW-UPSTREAM-TLS"


@pytest.mark.requirement("NET-6")
def test_port_443_that_must_be_opened_takes_nothing_but_tls(
    house: House, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = outside.server(repeat_requests)
    cell = house.cell(f"{HOST}:{server.port}/v1", upstream_tls=outside.trust)
    plain = request(server.port, "/v1")
    with cell.tunnel(HOST, server.port) as sock:
        # A port of its own may speak HTTP without TLS; this server does not.
        sock.sendall(plain)
        assert refusal_of(final_bytes(sock))[1] == "CW-BAD-RESPONSE"
    monkeypatch.setattr("cellwall.egress.proxy.tunnel._TLS_PORT", server.port)
    with cell.tunnel(HOST, server.port) as sock:
        sock.sendall(plain)
        assert final_bytes(sock) == b""
    assert ask(cell, server.port, plain).startswith(b"HTTP/1.1 200 ")


@pytest.mark.requirement("SEC-5", "SEC-3")
def test_secret_is_put_in_where_it_is_bound_and_its_echo_is_taken_out(
    house: House, outside: Outside
) -> None:
    got: list[bytes] = []

    def talk(sock: socket.socket) -> None:
        head, _ = request_of(sock)
        got.append(head)
        # The value in a header, split over two writes of the body, and once more in hexadecimal.
        shown = b"[%s][%s]" % (VALUE, VALUE.hex().encode())
        head = answer(shown, extra=b"X-Echo: %s\r\n" % VALUE).removesuffix(shown)
        sock.sendall(head + shown[:9])
        sock.sendall(shown[9:])

    server = outside.server(talk)
    use = secret(server.port)
    cell = house.cell(f"{HOST}:{server.port}", secrets=(use,), upstream_tls=outside.trust)
    reply = ask(
        cell,
        server.port,
        request(server.port, "/", f"Authorization: Bearer {use.placeholder}", "Range: bytes=0-3"),
    )
    assert b"\r\nauthorization: Bearer %s\r\n" % VALUE in got[0]
    assert b"range:" not in got[0]
    assert b"accept-encoding: identity" in got[0]
    assert VALUE not in reply
    assert VALUE.hex().encode() not in reply
    placeholder = use.placeholder.encode()
    assert reply.count(placeholder) == 3
    assert b"X-Echo: " + placeholder in reply.replace(b"x-echo", b"X-Echo")
    cell.network.end()
    assert [
        (body["event"], body["secret"]) for body in house.record.bodies if "secret" in body
    ] == [
        ("secret-used", "TOKEN"),
        ("echo-removed", "TOKEN"),
    ]
    assert VALUE.decode() not in repr(house.record.bodies)
    order = [body["event"] for body in house.record.bodies]
    assert order.index("secret-used") < order.index("opened")


@pytest.mark.requirement("SEC-5")
def test_echo_in_a_packed_answer_is_taken_out_and_unknown_packing_is_refused(
    house: House, outside: Outside
) -> None:
    packed = gzip.compress(b"before " + VALUE + b" after")

    def talk(sock: socket.socket) -> None:
        head, _ = request_of(sock)
        coding = b"br" if b"/br" in head else b"gzip"
        sock.sendall(answer(packed, extra=b"Content-Encoding: %s\r\n" % coding))

    server = outside.server(talk)
    use = secret(server.port)
    cell = house.cell(f"{HOST}:{server.port}", secrets=(use,), upstream_tls=outside.trust)
    header = f"Authorization: {PLACEHOLDER}"
    reply = ask(cell, server.port, request(server.port, "/", header))
    assert b"before " + use.placeholder.encode() + b" after" in reply
    assert b"content-encoding" not in reply.lower()
    assert refusal_of(ask(cell, server.port, request(server.port, "/br")))[1] == (
        "CW-CONTENT-ENCODING"
    )


@pytest.mark.requirement("SEC-5", "SEC-3")
@pytest.mark.slow
def test_value_that_was_put_in_is_taken_out_whatever_becomes_of_its_lease(
    house: House, outside: Outside
) -> None:
    """Rotated, revoked or locked between the request and its answer, and after."""
    values = [VALUE]

    def reveal() -> bytes:
        if not values:
            raise VaultError("the lease has ended", code="CW-LEASE-ENDED")
        return values[0]

    got: list[bytes] = []

    def talk(sock: socket.socket) -> None:
        head, _ = request_of(sock)
        got.append(head)
        if b"/over" in head:
            values.clear()
        elif b"/rotate" in head:
            values[:] = [b"the-value-after-it"]
        sock.sendall(answer(b"".join(got)))

    server = outside.server(talk)
    use = SecretUse(
        name="TOKEN",
        placeholder=PLACEHOLDER,
        bindings=(Binding(host=HOST, ports=(server.port,)),),
        reveal=reveal,
    )
    cell = house.cell(f"{HOST}:{server.port}", secrets=(use,), upstream_tls=outside.trust)
    header = f"Authorization: Bearer {PLACEHOLDER}"
    for path in ("/rotate", "/over"):
        reply = ask(cell, server.port, request(server.port, path, header))
        assert reply.startswith(b"HTTP/1.1 200 ")
        assert VALUE not in reply
        assert b"the-value-after-it" not in reply
    after = ask(cell, server.port, request(server.port, "/"))
    assert after.count(PLACEHOLDER.encode()) == 2
    assert b"Bearer %s\r\n" % VALUE in got[0]
    assert b"Bearer the-value-after-it\r\n" in got[1]


@pytest.mark.requirement("SEC-5", "SEC-6")
@pytest.mark.slow
def test_values_that_a_bound_server_has_from_before_are_taken_out(
    house: House, outside: Outside
) -> None:
    before = b"the-value-of-yesterday"

    def talk(sock: socket.socket) -> None:
        request_of(sock)
        sock.sendall(answer(b"[%s|%s|another-secret]" % (before, VALUE)))

    server = outside.server(talk)
    other = outside.server(talk, "b.example.com")
    cell = house.cell(
        f"{HOST}:{server.port}",
        f"GET b.example.com:{other.port}",
        secrets=(secret(server.port),),
        known=Known(**{"TOKEN": VALUE, "TOKEN@1": before, "OTHER": b"another-secret"}),
        upstream_tls=outside.trust,
    )
    reply = ask(cell, server.port, request(server.port))
    shown = PLACEHOLDER.encode()
    assert b"[%s|%s|another-secret]" % (shown, shown) in reply
    # A host that no secret is bound to is not searched: it would learn whether a guess is right.
    elsewhere = request(other.port, host="b.example.com")
    reply = ask(cell, other.port, elsewhere, host="b.example.com")
    assert b"[%s|%s|another-secret]" % (before, VALUE) in reply


@pytest.mark.requirement("SEC-5")
@pytest.mark.slow
def test_other_port_of_a_bound_host_shows_no_value_by_any_way(
    house: House, outside: Outside
) -> None:
    got: list[bytes] = []

    def talk(sock: socket.socket) -> None:
        head = head_of(sock)
        got.append(head)
        sock.sendall(answer(b"".join(got)))

    server = outside.server(talk)
    secure, plain = outside.server(talk), house.server(talk, HOST)
    cell = house.cell(
        *(f"{HOST}:{each.port}" for each in (server, secure, plain)),
        secrets=(secret(server.port),),
        upstream_tls=outside.trust,
    )
    put = request(server.port, "/", f"Authorization: {PLACEHOLDER}")
    replies = [ask(cell, server.port, put)]
    parts = ("Range: bytes=1-2", "If-Range: x", "Request-Range: bytes=1-2", "X_Ms_Range: bytes=1-2")
    replies.append(ask(cell, secure.port, request(secure.port, "/", *parts)))
    with cell.tunnel(HOST, plain.port) as sock:
        sock.sendall(request(plain.port, "/", *parts))
        replies.append(everything(sock))
    whole = f"http://{HOST}:{plain.port}/"
    replies.append(cell.ask(request(plain.port, whole, *parts)))
    assert [reply.count(PLACEHOLDER.encode()) for reply in replies] == [1, 1, 1, 1]
    assert not any(VALUE in reply for reply in replies)
    assert VALUE in got[0]
    assert not any(b"range" in head.lower() for head in got)


@pytest.mark.requirement("SEC-5")
def test_stream_comes_as_it_is_where_no_value_is_and_by_length_alone_where_one_is(
    house: House, outside: Outside
) -> None:
    """How an answer is cut must not tell whether a guess at the value is right."""
    # A beginning of the value, and the same with its last byte wrong.
    guesses = [
        VALUE[:count] + last for count in (3, 9) for last in (VALUE[count : count + 1], b"~")
    ]
    seen = threading.Semaphore(0)

    def talk(sock: socket.socket) -> None:
        request_of(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for guess in (*guesses, VALUE + b"\n\n"):
            sock.sendall(b"%x\r\n%s\r\n" % (len(guess), guess))
            assert seen.acquire(timeout=WAIT_S)  # the code has seen what comes of it
        sock.sendall(b"0\r\n\r\n")

    bound, free = outside.server(talk), outside.server(talk, "b.example.com")
    cell = house.cell(
        f"{HOST}:{bound.port}",
        f"GET b.example.com:{free.port}",
        secrets=(secret(bound.port),),
        known=Known(TOKEN=VALUE),
        upstream_tls=outside.trust,
    )
    with opened(cell, free.port, host="b.example.com", name="b.example.com") as sock:
        sock.sendall(request(free.port, host="b.example.com"))
        assert head_of(sock).startswith(b"HTTP/1.1 200 ")
        for guess in (*guesses, VALUE + b"\n\n"):
            assert chunk_of(sock) == guess
            seen.release()
    with opened(cell, bound.port) as sock:
        sock.sendall(request(bound.port))
        assert head_of(sock).startswith(b"HTTP/1.1 200 ")
        seen.release(len(guesses))  # nothing comes of any of them: all wait for the empty line
        assert chunk_of(sock) == b"".join(guesses) + PLACEHOLDER.encode() + b"\n\n"
        seen.release()


def chunk_of(sock: ssl.SSLSocket) -> bytes:
    with sock.makefile("rb", buffering=0) as file:
        size = int(file.readline(), 16)
        return b"".join(file.read(1) or b"" for _ in range(size + 2))[:-2]


@pytest.mark.requirement("SEC-5")
@pytest.mark.slow
def test_value_comes_back_neither_as_a_name_nor_as_a_reason_nor_after_a_switch(
    house: House, outside: Outside
) -> None:
    value = b"S3cr3t-Value-For-Tests"

    def talk(sock: socket.socket) -> None:
        head, _ = request_of(sock)
        extra = b"%s: x\r\nX-%s-Y: x\r\nX-Kept: x\r\n" % (value, value.lower())
        if b"/switch" not in head:
            told = answer(b"ok", extra=extra).replace(b"200 OK", b"200 " + value)
            sock.sendall(told)
            return
        sock.sendall(
            b"HTTP/1.1 101 %s\r\nConnection: upgrade\r\nUpgrade: websocket\r\n%s\r\n"
            % (value, extra)
        )
        sock.sendall(b"\x81\x05hello")
        sock.recv(1)
        sock.sendall(b"\x81\x16" + value)
        sock.recv(1)

    server = outside.server(talk)
    use = SecretUse(
        name="TOKEN",
        placeholder=PLACEHOLDER,
        bindings=(Binding(host=HOST, ports=(server.port,)),),
        reveal=lambda: value,
    )
    cell = house.cell(f"{HOST}:{server.port}", secrets=(use,), upstream_tls=outside.trust)
    header = f"Authorization: {PLACEHOLDER}"
    reply = ask(cell, server.port, request(server.port, "/", header))
    assert reply.startswith(b"HTTP/1.1 200 " + PLACEHOLDER.encode())
    assert b"\r\nx-kept: x\r\n" in reply
    assert value.lower() not in reply.lower()
    upgrade = request(
        server.port,
        "/switch",
        header,
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ).replace(b"Connection: close", b"Connection: Upgrade")
    with opened(cell, server.port) as sock:
        sock.sendall(upgrade)
        head = head_of(sock)
        assert head.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
        assert b"\r\nx-kept: x\r\n" in head
        assert value.lower() not in head.lower()
        assert sock.recv(7) == b"\x81\x05hello"
        sock.sendall(b".")
        assert final_bytes(sock) == b""
    cell.network.end()
    assert [body["code"] for body in house.record.of("refused")] == ["CW-ECHO"]


@pytest.mark.requirement("SEC-5", "SEC-3")
@pytest.mark.slow
def test_method_of_a_header_must_put_in_the_very_same(house: House, outside: Outside) -> None:
    server = outside.server(repeat_requests)
    use = SecretUse(
        name="TOKEN",
        placeholder=PLACEHOLDER,
        bindings=(
            Binding(host=HOST, ports=(server.port,), methods=("POST",)),
            Binding(host=HOST, ports=(server.port,), methods=("DELETE",), name="x-key"),
        ),
        reveal=lambda: VALUE,
    )
    cell = house.cell(f"{HOST}:{server.port}", secrets=(use,), upstream_tls=outside.trust)
    fields = f"Authorization: {PLACEHOLDER}", f"X-Key: {PLACEHOLDER}"
    for name in ("X-HTTP-Method-Override", "X_HTTP_Method_Override", "X.Http.Method"):
        trick = request(server.port, "/", *fields, f"{name}: DELETE", method="POST")
        assert refusal_of(ask(cell, server.port, trick)) == (403, "CW-SECRET-METHOD")
    for name in ("X-Original-URL", "X_Original_URL", "X~Rewrite~URL"):
        trick = request(server.port, "/", *fields, f"{name}: /admin", method="POST")
        assert refusal_of(ask(cell, server.port, trick)) == (400, "CW-BAD-REQUEST")
    assert server.connections == 0
    for method in ("POST", "DELETE"):
        same = request(server.port, "/", *fields, f"X-HTTP-Method: {method}", method=method)
        assert ask(cell, server.port, same).startswith(b"HTTP/1.1 200 ")


@pytest.mark.requirement("SEC-5", "SEC-3")
@pytest.mark.slow
def test_placeholder_stays_wherever_the_secret_is_not_bound(house: House, outside: Outside) -> None:
    got: list[bytes] = []

    def talk(sock: socket.socket) -> None:
        got.append(request_of(sock)[0])
        sock.sendall(answer(b"thanks"))

    server = outside.server(talk)
    other = outside.server(talk, "b.example.com")
    use = secret(server.port, methods=("GET",), path="/v1")
    cell = house.cell(
        f"{HOST}:{server.port}",
        f"b.example.com:{other.port}/v1",
        secrets=(use,),
        upstream_tls=outside.trust,
    )
    header = f"Authorization: Bearer {PLACEHOLDER}"
    for data in (
        request(server.port, "/v2", header),
        request(server.port, "/v1", header, method="DELETE"),
        request(server.port, "/v1", f"X-Other: {PLACEHOLDER}"),
        request(server.port, f"/v1?token={PLACEHOLDER}"),
    ):
        assert ask(cell, server.port, data).startswith(b"HTTP/1.1 200 ")
    elsewhere = request(other.port, "/v1", header, host="b.example.com")
    assert ask(cell, other.port, elsewhere, host="b.example.com").startswith(b"HTTP/1.1 200 ")
    assert len(got) == 5
    assert all(PLACEHOLDER.encode() in head for head in got)
    assert not any(VALUE in head for head in got)
    trick = request(server.port, "/v1", header, "X-HTTP-Method-Override: DELETE")
    assert refusal_of(ask(cell, server.port, trick)) == (403, "CW-SECRET-METHOD")
    ask(cell, server.port, request(server.port, "/v1/x", header))
    assert b"\r\nauthorization: Bearer %s\r\n" % VALUE in got[5]
    cell.network.end()
    assert len(house.record.of("secret-used")) == 1
    stayed = house.record.of("placeholder-stayed")
    assert {(body["secret"], body["host"]) for body in stayed} == {
        ("TOKEN", HOST),
        ("TOKEN", "b.example.com"),
    }
    assert VALUE.decode() not in repr(house.record.bodies)


@pytest.mark.requirement("SEC-3")
@pytest.mark.slow
def test_secret_whose_lease_has_ended_refuses_the_request(house: House, outside: Outside) -> None:
    server = outside.server(repeat_requests)
    is_over = False

    def reveal() -> bytes:
        if is_over:
            raise VaultError("the lease has ended", code="CW-LEASE-ENDED")
        return VALUE

    binding = Binding(host=HOST, ports=(server.port,))
    use = SecretUse(name="TOKEN", placeholder=PLACEHOLDER, bindings=(binding,), reveal=reveal)
    cell = house.cell(f"{HOST}:{server.port}", secrets=(use,), upstream_tls=outside.trust)
    with_secret = request(server.port, "/", f"Authorization: {use.placeholder}")
    assert ask(cell, server.port, with_secret).startswith(b"HTTP/1.1 200 ")
    is_over = True
    assert refusal_of(ask(cell, server.port, with_secret)) == (403, "CW-LEASE-ENDED")
    assert ask(cell, server.port, request(server.port)).startswith(b"HTTP/1.1 200 ")
    cell.network.end()
    assert [body["requests"] for body in house.record.of("closed")] == [2]


def test_connections_are_kept_inside_tls_on_both_sides(house: House, outside: Outside) -> None:
    server = outside.server(repeat_requests)
    cell = house.cell(f"{HOST}:{server.port}/v1", upstream_tls=outside.trust)
    data = request(server.port, "/v1").replace(b"Connection: close\r\n", b"")
    with opened(cell, server.port) as sock:
        for _ in range(3):
            sock.sendall(data)
            assert request_of(sock)[0].startswith(b"HTTP/1.1 200 ")
    assert server.connections == 1


def test_large_bodies_go_both_ways_inside_tls(house: House, outside: Outside) -> None:
    body = bytes(range(256)) * 8192
    got: list[bytes] = []

    def talk(sock: socket.socket) -> None:
        got.append(request_of(sock)[1])
        sock.sendall(answer(body))

    server = outside.server(talk)
    cell = house.cell(f"{HOST}:{server.port}/v1", upstream_tls=outside.trust)
    head = request(server.port, "/v1", f"Content-Length: {len(body)}", method="POST")
    with opened(cell, server.port) as sock:
        sock.settimeout(WAIT_S)
        sock.sendall(head + body)
        assert head_of(sock).startswith(b"HTTP/1.1 200 ")
        assert everything(sock) == body
    assert got == [body]


@pytest.mark.requirement("NET-6")
def test_answer_whose_end_anybody_could_have_cut_is_not_passed_off_as_whole(
    house: House, outside: Outside
) -> None:
    def talk(sock: socket.socket) -> None:
        assert isinstance(sock, ssl.SSLSocket)
        is_cut = b"/v1/cut" in head_of(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        if not is_cut:
            sock.unwrap()
        sock.shutdown(socket.SHUT_RDWR)

    server = outside.server(talk)
    cell = house.cell(f"{HOST}:{server.port}/v1", upstream_tls=outside.trust)
    whole = ask(cell, server.port, request(server.port, "/v1/whole"))
    assert whole.endswith(b"\r\n4\r\nhalf\r\n0\r\n\r\n")
    with opened(cell, server.port) as sock:
        sock.sendall(request(server.port, "/v1/cut"))
        assert final_bytes(sock).endswith(b"\r\n4\r\nhalf\r\n")


def test_both_directions_are_busy_at_once_inside_tls(house: House, outside: Outside) -> None:
    def talk(sock: socket.socket) -> None:
        head_of(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        # Each piece goes back as it comes: nobody waits for the end of the upload.
        left = len(body)
        while left:
            piece = sock.recv(min(left, 65536))
            left -= len(piece)
            sock.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        sock.sendall(b"0\r\n\r\n")

    body = bytes(range(256)) * 4096
    server = outside.server(talk)
    cell = house.cell(f"{HOST}:{server.port}/v1", upstream_tls=outside.trust)
    head = request(server.port, "/v1", f"Content-Length: {len(body)}", method="POST")
    received, size = b"", 65536
    with opened(cell, server.port) as sock:
        sock.sendall(head)
        # By turns in one thread: OpenSSL forbids a read and a write of one connection at once. What
        # was sent before the last piece must be back before the next one goes: the proxy holds the
        # end of an answer until it knows that no secret begins there.
        for at in range(0, len(body), size):
            sock.sendall(body[at : at + size])
            while len(received.partition(b"\r\n\r\n")[2]) < at:
                received += sock.recv(size)
        received += everything(sock)
    assert unchunked(received.partition(b"\r\n\r\n")[2]) == body
