"""Rules on headers, held to on every egress path: plain HTTP, a proxy's, TLS that is opened for them."""

from __future__ import annotations

import pytest

from cellwall.core.network import SecretUse
from cellwall.egress.destinations.header_rules import HeaderRule, parse_header_rule
from unit.egress.loopback import House, get, refusal_of, repeat_requests
from unit.egress.proxy.test_tunnel import (
    HOST,
    PLACEHOLDER,
    VALUE,
    Outside,
    ask,
    outside,  # noqa: F401  # a fixture
    request,
    secret,
)


def rules(*texts: str) -> tuple[HeaderRule, ...]:
    return tuple(map(parse_header_rule, texts))


RULES = (f"{HOST} forbid x-admin", f"{HOST} require x-version: 2", f"{HOST} set x-tenant: ours")


@pytest.mark.requirement("NET-2", "NET-6")
@pytest.mark.slow
def test_rules_on_headers_open_tls_and_hold_inside(
    house: House,
    outside: Outside,  # noqa: F811  # the fixture
) -> None:
    server = outside.server(repeat_requests)
    cell = house.cell(
        f"{HOST}:{server.port}", upstream_tls=outside.trust, header_rules=rules(*RULES)
    )
    good = request(server.port, "/", "X-Version: 2", "X_Tenant: theirs")
    shown = ask(cell, server.port, good).partition(b"\r\n\r\n")[2]
    assert b"\r\nx-tenant: ours\r\n" in shown
    assert b"theirs" not in shown
    for lines in ([], ["X-Version: 3"], ["X-Version: 2", "X_Admin: 1"]):
        bad = ask(cell, server.port, request(server.port, "/", *lines))
        assert refusal_of(bad) == (403, "CW-HEADER-RULE")
    assert server.connections == 1
    assert [body["tls_opened"] for body in house.record.of("opened")] == [True]


@pytest.mark.requirement("NET-2")
def test_rules_on_headers_hold_without_tls(house: House) -> None:
    server = house.server(repeat_requests, HOST)
    cell = house.cell(f"{HOST}:{server.port}", header_rules=rules(*RULES, f"{HOST} only x-version"))
    url = f"http://{HOST}:{server.port}/"
    assert b"x-tenant: ours" in cell.ask(get(url, "X-Version: 2"))
    for lines in ([], ["X-Version: 2", "X-Other: 1"], ["X-Version: 2", "Authorization: x"]):
        assert refusal_of(cell.ask(get(url, *lines))) == (403, "CW-HEADER-RULE")
    # By CONNECT, at a port of its own, it is HTTP that is read, and nothing else.
    with cell.tunnel(HOST, server.port) as sock:
        sock.sendall(f"GET / HTTP/1.1\r\nHost: {HOST}:{server.port}\r\n\r\n".encode())
        assert b"X-Cellwall-Refused: CW-HEADER-RULE" in sock.recv(65536)


@pytest.mark.requirement("NET-2")
def test_other_hosts_paths_and_methods_are_as_they_were(house: House) -> None:
    server = house.server(repeat_requests, HOST, "other.example.com")
    cell = house.cell(
        f"{HOST}:{server.port}",
        f"other.example.com:{server.port}",
        header_rules=rules(f"POST {HOST}/v1 require x-version"),
    )
    found = {}
    for name in (HOST, "other.example.com"):
        for method, path in (("GET", "/v1"), ("POST", "/v2"), ("POST", "/v1")):
            url = f"http://{name}:{server.port}{path}"
            answer = cell.ask(get(url, "Content-Length: 0", method=method))
            found[name, method, path] = int(answer.split()[1])
    assert [key for key, status in found.items() if status != 200] == [(HOST, "POST", "/v1")]


@pytest.mark.requirement("NET-2", "SEC-5")
def test_rule_looks_at_what_the_code_sent_not_at_the_value_put_in(
    house: House,
    outside: Outside,  # noqa: F811  # the fixture
) -> None:
    server = outside.server(repeat_requests)
    use: SecretUse = secret(server.port)
    cell = house.cell(
        f"{HOST}:{server.port}",
        upstream_tls=outside.trust,
        secrets=[use],
        header_rules=rules(f"{HOST} require authorization: Bearer hfsecret_*"),
    )
    good = request(server.port, "/", f"Authorization: Bearer {PLACEHOLDER}")
    shown = ask(cell, server.port, good)
    assert f"Bearer {PLACEHOLDER}".encode() in shown
    assert VALUE not in shown
    own = request(server.port, "/", "Authorization: Bearer of-somebody-else")
    assert refusal_of(ask(cell, server.port, own)) == (403, "CW-HEADER-RULE")


@pytest.mark.requirement("NET-2")
@pytest.mark.parametrize("taken", ["X-Version", "close, x-version", "keep-alive,X-VERSION"])
def test_header_that_a_rule_requires_cannot_be_taken_away_on_the_way(
    house: House, taken: str
) -> None:
    server = house.server(repeat_requests, HOST)
    cell = house.cell(f"{HOST}:{server.port}", header_rules=rules(f"{HOST} require x-version: 2"))
    url = f"http://{HOST}:{server.port}/"
    assert b"x-version: 2" in cell.ask(get(url, "X-Version: 2"))
    seen = server.connections
    bad = cell.ask(get(url, "X-Version: 2", f"Connection: {taken}"))
    assert refusal_of(bad) == (403, "CW-HEADER-RULE")
    assert server.connections == seen


@pytest.mark.requirement("NET-2")
def test_rule_holds_for_other_spellings_of_its_path(house: House) -> None:
    server = house.server(repeat_requests, HOST)
    cell = house.cell(f"{HOST}:{server.port}", header_rules=rules(f"{HOST}/adm forbid x-admin"))
    paths = "/adm/x", "/ADM/x", "/adm;a/x", "/adm%3ba/x", "/adm%20/x", "/adm./x", "/%EF%BD%81dm/x"
    for path in paths:
        url = f"http://{HOST}:{server.port}{path}"
        assert cell.ask(get(url)).startswith(b"HTTP/1.1 200 ")
        assert refusal_of(cell.ask(get(url, "X-Admin: 1"))) == (403, "CW-HEADER-RULE")
    other = get(f"http://{HOST}:{server.port}/administration", "X-Admin: 1")
    assert cell.ask(other).startswith(b"HTTP/1.1 200 ")
