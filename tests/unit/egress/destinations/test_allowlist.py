"""What a rule says, what it lets through, and what it does not (NET-2)."""

from __future__ import annotations

import pytest

from cellwall.core.errors import BadInput, EgressRefused
from cellwall.egress.destinations.allowlist import Allowlist, AllowRule, normal_path, parse_rule
from cellwall.egress.destinations.hostnames import host_of

WEB = frozenset({80, 443})
ANY: frozenset[str] = frozenset()


@pytest.mark.requirement("NET-2")
@pytest.mark.parametrize(
    ("text", "host", "is_wildcard", "ports", "methods", "path"),
    [
        ("example.com", "example.com", False, WEB, ANY, "/"),
        ("EXAMPLE.com.", "example.com", False, WEB, ANY, "/"),
        ("bücher.de", "xn--bcher-kva.de", False, WEB, ANY, "/"),
        ("*.bücher.de", "xn--bcher-kva.de", True, WEB, ANY, "/"),
        ("*.example.com", "example.com", True, WEB, ANY, "/"),
        ("*.a.b.example.co.uk", "a.b.example.co.uk", True, WEB, ANY, "/"),
        ("*.somebody.github.io", "somebody.github.io", True, WEB, ANY, "/"),
        ("localhost", "localhost", False, WEB, ANY, "/"),
        ("com", "com", False, WEB, ANY, "/"),  # one host, if there is one
        ("github.io", "github.io", False, WEB, ANY, "/"),
        ("example.com:443", "example.com", False, {443}, ANY, "/"),
        ("example.com:443,8443,1,65535", "example.com", False, {443, 8443, 1, 65535}, ANY, "/"),
        ("example.com/", "example.com", False, WEB, ANY, "/"),
        ("example.com/v1", "example.com", False, WEB, ANY, "/v1"),
        ("example.com/v1/", "example.com", False, WEB, ANY, "/v1/"),
        ("example.com:80/%7Euser/a%20b", "example.com", False, {80}, ANY, "/~user/a%20b"),
        ("GET example.com", "example.com", False, WEB, {"GET"}, "/"),
        ("GET,HEAD,M-SEARCH *.example.com:443/v1", "example.com", True, {443}, {"GET", "HEAD", "M-SEARCH"}, "/v1"),
        ("93.184.215.14", "93.184.215.14", False, WEB, ANY, "/"),
        ("169.254.169.254:80", "169.254.169.254", False, {80}, ANY, "/"),  # refused by its address
        ("[2606:2800:0::1]", "2606:2800::1", False, WEB, ANY, "/"),
        ("[2606:2800::1]:8443/v1", "2606:2800::1", False, {8443}, ANY, "/v1"),
    ],
)  # fmt: skip
def test_a_rule_is_what_it_says(text, host, is_wildcard, ports, methods, path) -> None:
    rule = AllowRule(host, is_wildcard, frozenset(ports), frozenset(methods), path, text)
    assert parse_rule(text) == rule


NO_RULES = [
    # Too much.
    *("*", "*.", "*.*", "*.com", "*.co.uk", "*.github.io", "*.s3.amazonaws.com", "*.xn--p1ai"),
    *("*.kobe.jp", "*.localhost", "*.no-such-suffix", "*:443", "*/v1", "GET *", "*.COM", "*.com."),
    # A * elsewhere.
    *("a.*.example.com", "example.*", "a*.example.com", "*a.example.com", "**.example.com"),
    *("*.*.example.com", "example.com:*", "example.com/*", "example.com/v1*", "*example.com"),
    *("*.127.0.0.1", "*.0.0.1", "127.0.0.*", "*.[::1]", "[*::1]", "[2606:*]"),
    # Other parts of a URL.
    *("https://example.com", "http://example.com/", "//example.com", "example.com?x=1"),
    *("example.com/v1?x=1", "example.com#x", "example.com/#x", "user@example.com"),
    *("user:password@example.com", "example.com/@x", "://example.com"),
    # Hosts that are none.
    *("", " ", ":443", "/v1", ".example.com", "example..com", "exa mple.com", "example.com\0"),
    *("evil.com\0.example.com", "example.com\r\n", "2852039166", "127.1", "0x7f.1", "0177.0.0.1"),
    *("127.0.0.1.", "::1", "2606:2800::1", "[::1", "[fe80::1%eth0]", "[127.0.0.1]", "p\u0430ypal.com"),
    *("a_b", "example.com,example.org", "[::1]x", "[::1]]", "\u2100.com"),
    # Ports.
    *("example.com:", "example.com:0", "example.com:65536", "example.com:99999", "example.com:+1"),
    *("example.com:-1", "example.com:080", "example.com:443,", "example.com:,443", "example.com:1-9"),
    *("example.com:443:443", "example.com:x", "example.com:\u0661", "example.com: 443", "example.com:443 "),
    # Methods.
    *("get example.com", "GET, HEAD example.com", "GET,example.com", "GET  example.com", " example.com"),
    *("GET,, example.com", ",GET example.com", "GET\texample.com", "CONNECT example.com"),
    *("GET,TRACE example.com", "GET GET example.com", "GET;HEAD example.com", "G\u00cbT example.com"),
    # Paths that mean more than one.
    *("example.com/v1/../v2", "example.com//", "example.com/./v1", "example.com/%2e%2e/", "example.com/a%2fb"),
    *("example.com/a\\b", "example.com/\u00e9", "example.com/a b", "example.com/%", "example.com/..;/"),
]  # fmt: skip


@pytest.mark.requirement("NET-2")
@pytest.mark.parametrize("text", NO_RULES)
def test_what_is_too_wide_or_ambiguous_is_no_rule(text: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_rule(text)
    assert refused.value.code == "CW-BAD-DOMAIN"
    assert refused.value.hint
    assert str(refused.value).isprintable()


def test_a_rule_is_bounded_in_length_and_not_repeated_in_full() -> None:
    with pytest.raises(BadInput) as refused:
        parse_rule("example.com/" + "a" * 100_000)
    assert len(str(refused.value)) < 400


EXACT = Allowlist.of(["example.com"])
BELOW = Allowlist.of(["*.example.com"])


@pytest.mark.requirement("NET-2")
@pytest.mark.parametrize(
    ("host", "by_exact", "by_wildcard"),
    [
        ("example.com", True, False),
        ("EXAMPLE.COM", True, False),
        ("example.com.", True, False),  # the trailing dot is the same host, not another
        ("a.example.com", False, True),
        ("A.B.Example.com.", False, True),
        ("_x.example.com", False, True),
        ("evil.com.example.com", False, True),
        ("evilexample.com", False, False),  # the suffix trick
        ("evil-example.com", False, False),
        ("example.com.evil.com", False, False),
        ("a.example.com.evil.com", False, False),
        ("example.co", False, False),
        ("xample.com", False, False),
        ("com", False, False),
        ("example.org", False, False),
        ("example", False, False),
    ],
)
def test_a_name_is_matched_by_whole_labels(host: str, by_exact: bool, by_wildcard: bool) -> None:
    name = str(host_of(host))
    assert (EXACT.knows(name), BELOW.knows(name)) == (by_exact, by_wildcard)
    assert EXACT.reach(name, 443) == (EXACT.rules if by_exact else ())
    assert BELOW.reach(name, 443) == (BELOW.rules if by_wildcard else ())


@pytest.mark.requirement("NET-2")
@pytest.mark.parametrize(
    "host",
    [
        "evil.com\0.example.com",
        "evil.com\r\n.example.com",
        "evil.com/.example.com",
        "evil.com\\.example.com",
        "evil.com@a.example.com",
        "evil.com#.example.com",
        "evil.com:443.example.com",
        "evil.com%00.example.com",
        "evil com.example.com",
        "..example.com",
        ".example.com",
        "a..example.com",
        "A.example.com",
        "a.example.com.",
        "[a.example.com]",
        "é.example.com",
    ],
)
def test_what_was_not_made_canonical_is_matched_by_nothing(host: str) -> None:
    """Names come from `host_of`; should one not, its last labels must not decide."""
    assert BELOW.knows("a.example.com")
    assert not BELOW.knows(host)
    assert BELOW.reach(host, 443) == ()
    assert BELOW.allows(host, 443, "GET", "/") is None


@pytest.mark.parametrize(
    "host", ["[example.com]", "[example.com", "[example.comx", "(example.com)", ""]
)
def test_brackets_are_for_ipv6_alone(host: str) -> None:
    assert EXACT.knows("example.com")
    assert not EXACT.knows(host)
    assert EXACT.reach(host, 443) == ()


def test_a_wildcard_ends_at_a_public_suffix() -> None:
    """`s3.amazonaws.com` is a suffix where anybody has names: a bucket is somebody else's host."""
    found = Allowlist.of(["*.amazonaws.com", "mine.s3.amazonaws.com"])
    known = ["sts.amazonaws.com", "mine.s3.amazonaws.com"]
    unknown = ["s3.amazonaws.com", "evil.s3.amazonaws.com", "a.evil.s3.amazonaws.com"]
    assert [host for host in known + unknown if found.knows(host)] == known
    assert [host for host in known + unknown if found.reach(host, 443)] == known


def test_a_literal_address_is_reached_by_its_own_rule_only() -> None:
    found = Allowlist.of(["93.184.215.14:443", "[2606:2800::1]:443"])
    hosts = ["93.184.215.14", "[2606:2800:0:0::1]"]
    assert [found.reach(str(host_of(host)), 443) for host in hosts] == [
        (rule,) for rule in found.rules
    ]
    assert found.reach("[2606:2800::1]", 443) == found.rules[1:]
    others = ["93.184.215.15", "[2606:2800::2]", "[::ffff:93.184.215.14]"]
    assert [found.reach(str(host_of(host)), 443) for host in others] == [(), (), ()]
    for trick in ("1572394766", "093.184.215.14", "0x5d.184.215.14"):
        with pytest.raises(EgressRefused):
            host_of(trick)


@pytest.mark.requirement("NET-2")
def test_a_port_that_is_not_named_is_refused() -> None:
    found = Allowlist.of(["example.com", "example.org:8443", "*.example.net:22,443"])
    asked = [
        (host, port)
        for host in ("example.com", "example.org", "a.example.net")
        for port in (22, 80, 443, 8443)
    ]
    reached = [pair for pair in asked if found.reach(*pair)]
    assert reached == [
        ("example.com", 80),
        ("example.com", 443),
        ("example.org", 8443),
        ("a.example.net", 22),
        ("a.example.net", 443),
    ]
    assert found.ports == {22, 80, 443, 8443}
    assert found.knows("example.org")
    assert found.knows("a.example.net")


def test_an_empty_list_lets_nothing_out() -> None:
    found = Allowlist.of([])
    assert (found.rules, found.ports) == ((), frozenset())
    assert not found.knows("example.com")
    assert found.reach("example.com", 443) == ()
    assert found.allows("example.com", 443, "GET", "/") is None
    assert not found.must_intercept("example.com", 443)


@pytest.mark.requirement("NET-2")
@pytest.mark.parametrize(
    ("method", "path", "is_allowed"),
    [
        ("GET", "/v1", True),
        ("GET", "/v1/", True),
        ("GET", "/v1/a", True),
        ("GET", "/v1/a/b?c=/../d", True),
        ("GET", "/v1?x", True),
        ("GET", "/%761/a", True),
        ("HEAD", "/v1", True),
        ("POST", "/v1", False),
        ("get", "/v1", False),
        ("GET ", "/v1", False),
        ("", "/v1", False),
        ("GET", "/", False),
        ("GET", "", False),
        ("GET", "*", False),
        ("GET", "/v1x", False),
        ("GET", "/V1", False),
        ("GET", "/v", False),
        ("GET", "/v2/v1", False),
        ("GET", "?/v1", False),
        ("GET", "//v1", False),
        ("GET", "/v1/../v2", False),
        ("GET", "/v1/..", False),
        ("GET", "/v1/.", False),
        ("GET", "/v1//a", False),
        ("GET", "/v1/%2e%2e/v2", False),
        ("GET", "/v1/%2E./v2", False),
        ("GET", "/v1/.%2e/v2", False),
        ("GET", "/v1%2f..%2fv2", False),
        ("GET", "/v1/..%2fv2", False),
        ("GET", "/v1/..%5cv2", False),
        ("GET", "/v1/..\\v2", False),
        ("GET", "/v1/%252e%252e/v2", False),
        ("GET", "/v1/%c0%ae%c0%ae/v2", False),
        ("GET", "/v1/%uff0e%uff0e/v2", False),
        ("GET", "/v1/%ef%bc%8e%ef%bc%8e/v2", False),
        ("GET", "/v1/..;/v2", False),
        ("GET", "/v1/..;a=b/v2", False),
        ("GET", "/v1/..%3b/v2", False),
        ("GET", "/v1/;/a", False),
        ("GET", "/v1/..%20/v2", False),
        ("GET", "/v1/a%00", False),
        ("GET", "/v1/a%0d%0aHost:", False),
        ("GET", "/v1/a\r\n", False),
        ("GET", "/v1/a#/../v2", False),
        ("GET", "/v1/é", False),
        ("GET", "https://example.com/v1", False),
    ],
)
def test_a_path_rule_is_kept_whatever_the_spelling(
    method: str, path: str, is_allowed: bool
) -> None:
    found = Allowlist.of(["GET,HEAD example.com:443/v1"])
    assert found.allows("example.com", 443, "GET", "/v1/control") == found.rules[0]
    assert found.allows("example.com", 443, method, path) == (
        found.rules[0] if is_allowed else None
    )
    assert found.allows("example.com", 80, method, path) is None
    assert found.allows("example.org", 443, method, path) is None


def test_a_path_with_a_slash_at_its_end_is_for_what_lies_below() -> None:
    found = Allowlist.of(["example.com/v1/"])
    allowed = [
        path
        for path in ("/v1", "/v1/", "/v1/a", "/v1x")
        if found.allows("example.com", 443, "GET", path)
    ]
    assert allowed == ["/v1/", "/v1/a"]


def test_a_rule_without_a_path_asks_for_none() -> None:
    found = Allowlist.of(["GET example.com"])
    for path in ("/a/../b", "/%zz", "*", "/a%2fb"):
        assert found.allows("example.com", 443, "GET", path) == found.rules[0]
        assert found.allows("example.com", 443, "POST", path) is None


def test_any_of_several_rules_is_enough() -> None:
    found = Allowlist.of(["GET a.example.com/v1", "POST a.example.com/v2", "PUT *.example.com:443"])
    get, post, put = found.rules
    asked = [
        ("GET", "/v1"),
        ("POST", "/v2"),
        ("PUT", "/"),
        ("POST", "/v1"),
        ("GET", "/v2"),
        ("DELETE", "/v1"),
    ]
    assert found.reach("a.example.com", 443) == (get, post, put)
    assert [found.allows("a.example.com", 443, *what) for what in asked] == [
        get,
        post,
        put,
        None,
        None,
        None,
    ]
    assert [found.allows("b.example.com", 443, *what) for what in asked] == [
        None,
        None,
        put,
        None,
        None,
        None,
    ]


@pytest.mark.requirement("NET-6")
@pytest.mark.parametrize(
    ("rules", "must_intercept"),
    [
        (["a.example.com"], False),
        (["GET a.example.com"], True),
        (["a.example.com/v1"], True),
        (["*.example.com/v1"], True),
        (["a.example.com/"], False),
        (["GET a.example.com", "a.example.com/v1"], True),
        (["GET a.example.com", "*.example.com"], False),
        (["GET a.example.com:443", "a.example.com:80"], True),
        (["b.example.com"], False),  # not reached at all
    ],
)
def test_tls_is_opened_where_every_rule_bounds_method_or_path(
    rules: list[str], must_intercept: bool
) -> None:
    found = Allowlist.of(rules)
    assert found.must_intercept("a.example.com", 443) == must_intercept


@pytest.mark.slow
def test_a_look_does_not_go_through_all_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"h{number}.example.com" for number in range(5000)]
    texts += [f"GET *.w{number}.example.org:443/v1" for number in range(5000)]
    found = Allowlist.of(texts)
    touched: list[AllowRule] = []
    allows = AllowRule.allows

    def counted(rule: AllowRule, method: str, path: str | None) -> bool:
        touched.append(rule)
        return allows(rule, method, path)

    monkeypatch.setattr(AllowRule, "allows", counted)
    assert found.allows("h77.example.com", 443, "GET", "/") == found.rules[77]
    assert found.allows("a.b.w77.example.org", 443, "GET", "/v1") == found.rules[5077]
    assert found.allows("a.example.net", 443, "GET", "/") is None
    assert touched == [found.rules[77], found.rules[5077]]


@pytest.mark.parametrize(
    ("raw", "normal"),
    [
        ("/", "/"),
        ("/a/b", "/a/b"),
        ("/a/b/", "/a/b/"),
        ("/%41%7e%2D%5f%39", "/A~-_9"),
        ("/a%2eb", "/a.b"),
        ("/.well-known/x", "/.well-known/x"),
        ("/a..b/..c/d..", "/a..b/..c/d.."),
        ("/a%20b%3a%c3%a9", "/a%20b%3A%C3%A9"),
        ("/100%25", "/100%25"),
        ("/a;b=c/d", "/a;b=c/d"),
        ("/a=b&c+d,e!$'()*:@", "/a=b&c+d,e!$'()*:@"),
    ],
)
def test_a_path_has_one_spelling(raw: str, normal: str) -> None:
    assert normal_path(raw) == normal
    assert normal_path(normal) == normal


@pytest.mark.parametrize(
    "raw",
    [
        *("", "a", "*", "//", "/a//b", "/.", "/..", "/./", "/../", "/a/.", "/a/..", "/...", "/a/%2e"),
        *("/%2f", "/%2F", "/%5c", "/a\\b", "/%00", "/%01", "/%1f", "/%7f", "/%c2%80", "/%c2%ad"),
        *("/%", "/%4", "/%zz", "/%u002e", "/a%", "/%252f", "/%25%32%65", "/%ff", "/%c0%af", "/%e2%80%ae"),
        *("/%ef%bc%8f", "/%ef%bc%bc", "/%e2%80%a5", "/%e2%84%80", "/%ed%a0%80", "/ ", "/a b", "/\t"),
        *("/?", "/#", "/é", "/\0", "/a\n", "/%20", "/a/%20/b", "/;", "/..;x", "/%2e%2e%3B", "/..%ef%bc%9b"),
    ],
)  # fmt: skip
def test_a_path_that_servers_read_in_two_ways_has_none(raw: str) -> None:
    assert normal_path("/control") == "/control"
    assert normal_path(raw) is None
