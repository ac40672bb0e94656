"""What a grant may say, and what it permits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cellwall.core.errors import BadInput
from cellwall.core.network import Binding
from cellwall.secrets.leases import Grant, check_grant, check_secret_name, parse_grant
from unit.secrets.vaults import GITHUB

SESSION = "sbx_" + "0" * 26


def grant(**changes: object) -> Grant:
    return Grant(id="gr_" + "0" * 26, binding=GITHUB, **changes)


@pytest.mark.parametrize(
    "binding",
    [
        GITHUB,
        Binding(host="*.example.com", ports=(443, 8443), methods=("GET", "VERSION-CONTROL")),
        Binding(host="192.0.2.1", path="/v1/things", place="query", name="api_key"),
        Binding(host="localhost", place="basic", name="password"),
        Binding(host="xn--bcher-kva.example", place="header", name="x-api-key"),
    ],
)
def test_plain_bindings_are_taken_and_come_back_from_json(binding):
    made = check_grant(grant(tools=("run", "code", "sandbox"), session=SESSION, until_s=99.5))
    made = replace(made, binding=binding)
    assert check_grant(made) is made
    assert parse_grant(made.to_json()) == made


@pytest.mark.requirement("SEC-3")
@pytest.mark.parametrize(
    "changes",
    [
        *({"host": host} for host in ("", "*", "*.com", "*.1", "a*.example.com", "EXAMPLE.com")),
        *({"host": host} for host in ("a.com:443", "a.com/x", "u@a.com", "a..com", "-a.com")),
        *(
            {"host": host}
            for host in ("127.1", "2852039166", "0x7f.1", "1.2.3.400", "a.com\0.b.com")
        ),
        *({"host": host} for host in ("a.com\n", "bücher.example", "[::1]", "a" * 300)),
        *({"ports": ports} for ports in ((), (0,), (65_536,), (True,), tuple(range(1, 40)))),
        *({"methods": (method,)} for method in ("get", "GET\r\n", "CONNECT", "TRACE", "", "G T")),
        *({"path": path} for path in ("", "x", "/a/../b", "/..", "/a//b", "/./a", "/%2e", "/a?b")),
        *({"path": path} for path in ("/a#b", "/a b", "/\r\n", "/" + "a" * 2000)),
        *({"name": name} for name in ("Host", "host", "content-length", "transfer-encoding")),
        *({"name": name} for name in ("", "a b", "a:", "a\r\nb", "Authorization", "connection")),
        *({"place": "query", "name": name} for name in ("", "a=b", "a&b", "a b", "a\n")),
        *({"place": "basic", "name": name} for name in ("", "token", "Password")),
        {"place": "body", "name": "x"},
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(changes):
    with pytest.raises(BadInput) as caught:
        check_grant(replace(grant(), binding=replace(GITHUB, **changes)))
    assert caught.value.code == "CW-VAULT-GRANT"


@pytest.mark.parametrize(
    "changes",
    [
        *({"tools": tools} for tools in (("a b",), ("",), ("run",) * 17)),
        # Nothing that is named so is ever lent a secret: such a grant would only look like one.
        *({"tools": tools} for tools in (("fetch",), ("run", "fetch"), ("my-tool",))),
        *({"until_s": until_s} for until_s in (-1.0, float("nan"), 1e300)),
        {"session": "../x"},
    ],
)
def test_bounds_that_are_none_are_refused(changes):
    with pytest.raises(BadInput):
        check_grant(grant(**changes))


@pytest.mark.requirement("SEC-3")
@pytest.mark.parametrize(
    ("changes", "permits"),
    [
        ({}, True),
        ({"tools": ("run", "code")}, True),
        ({"tools": ("fetch",)}, False),
        ({"session": "sbx_mine"}, True),
        ({"session": "sbx_theirs"}, False),
        ({"until_s": 101.0}, True),
        ({"until_s": 100.0}, False),
    ],
)
def test_every_bound_counts(changes, permits):
    assert grant(**changes).permits(tool="run", session="sbx_mine", now_s=100.0) is permits


def test_a_grant_for_a_session_is_for_nobody_without_one():
    assert not grant(session="sbx_mine").permits(tool="run", session="", now_s=0.0)


@pytest.mark.parametrize("name", ["A", "_x", "GITHUB_TOKEN", "a" * 64])
def test_names_of_variables_are_names_of_secrets(name):
    assert check_secret_name(name) == name


@pytest.mark.requirement("SEC-2")
@pytest.mark.parametrize(
    "name", ["", "1A", "A-B", "A.B", "A B", "Ä", "A\n", "a" * 65, "s3cr3t-v@lue"]
)
def test_others_are_refused_and_not_repeated(name):
    with pytest.raises(BadInput) as caught:
        check_secret_name(name)
    assert caught.value.code == "CW-VAULT-NAME"
    assert not name or name not in str(caught.value) or len(name) < 4
