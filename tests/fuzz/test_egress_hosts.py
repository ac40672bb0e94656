"""Fuzzes what decides where a cell may go: whatever it is given, one meaning or a refusal."""

from __future__ import annotations

import posixpath
import re
import socket
from collections import Counter
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import unquote

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from cellwall.core.errors import BadInput, EgressRefused
from cellwall.egress.destinations.allowlist import Allowlist, AllowRule, normal_path, parse_rule
from cellwall.egress.destinations.hostnames import address_of, host_name, host_of, is_public_suffix

CANONICAL = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")

HOST_PIECES = st.sampled_from(
    [
        *("example", "com", "evil", "a", "A", "-", "_", ".", "..", "*", "xn--", "xn--bcher-kva", "co.uk"),
        *("127", "1", "0x7f", "0177", "2852039166", "256", "00", "[", "]", "::", ":", ":443", "%", "%2e"),
        *("\0", "\r\n", "\n", " ", "\t", "@", "/", "\\", "?", "#", ",", "GET ", "\u3002", "\uff0e", "\u00ad"),
        *("\u200b", "\u0430", "\u043e", "\u03bf", "\u00fc", "u\u0308", "\uff11", "\u2488", "\u00df", "\u2100"),
        *("\ud800", "\u202e", "\u30ce", "\u4f8b", "\U0001f4a9", "https://", "user:pw@", "/v1", ",80", "::ffff:"),
    ]
)  # fmt: skip
HOSTS = st.one_of(
    st.lists(HOST_PIECES, max_size=8).map("".join),
    st.text(max_size=20),
    st.text("0123456789abcdefx.:[]%-", max_size=24),
)


def read_host(text: str) -> str | IPv4Address | IPv6Address | None:
    try:
        return host_of(text)
    except EgressRefused as error:
        refused = error
    assert refused.code == "CW-BAD-HOST"
    assert str(refused).isprintable()
    return None


@pytest.mark.requirement("NET-3", "RED-2")
@settings(max_examples=2 * settings.default.max_examples, deadline=None)
@given(HOSTS)
@example("\u2488example.com")  # one character that becomes `1.`
@example("xn--xn--bcher-kva-.com")
def test_any_text_is_one_host_or_none(text: str) -> None:
    found = read_host(text)
    if isinstance(found, str):
        assert CANONICAL.fullmatch(found)
        assert len(found) <= 253
        assert max(map(len, found.split("."))) <= 63
        # Its own spelling, also when somebody writes it in capitals or with the dot of the root.
        assert host_name(found) == found == host_of(found.upper() + ".")
        # The C library's own reader of addresses takes it for none.
        assert address_of(found) is None
        with pytest.raises(OSError, match="illegal IP address"):
            socket.inet_aton(found)
    elif found is not None:
        family = socket.AF_INET if found.version == 4 else socket.AF_INET6
        written = text.removeprefix("[").removesuffix("]")
        assert socket.inet_pton(family, written) == found.packed


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.sampled_from(["%d", "0x%x", "0X%X", "0%o", "00%o"]), min_size=4, max_size=4), st.integers(1, 4))  # fmt: skip
def test_an_address_is_a_strict_quad_or_nothing(number: int, forms: list[str], parts: int) -> None:
    """Everything that `inet_aton` reads, with one to four parts in any base."""
    octets = list(number.to_bytes(4, "big"))
    values = [*octets[: parts - 1], int.from_bytes(bytes(octets[parts - 1 :]), "big")]
    text = ".".join(form % value for form, value in zip(forms, values, strict=False))
    if text == str(IPv4Address(number)):
        assert read_host(text) == IPv4Address(number)
    else:
        assert read_host(text) is None


def read_rule(text: str) -> AllowRule | None:
    try:
        return parse_rule(text)
    except BadInput as error:
        refused = error
    assert refused.code == "CW-BAD-DOMAIN"
    assert str(refused).isprintable()
    return None


@pytest.mark.requirement("NET-2")
@settings(max_examples=500, deadline=None)
@given(HOSTS)
@example("GET,HEAD *.a.example.com:443,80/v1")
def test_any_text_is_one_rule_or_none(text: str) -> None:
    rule = read_rule(text)
    if rule is None:
        return
    assert rule.text == text
    assert rule.ports
    assert rule.ports <= set(range(1, 65536))
    assert normal_path(rule.path) == rule.path
    assert str(host_of(f"[{rule.host}]" if ":" in rule.host else rule.host)) == rule.host
    found = Allowlist([rule])
    port = min(rule.ports)
    assert found.knows(rule.host) == (not rule.is_wildcard)
    if rule.is_wildcard:
        assert not is_public_suffix(rule.host)
        assert found.reach(f"a.{rule.host}", port) in ((rule,), ())  # none behind a public suffix
        assert found.reach(f"a{rule.host}", port) == ()
    else:
        assert found.reach(rule.host, port) == (rule,)


LABELS = st.sampled_from(["a", "b", "evil", "example", "example2"])
NAMES = st.lists(LABELS, min_size=1, max_size=4).map(lambda labels: ".".join([*labels, "com"]))
RULES = st.builds(
    lambda is_wildcard, name, port: f"{'*.' * is_wildcard}{name}:{port}",
    st.booleans(),
    NAMES,
    st.sampled_from([80, 443]),
)


@pytest.mark.requirement("NET-2")
@settings(max_examples=300, deadline=None)
@given(st.lists(RULES, max_size=6), NAMES, st.sampled_from([80, 443]))
def test_the_quick_look_finds_what_a_plain_one_does(rules: list[str], host: str, port: int) -> None:
    found = Allowlist.of(rules)

    def fits(rule: AllowRule) -> bool:
        labels, wanted = host.split("."), rule.host.split(".")
        below = len(labels) > len(wanted) and labels[-len(wanted) :] == wanted
        return port in rule.ports and (below if rule.is_wildcard else labels == wanted)

    plain = [rule for rule in found.rules if fits(rule)]
    assert Counter(found.reach(host, port)) == Counter(plain)
    assert bool(found.allows(host, port, "GET", "/")) == bool(plain)
    assert found.knows(host) or not plain


PATH_PIECES = st.sampled_from(
    [
        *("/", "v1", "v2", "x", ".", "..", ";", "%", "%2e", "%2E", "%2f", "%5c", "\\", "%25", "2e", "2f", "%252e"),
        *("%c0%ae", "%c3%a9", "%ef%bc%8e", "%ef%bc%8f", "%00", "%0d", "%20", " ", "~", "%7e", "%76", "%3b", "%3f"),
        *("?", "#", "\0", "é", "%u002e", "/v1/", "/../", "/./", "//", "%32%65"),
    ]
)  # fmt: skip
PATHS = st.one_of(
    st.lists(PATH_PIECES, max_size=8).map(lambda pieces: "/" + "".join(pieces)),
    st.lists(PATH_PIECES, max_size=6).map(lambda pieces: "/v1/" + "".join(pieces)),
    st.text(max_size=12),
)


def readings(path: str) -> set[str]:
    """What servers may make of a path: unescaped several times, `\\` as `/`, without `;…`, normal."""
    found = set()
    for _ in range(4):
        for form in (path, path.replace("\\", "/"), re.sub(r";[^/]*", "", path)):
            found.add(posixpath.normpath(form))
        path = unquote(path, errors="replace")
    return found


@pytest.mark.requirement("NET-2")
@settings(max_examples=3 * settings.default.max_examples, deadline=None)
@given(PATHS)
@example("/v1/%2532%65%2e/v2")
@example("/v1/..;/v2")
def test_a_path_below_a_rule_is_below_it_for_every_server(path: str) -> None:
    rule = parse_rule("example.com/v1")
    normal = normal_path(path)
    assert normal is None or normal_path(normal) == normal
    if rule.allows("GET", normal):
        assert {reading.split("/")[1] for reading in readings(path)} == {"v1"}


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text("abzAZ019-_~é;=, ", min_size=1, max_size=6), max_size=4))
def test_an_ordinary_path_is_not_refused(segments: list[str]) -> None:
    """The other side: what cannot be misread is let through."""
    assume(all(segment.partition(";")[0].strip() for segment in segments))
    escaped = ["".join(c if c.isascii() and c not in " ," else "".join(f"%{byte:02x}" for byte in c.encode()) for c in segment) for segment in segments]  # fmt: skip
    path = "/v1/" + "/".join(escaped)
    assert parse_rule("example.com/v1").allows("GET", normal_path(path))
