"""HTTP/2 where TLS is opened: each stream is judged, searched and recorded as a request (NET-6)."""

from __future__ import annotations

import gzip
import json
import ssl
import threading
from typing import Any

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from cellwall.core.network import Binding, SecretUse
from cellwall.egress.destinations.header_rules import parse_header_rule
from cellwall.egress.proxy.certificate_authority import Authority
from http2 import Client, Got, Reply, ServerSide, serving, told
from unit.egress.loopback import WAIT_S, Cell, House, Known, Server, Talk

HOST = "api.example.com"
VALUE = b"s3cr3t/value+for=tests"
PLACEHOLDER = "hfsecret_token_abcdefghijklmnopqrstuvwxyz"


class Outside:
    """Servers that speak HTTP/2, or what their tests say, and an authority that is trusted."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._authority = Authority()
        self.trust = ssl.create_default_context(cadata=self._authority.pem.decode())

    def server(self, talk: Talk, *, protocol: str = "h2", host: str = HOST) -> Server:
        return self._house.server(talk, host, tls=self._authority.context_for(host, protocol))


@pytest.fixture
def outside(house: House) -> Outside:
    return Outside(house)


def opened(house: House, cell: Cell, port: int, *, window: int | None = None) -> Client:
    """A client inside, until the test ends."""
    sock = house.stack.enter_context(tls(cell, port))
    assert sock.selected_alpn_protocol() == "h2"
    return Client(sock, f"{HOST}:{port}", window=window)


def tls(cell: Cell, port: int, *protocols: str, host: str = HOST) -> ssl.SSLSocket:
    context = cell.trust()
    context.set_alpn_protocols(list(protocols or ("h2", "http/1.1")))
    sock = cell.tunnel(host, port)
    try:
        return context.wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise


def secret(port: int, **changes: object) -> SecretUse:
    binding = Binding(host=HOST, ports=(port,), **changes)  # type: ignore[arg-type]  # of a test
    return SecretUse(
        name="TOKEN", placeholder=PLACEHOLDER, bindings=(binding,), reveal=lambda: VALUE
    )


@pytest.mark.requirement("NET-6")
def test_rules_on_method_and_path_hold_on_each_stream(house: House, outside: Outside) -> None:
    seen: list[Got] = []
    server = outside.server(serving(told, seen))
    cell = house.cell(f"GET {HOST}:{server.port}/v1", upstream_tls=outside.trust)
    client = opened(house, cell, server.port)
    good = client.begin(client.head("/v1/x?y=1", (b"x-more", b"yes")))
    others = [client.begin(client.head("/v2")), client.begin(client.head("/v1", method="PUT"))]
    assert client.answer(good).told == {
        "method": "GET",
        "path": "/v1/x?y=1",
        "authority": f"{HOST}:{server.port}",
        "headers": [["x-more", "yes"]],
        "body": "",
    }
    for stream in others:
        assert client.answer(stream).refusal == (403, "CW-NOT-ALLOWED")
    # A refusal is its stream's alone.
    assert client.ask("/v1").told["path"] == "/v1"
    assert [got[":path"] for got in seen] == [b"/v1/x?y=1", b"/v1"]
    client.sock.close()
    cell.network.end()
    (began,), (ended,) = house.record.of("opened"), house.record.of("closed")
    assert (began["tls_opened"], ended["requests"]) == (True, 2)
    assert [body["code"] for body in house.record.of("refused")] == ["CW-NOT-ALLOWED"] * 2


@pytest.mark.requirement("NET-6")
@pytest.mark.slow
def test_each_side_speaks_what_the_other_one_does(house: House, outside: Outside) -> None:
    new, old = outside.server(serving()), outside.server(_old, protocol="http/1.1")
    rules = (f"{HOST}:{server.port}/v1" for server in (new, old))
    cell = house.cell(*rules, upstream_tls=outside.trust)
    offers = [("h2", "http/1.1"), ("http/1.1", "h2"), ("http/1.1",), ("h2",), ("spdy/1",)]
    found = []
    for server in (new, old):
        for offer in offers:
            with tls(cell, server.port, *offer) as sock:
                found.append(sock.selected_alpn_protocol())
    assert found == ["h2", "h2", "http/1.1", "h2", None, *["http/1.1"] * 3, None, None]
    # Which it is was asked once; nothing else was reached without a request.
    assert old.connections == 1


def _old(sock: object) -> None:
    """A server of HTTP/1.1 that nobody asks anything."""


@pytest.mark.requirement("NET-6")
def test_server_that_cannot_be_reached_is_told_to_who_asks(house: House, outside: Outside) -> None:
    server = outside.server(serving(), host="other.example.com")
    house.zone.names[HOST] = ["127.0.0.1"]
    cell = house.cell(f"{HOST}:{server.port}/v1", upstream_tls=outside.trust)
    with tls(cell, server.port) as sock:
        assert sock.selected_alpn_protocol() == "http/1.1"
        asks = f"GET /v1 HTTP/1.1\r\nHost: {HOST}:{server.port}\r\n\r\n"
        sock.sendall(asks.encode())
        assert b"X-Cellwall-Refused: CW-UPSTREAM-TLS" in sock.recv(65536)


@pytest.mark.requirement("NET-2", "NET-6")
@pytest.mark.parametrize(
    ("authority", "code"),
    [
        (None, None),
        ("evil.example.net", "CW-HOST-MISMATCH"),
        (HOST, "CW-HOST-MISMATCH"),  # the port is part of it
        (f"{HOST}:1", "CW-HOST-MISMATCH"),
        (f"user@{HOST}", "CW-BAD-REQUEST"),
    ],
)
def test_stream_is_for_the_host_of_its_connection(
    house: House, outside: Outside, authority: str | None, code: str | None
) -> None:
    seen: list[Got] = []
    server = outside.server(serving(told, seen))
    cell = house.cell(f"{HOST}:{server.port}/v1", upstream_tls=outside.trust)
    client = opened(house, cell, server.port)
    if authority is not None:
        client.authority = authority
    answer = client.ask("/v1")
    if code is None:
        assert answer.told["authority"] == f"{HOST}:{server.port}"
    else:
        assert answer.refusal[1] == code
        assert seen == []
        client.sock.close()
        cell.network.end()  # until then the record may be on its way
        assert [body["code"] for body in house.record.of("refused")] == [code]


@pytest.mark.requirement("NET-5", "NET-6")
@pytest.mark.parametrize("place", ["path", "header", "name", "method", "body", "split", "gzip"])
def test_known_value_leaves_by_no_part_of_a_stream(
    house: House, outside: Outside, place: str
) -> None:
    value = b"A1B2C3D4E5F6G7H8"
    seen: list[Got] = []
    server = outside.server(serving(told, seen))
    cell = house.cell(
        f"{HOST}:{server.port}/v1", upstream_tls=outside.trust, known=Known(TOKEN=value)
    )
    client = opened(house, cell, server.port)
    headers = client.head(method="POST", path="/v1")
    body = b"x" * 5000
    if place == "path":
        headers = client.head("/v1?x=" + value.hex(), method="POST")
    elif place == "header":
        headers.append((b"x-note", b"see " + value))
    elif place == "name":
        headers.append((b"x-" + value.hex().encode(), b"1"))
    elif place == "method":
        headers = client.head("/v1", method=value.decode())
    elif place == "gzip":
        headers.append((b"content-encoding", b"gzip"))
        body = gzip.compress(body + value)
    elif place == "body":
        body += value
    stream = client.begin(headers, body, is_end=place != "split")
    if place == "split":
        for cut in range(0, len(value), 5):
            client.more(stream, value[cut : cut + 5], is_end=False)
        client.more(stream, b"", is_end=True)
    assert client.answer(stream).refusal == (403, "CW-LEAK")
    assert client.ask("/v1", method="POST", body=b"x" * 5000).status == 200
    assert [len(got.body) for got in seen] == [5000]
    (leak,) = house.record.of("leak-refused")
    assert (leak["secret"], leak["host"]) == ("TOKEN", HOST)


@pytest.mark.requirement("SEC-5")
def test_secret_is_put_into_a_stream_and_its_echo_taken_out(house: House, outside: Outside) -> None:
    def reply(got: Got) -> Reply:
        shown = told(got)
        shown.headers = [*shown.headers, (b"x-seen", got["authorization"] or b"")]
        shown.trailers = [(b"x-last", got["authorization"] or b""), (b"grpc-status", b"0")]
        return shown

    seen: list[Got] = []
    server = outside.server(serving(reply, seen))
    cell = house.cell(
        f"{HOST}:{server.port}", upstream_tls=outside.trust, secrets=[secret(server.port)]
    )
    client = opened(house, cell, server.port)
    bearer = b"Bearer " + PLACEHOLDER.encode()
    answer = client.ask("/", (b"authorization", bearer), (b"range", b"bytes=0-3"))
    assert seen[0]["authorization"] == b"Bearer " + VALUE
    assert (seen[0]["range"], seen[0]["accept-encoding"]) == (None, b"identity")
    assert (b"x-seen", bearer) in answer.headers
    assert answer.trailers == [(b"x-last", bearer), (b"grpc-status", b"0")]
    assert VALUE not in answer.body
    assert PLACEHOLDER.encode() in answer.body
    cell.network.end()
    assert [body["secret"] for body in house.record.of("secret-used")] == ["TOKEN"]
    assert [body["secret"] for body in house.record.of("echo-removed")] == ["TOKEN"]


@pytest.mark.slow
def test_large_bodies_go_both_ways_at_once_on_several_streams(
    house: House, outside: Outside
) -> None:
    server = outside.server(serving(lambda got: Reply(body=got.body)))
    cell = house.cell(f"POST {HOST}:{server.port}", upstream_tls=outside.trust)
    client = opened(house, cell, server.port)
    bodies = [bytes([65 + number]) * 700_001 for number in range(3)]
    streams = [client.begin(client.head(method="POST"), body) for body in bodies]
    assert [
        client.answer(stream).body == body for stream, body in zip(streams, bodies, strict=True)
    ] == [True] * 3


def test_trailers_of_answers_pass_and_those_of_requests_do_not(
    house: House, outside: Outside
) -> None:
    seen: list[Got] = []
    trailers = [(b"grpc-status", b"0"), (b"grpc-message", b"fine")]
    server = outside.server(serving(lambda _: Reply(body=b"x", trailers=trailers), seen))
    cell = house.cell(f"POST {HOST}:{server.port}", upstream_tls=outside.trust)
    client = opened(house, cell, server.port)
    answer = client.ask("/pkg.Service/Call", (b"te", b"trailers"), method="POST", body=b"message")
    assert (answer.status, answer.body, answer.trailers) == (200, b"x", trailers)
    assert seen[0]["te"] == b"trailers"
    stream = client.begin(client.head(method="POST"), b"y", is_end=False)
    client.h2.send_headers(stream, [(b"x-admin", b"1")], end_stream=True)
    client.flush()
    assert client.answer(stream).refusal == (400, "CW-BAD-REQUEST")
    assert len(seen) == 1


def test_client_that_waits_for_leave_to_send_gets_it(house: House, outside: Outside) -> None:
    seen: list[Got] = []
    server = outside.server(serving(told, seen))
    cell = house.cell(f"POST {HOST}:{server.port}", upstream_tls=outside.trust)
    client = opened(house, cell, server.port)
    leave = threading.Event()
    heard = client.on

    def on(event: object) -> None:
        if type(event).__name__ == "InformationalResponseReceived":
            leave.set()
        else:
            heard(event)  # type: ignore[arg-type]  # an event of h2

    client.on = on  # type: ignore[method-assign]  # of a test
    head = client.head("/", (b"expect", b"100-continue"), method="POST")
    stream = client.begin(head, is_end=False)
    while not leave.is_set():
        client.read()
    client.more(stream, b"at last", is_end=True)
    assert client.answer(stream).told["body"] == "at last"
    assert seen[0]["expect"] is None


def test_stream_that_is_given_up_is_given_up_outside(house: House, outside: Outside) -> None:
    reset = threading.Event()

    class Slow(ServerSide):
        def ended(self, got: Got) -> None:
            if got[":path"] != b"/slow":
                super().ended(got)

        def on(self, event: object) -> None:
            super().on(event)  # type: ignore[arg-type]  # an event of h2
            if self.resets:
                reset.set()

    server = outside.server(lambda sock: Slow(sock, told, []).run())
    cell = house.cell(f"GET {HOST}:{server.port}", upstream_tls=outside.trust)
    client = opened(house, cell, server.port)
    stream = client.begin(client.head("/slow"))
    assert client.ask("/fast").status == 200
    client.h2.reset_stream(stream, 8)
    client.flush()
    assert reset.wait(WAIT_S)
    assert client.ask("/fast").status == 200


@pytest.mark.parametrize("case", ["goodbye", "cut", "silence", "broken"])
def test_server_that_ends_is_told_to_every_stream(
    house: House, outside: Outside, case: str
) -> None:
    class Ending(ServerSide):
        def ended(self, got: Got) -> None:
            if got[":path"] == b"/first":
                super().ended(got)
            elif case == "goodbye" and got[":path"] == b"/last":
                # Nothing behind the first is looked at; that one has its answer.
                goodbye = b"\0\0\x08\x07\0\0\0\0\0" + (1).to_bytes(4, "big") + bytes(4)
                self.sock.sendall(self.h2.data_to_send() + goodbye)
                self.answer(1, Reply(body=b"late"))
            elif case == "cut" and got[":path"] == b"/last":
                self.sock.close()
            elif case == "broken" and got[":path"] == b"/last":
                self.sock.sendall(b"\0\0\0\x09\0\0\0\0\x01")

    server = outside.server(lambda sock: Ending(sock, told, []).run())
    settings: dict[str, Any] = {"idle_timeout_s": 0.5} if case == "silence" else {}
    cell = house.cell(f"GET {HOST}:{server.port}", upstream_tls=outside.trust, **settings)
    client = opened(house, cell, server.port)
    first, last = client.begin(client.head("/a")), client.begin(client.head("/last"))
    answers = client.answer(first), client.answer(last)
    if case == "goodbye":
        assert (answers[0].body, answers[1].reset) == (b"late", 7)
        assert client.end() == 0
    else:
        code = (504, "CW-LATE") if case == "silence" else (502, "CW-BAD-RESPONSE")
        assert [answer.refusal for answer in answers] == [code] * 2


def test_settings_of_the_server_are_kept(house: House, outside: Outside) -> None:
    most = 0

    class Narrow(ServerSide):
        def begun(self, got: Got) -> None:
            nonlocal most
            most = max(most, self.h2.open_inbound_streams)

    def talk(sock: object) -> None:
        side = Narrow(sock, told, [])  # type: ignore[arg-type]  # a socket
        side.h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 2})
        side.run()

    server = outside.server(talk)
    cell = house.cell(f"GET {HOST}:{server.port}", upstream_tls=outside.trust)
    client = opened(house, cell, server.port)
    assert client.ask("/").status == 200  # by now the settings are known
    streams = [client.begin(client.head("/")) for _ in range(20)]
    assert {client.answer(stream).status for stream in streams} == {200}
    assert most <= 2


@pytest.mark.requirement("NET-2")
def test_upload_beyond_the_bound_is_refused_on_its_stream(house: House, outside: Outside) -> None:
    server = outside.server(serving())
    cell = house.cell(
        f"POST {HOST}:{server.port}", upstream_tls=outside.trust, max_upload_bytes=20_000
    )
    client = opened(house, cell, server.port)
    assert client.ask("/", method="POST", body=b"x" * 1000).status == 200
    answer = client.ask("/", method="POST", body=b"x" * 40_000)
    assert answer.refusal == (429, "CW-NET-LIMIT")


@pytest.mark.requirement("NET-2")
def test_header_rules_hold_on_each_stream(house: House, outside: Outside) -> None:
    seen: list[Got] = []
    server = outside.server(serving(told, seen))
    rules = [
        f"{HOST} forbid x-admin",
        f"{HOST}:{server.port} require x-version: 2",
        f"{HOST} set x-tenant: ours",
    ]
    cell = house.cell(
        f"{HOST}:{server.port}",
        upstream_tls=outside.trust,
        header_rules=tuple(map(parse_header_rule, rules)),
    )
    client = opened(house, cell, server.port)
    good = (b"x-version", b"2")
    for bad in [(), ((b"x-version", b"3"),), (good, good), (good, (b"x_admin", b"1"))]:
        assert client.ask("/", *bad).refusal == (403, "CW-HEADER-RULE")
    assert client.ask("/", good, (b"x_tenant", b"theirs")).status == 200
    assert [got.headers[4:] for got in seen] == [[good, (b"x-tenant", b"ours")]]


def test_answer_before_the_end_of_an_upload_ends_it(house: House, outside: Outside) -> None:
    class Early(ServerSide):
        def begun(self, got: Got) -> None:
            self.answer(got.stream_id, Reply(status=413, body=json.dumps("too much").encode()))

        def ended(self, got: Got) -> None:
            """Answered before."""

    server = outside.server(lambda sock: Early(sock, told, []).run())
    cell = house.cell(f"POST {HOST}:{server.port}", upstream_tls=outside.trust)
    client = opened(house, cell, server.port)
    stream = client.begin(client.head(method="POST"), b"x" * 20_000, is_end=False)
    answer = client.answer(stream)
    assert (answer.status, answer.body) == (413, b'"too much"')
    other = client.begin(client.head(method="POST"), b"x")
    assert client.answer(other).status == 413


def test_answers_without_a_body_may_say_how_long_it_would_be(
    house: House, outside: Outside
) -> None:
    length = (b"content-length", b"1234")
    server = outside.server(
        serving(lambda got: Reply(status=304 if got[":path"] == b"/304" else 200, headers=[length]))
    )
    cell = house.cell(f"GET,HEAD {HOST}:{server.port}", upstream_tls=outside.trust)
    client = opened(house, cell, server.port)
    for answer in (client.ask("/304"), client.ask("/", method="HEAD")):
        assert (answer.is_whole, answer.body, length in answer.headers) == (True, b"", True)
    assert client.ask("/").refusal == (502, "CW-BAD-RESPONSE")


@pytest.mark.requirement("NET-5")
def test_many_guesses_at_once_are_answered_no_more_often_than_one_by_one(
    house: House, outside: Outside
) -> None:
    value = b"A1B2C3D4E5F6G7H8"
    server = outside.server(serving())
    cell = house.cell(
        f"POST {HOST}:{server.port}", upstream_tls=outside.trust, known=Known(TOKEN=value)
    )
    client = opened(house, cell, server.port)
    assert client.ask("/", method="POST", body=b"x" * 16).status == 200
    streams = [client.begin(client.head(method="POST"), value, is_end=False) for _ in range(30)]
    codes = [client.answer(stream).refusal[1] for stream in streams]
    assert sorted(codes) == ["CW-LEAK"] * 5 + ["CW-LEAK-LIMIT"] * 25


@pytest.mark.requirement("NET-6")
@pytest.mark.parametrize("most", [1, 100])
def test_uploads_that_wait_for_the_server_do_not_lock_each_other_up(
    house: House, outside: Outside, most: int
) -> None:
    class Narrow(ServerSide):
        def __init__(self, sock: Any) -> None:
            super().__init__(sock, lambda got: Reply(body=b"%d" % len(got.body)), [])
            self.h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: most})

    server = outside.server(lambda sock: Narrow(sock).run())
    cell = house.cell(f"POST {HOST}:{server.port}/", upstream_tls=outside.trust)
    client = opened(house, cell, server.port)
    assert client.ask("/", method="POST").status == 200  # what the server takes is known by now
    left = {
        client.begin(client.head(f"/{number}", method="POST"), is_end=False): 150_000
        for number in range(6)
    }
    while not all(_is_over(client, stream_id) for stream_id in left):
        sent = [_send_some(client, stream_id, left) for stream_id in left]
        if not any(sent):
            client.read()
        assert not client.is_over
    ends = [(client.answers[each].status, client.answers[each].reset) for each in left]
    # Whoever would have to wait for too long can ask again.
    assert set(ends) <= {(200, None), (0, ErrorCodes.REFUSED_STREAM)}
    assert ends.count((200, None)) >= (2 if most == 1 else 6)


def _is_over(client: Client, stream_id: int) -> bool:
    found = client.answers[stream_id]
    return found.is_whole or found.reset is not None


def _send_some(client: Client, stream_id: int, left: dict[int, int]) -> bool:
    if _is_over(client, stream_id) or not left[stream_id]:
        return False
    room = min(client.h2.local_flow_control_window(stream_id), 16_384, left[stream_id])
    if room > 0:
        left[stream_id] -= room
        client.h2.send_data(stream_id, b"x" * room, end_stream=not left[stream_id])
        client.flush()
    return room > 0
