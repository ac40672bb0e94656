"""Rules on headers: what they say, what they refuse, what they put in, and what is none (NET-2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.core.errors import BadInput, EgressRefused
from cellwall.egress.destinations.allowlist import AllowRule, normal_path, parse_rule
from cellwall.egress.destinations.header_rules import HeaderRule, Verb, parse_header_rule

HERE = parse_rule("api.example.com", default_ports=frozenset())


@pytest.mark.requirement("NET-2")
def test_a_rule_is_what_it_says() -> None:
    text = "POST,PUT *.Example.com:443,8443/v1 require X-Api-Version: 2 beta"
    scope = AllowRule(
        host="example.com",
        is_wildcard=True,
        ports=frozenset({443, 8443}),
        methods=frozenset({"POST", "PUT"}),
        path="/v1",
        text="POST,PUT *.Example.com:443,8443/v1",
    )
    assert parse_header_rule(text) == HeaderRule(
        scope, Verb.REQUIRE, ("x-api-version",), "2 beta", text
    )
    text = "api.example.com forbid X-Admin x-internal-*"
    assert parse_header_rule(text) == HeaderRule(
        HERE, Verb.FORBID, ("x-admin", "x-internal-*"), None, text
    )


NO_RULES = [
    "", "api.example.com", "api.example.com x-admin", "forbid x-admin", " forbid x-admin",
    "api.example.com forbid", "api.example.com forbid ", "api.example.com refuse x-admin",
    "api.example.com FORBID x-admin", "api.example.com forbid x-admin, x-other",
    "api.example.com forbid x admin:", "api.example.com forbid x-admin: 1",
    "api.example.com forbid  x-admin", "* forbid x-admin", "*.com forbid x-admin",
    "https://api.example.com forbid x-admin", "api.example.com:0 forbid x-admin",
    "CONNECT api.example.com forbid x-admin", "get api.example.com forbid x-admin",
    "api.example.com/a/../b forbid x-admin", "api.example.com require x-*",
    "api.example.com require", "api.example.com require x-a x-b", "api.example.com require x-a:",
    "api.example.com require x-a: \r\nx-b: 1", "api.example.com require : 1",
    "api.example.com require x-a: ü", "api.example.com set x-a", "api.example.com set x-*: 1",
    "api.example.com set host: evil.example.net", "api.example.com set Content-Length: 5",
    "api.example.com set content_length: 5", "api.example.com set transfer-encoding: chunked",
    "api.example.com set connection: x-a", "api.example.com set x-a: 1\0",
    "api.example.com only", "api.example.com only x:y", "api.example.com set :path: /v2",
    "x" * 3000,
]  # fmt: skip


@pytest.mark.requirement("NET-2")
@pytest.mark.parametrize("text", NO_RULES)
def test_what_is_no_rule_is_refused_with_what_to_do(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_header_rule(text)
    assert caught.value.code == "CW-BAD-HEADER-RULE"
    assert "forbid x-admin" in caught.value.hint
    assert len(caught.value.message) < 300


Headers = list[tuple[bytes, bytes]]


def is_kept(text: str, headers: Headers) -> bool:
    rule = parse_header_rule(f"api.example.com {text}")
    try:
        rule.check(headers)
    except EgressRefused as error:
        return error.code != "CW-HEADER-RULE"
    return True


@pytest.mark.requirement("NET-2")
@pytest.mark.parametrize(
    ("text", "headers", "expected"),
    [
        ("forbid x-admin", [], True),
        ("forbid x-admin", [(b"x-other", b"1")], True),
        ("forbid x-admin", [(b"x-admin", b"")], False),
        ("forbid X-Admin", [(b"x-admin", b"1")], False),
        ("forbid x-admin", [(b"X-Admin", b"1")], False),
        ("forbid x-admin", [(b"x_admin", b"1")], False),  # the same to servers behind CGI
        ("forbid x_admin", [(b"x.admin", b"1")], False),
        ("forbid x-int-*", [(b"x-int-a", b"1")], False),
        ("forbid x-int-*", [(b"x_int_a", b"1")], False),
        ("forbid x-int-*", [(b"x-int", b"1")], True),
        ("forbid a x-*", [(b"x-y", b"1")], False),
        ("require x-v", [], False),
        ("require x-v", [(b"x-v", b"")], True),
        ("require x-v", [(b"x-v", b"1"), (b"x-v", b"1")], False),
        ("require x-v", [(b"x-v", b"1"), (b"x_v", b"1")], False),
        ("require x-v", [(b"x_v", b"1")], False),
        ("require x-v: 2", [(b"X-V", b"2")], True),
        ("require x-v: 2", [(b"x-v", b"22")], False),
        ("require x-v: 2", [(b"x-v", b"2, 3")], False),
        ("require x-v: a b", [(b"x-v", b"a b")], True),
        ("require x-v: A", [(b"x-v", b"a")], False),
        ("require x-v: Bearer *", [(b"x-v", b"Bearer abc")], True),
        ("require x-v: Bearer *", [(b"x-v", b"Basic abc")], False),
        ("require x-v: [a]?", [(b"x-v", b"[a]?")], True),
        ("require x-v: [a]?", [(b"x-v", b"ab")], False),
        ("only x-v", [(b"host", b"x"), (b"accept", b"*/*"), (b"x-v", b"1")], True),
        ("only x-v", [(b"x-w", b"1")], False),
        ("only x-v", [(b"authorization", b"Bearer x")], False),
        ("only x-v", [(b"cookie", b"a=b")], False),
        ("only x-v authorization", [(b"Authorization", b"Bearer x")], True),
        ("only x-v-*", [(b"x-v-a", b"1")], True),
        ("set x-v: 1", [(b"x-v", b"2")], True),
    ],
)
def test_headers_keep_a_rule_or_not(text: str, headers: Headers, expected: bool) -> None:
    assert is_kept(text, headers) is expected


@pytest.mark.requirement("NET-2")
def test_what_is_set_takes_the_place_of_what_was_sent() -> None:
    rule = parse_header_rule("api.example.com set X-Tenant: ours")
    sent = [(b"host", b"x"), (b"X-Tenant", b"theirs"), (b"x_tenant", b"theirs"), (b"x-a", b"1")]
    assert rule.put(sent) == [(b"host", b"x"), (b"x-a", b"1"), (b"x-tenant", b"ours")]
    assert parse_header_rule("api.example.com forbid x-a").put(sent) == sent


@pytest.mark.parametrize(
    "name", ["trailer", "expect", "Connection", "keep_alive", "te", "upgrade", "proxy-anything"]
)
def test_what_does_not_go_on_to_servers_cannot_be_required(name: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_header_rule(f"api.example.com require {name}: 1")
    assert refused.value.code == "CW-BAD-HEADER-RULE"
    assert parse_header_rule(f"api.example.com forbid {name}").names == (name.lower(),)
    assert parse_header_rule("api.example.com require content-type").names == ("content-type",)


@pytest.mark.requirement("NET-2")
@pytest.mark.parametrize(
    ("text", "host", "port", "expected"),
    [
        ("api.example.com", "api.example.com", 443, True),
        ("api.example.com", "api.example.com", 8443, True),  # no port: all of them
        ("api.example.com:443", "api.example.com", 80, False),
        ("api.example.com", "a.api.example.com", 443, False),
        ("*.example.com", "a.b.example.com", 443, True),
        ("*.example.com", "example.com", 443, False),
        ("*.example.com", "notexample.com", 443, False),
    ],
)
def test_which_hosts_a_rule_is_about(text: str, host: str, port: int, expected: bool) -> None:
    assert parse_header_rule(f"{text} forbid x-a").reaches(host, port) is expected


@pytest.mark.requirement("NET-2")
@pytest.mark.parametrize(
    ("text", "methods", "path", "expected"),
    [
        ("api.example.com", ("GET",), "/", True),
        ("POST api.example.com", ("GET",), "/", False),
        ("POST api.example.com", ("GET", "POST"), "/", True),  # one that a header names
        ("api.example.com/v1", ("GET",), "/v1/x", True),
        ("api.example.com/v1", ("GET",), "/v2", False),
        ("api.example.com/v1", ("GET",), "/v2/..%2fv1", True),  # ambiguous: it may be
        ("api.example.com/adm", ("GET",), "/adm/x", True),
        ("api.example.com/adm", ("GET",), "/administration", False),
        ("api.example.com/adm", ("GET",), "/x/adm", False),
        # What some server reads as /adm.
        ("api.example.com/adm", ("GET",), "/ADM/x", True),
        ("api.example.com/adm", ("GET",), "/adm;a/x", True),
        ("api.example.com/adm", ("GET",), "/adm%3ba/x", True),
        ("api.example.com/adm", ("GET",), "/adm%20/x", True),
        ("api.example.com/adm", ("GET",), "/%20adm/x", True),
        ("api.example.com/adm", ("GET",), "/adm./x", True),
        ("api.example.com/adm", ("GET",), "/adm.%20./x", True),
        ("api.example.com/adm", ("GET",), "/%EF%BD%81dm/x", True),
        ("api.example.com/adm", ("GET",), "/%61dm/x", True),
        ("api.example.com/ADM/", ("GET",), "/adm", True),
        ("api.example.com/adm;a", ("GET",), "/adm/x", True),
        ("POST api.example.com", ("post",), "/", True),
        ("POST api.example.com", ("GET", "POST,GET"), "/", True),
        ("POST api.example.com", ("GET", '"POST"'), "/", True),
        ("POST api.example.com", ("GET", ""), "/", True),
        ("POST api.example.com", ("GET", "PUT"), "/", False),
    ],
)
def test_which_requests_a_rule_is_about(
    text: str, methods: tuple[str, ...], path: str, expected: bool
) -> None:
    rule = parse_header_rule(f"{text} forbid x-a")
    assert rule.concerns(methods, normal_path(path)) is expected


@pytest.mark.parametrize(
    ("own", "allowed", "expected"),
    [
        ("api.example.com", "api.example.com:8443", True),
        ("api.example.com", "*.example.com", True),
        ("*.example.com", "api.example.com", True),
        ("*.a.example.com", "*.example.com", True),
        ("*.example.com", "*.a.example.com", True),
        ("api.example.com", "www.example.com", False),
        ("api.example.com", "*.example.org", False),
    ],
)
def test_allowed_hosts_that_a_rule_may_be_about(own: str, allowed: str, expected: bool) -> None:
    rule = parse_header_rule(f"{own} forbid x-a")
    assert rule.may_meet(parse_rule(allowed)) is expected


@given(st.text(max_size=60), st.sampled_from(["forbid", "require", "only", "set"]))
def test_any_text_is_a_rule_or_our_error(text: str, verb: str) -> None:
    for whole in (text, f"api.example.com {verb} {text}", f"{text} {verb} x-a"):
        try:
            rule = parse_header_rule(whole)
        except BadInput:
            continue
        assert rule.text == whole
        for name, value in rule.put([]):
            assert not {10, 13, 0} & {*name, *value}
