"""A URL has one host or none at all, and a rule means the hosts it names (POL-1)."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.core.errors import BadInput
from cellwall.policy.domains import HostPattern, host_of
from cellwall.policy.rules import BadRule


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://example.com", "example.com"),
        ("HTTPS://Example.COM./a?b#c", "example.com"),
        ("http://example.com:8080/x@y", "example.com"),
        ("https://example.com?@evil.com", "example.com"),
        ("https://example.com#@evil.com", "example.com"),
        ("https://bücher.example/", "xn--bcher-kva.example"),
        ("https://BÜCHER.example/", "xn--bcher-kva.example"),
        ("https://xn--bcher-kva.example/", "xn--bcher-kva.example"),
        ("https://\uff45xample\u3002com/", "example.com"),
        ("http://127.0.0.1/", "127.0.0.1"),
        ("http://[::1]:80/", "[::1]"),
        ("http://[0:0:0::1]/", "[::1]"),
        ("http://localhost/", "localhost"),
        ("http://my_host.example/", "my_host.example"),
    ],
)
def test_the_host_is_told_in_one_form(url: str, host: str) -> None:
    assert host_of(url) == host


@pytest.mark.requirement("POL-1")
@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "//example.com",
        "https:/example.com",
        "https:example.com",
        "https:///example.com",
        "https://",
        "https://?x",
        "ftp://example.com",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "https://good.com@evil.com",
        "https://good.com:x@evil.com",
        "https://good.com%40evil.com",
        "https://good.com\\@evil.com",
        "https://good.com\\.evil.com",
        "https:\\\\good.com",
        "https://good.com/\\x",
        "https://go\tod.com",
        "https://good.com\n.evil.com",
        " https://good.com",
        "https://good.com ",
        "https://good.com\x00.evil.com",
        "https://good.com:99999",
        "https://good.com:80:80",
        "https://good.com:",
        "https://.good.com",
        "https://good..com",
        "https://good.com..",
        "https://-good.com",
        "https://good!.com",
        "https://g*.com",
        "https://0x7f.0.0.1",
        "https://0x7f000001",
        "https://2130706433",
        "https://127.1",
        "https://0177.0.0.1",
        "https://127.0.0.256",
        "https://1.2.3.4.5",
        "https://x.0x",
        "https://[::1",
        "https://::1",
        "https://[::1]x",
        "https://[127.0.0.1]",
        "https://straße.de",
        "https://faß\u200d.de",
        "https://good.com\u2028",
        "https://" + "a" * 64 + ".com",
        "https://" + "a." * 130 + "com",
        "https://x/" + "a" * 9000,
    ],
)
def test_a_url_that_programs_read_differently_is_refused(url: str) -> None:
    with pytest.raises(BadInput) as caught:
        host_of(url)
    assert caught.value.code == "CW-BAD-URL"
    assert caught.value.hint


@given(st.text(alphabet="abé.:/@\\?#[]%1 \t", max_size=30))
def test_whatever_follows_the_scheme_there_is_the_host_or_a_refusal(rest: str) -> None:
    url = "https://" + rest
    try:
        host = host_of(url)
    except BadInput:
        return
    other = urlsplit(url).hostname
    assert other is not None
    if other.isascii():
        assert host.strip("[]") == other.removesuffix(".") or ":" in host
    assert host_of(f"https://{host}/") == host


@pytest.mark.requirement("POL-1")
@pytest.mark.parametrize(
    ("rule", "hits", "misses"),
    [
        (
            "domain:example.com",
            ["https://example.com", "http://EXAMPLE.com.:80/x"],
            ["https://www.example.com", "https://evilexample.com", "https://example.com.evil.org"],
        ),
        (
            "domain:*.example.com",
            ["https://a.example.com", "https://a.b.example.com"],
            ["https://example.com", "https://evilexample.com", "https://a.example.com.evil.org"],
        ),
        ("domain:Bücher.example", ["https://xn--bcher-kva.example"], ["https://bucher.example"]),
        ("domain:127.0.0.1", ["http://127.0.0.1/"], ["http://127.0.0.2/"]),
        ("domain:[::1]", ["http://[0::1]/"], ["http://[::2]/"]),
        ("domain:localhost", ["http://localhost:3000"], ["http://a.localhost"]),
    ],
)
def test_a_rule_means_the_hosts_it_names(rule: str, hits: list[str], misses: list[str]) -> None:
    made = HostPattern.parse(rule)
    assert [url for url in hits if not made.matches(host_of(url))] == []
    assert [url for url in misses if made.matches(host_of(url))] == []


@pytest.mark.parametrize(
    ("rule", "offset"),
    [
        ("example.com", 0),
        ("url:example.com", 0),
        ("domain:", 7),
        ("domain:*", 7),
        ("domain:**", 7),
        ("domain:*.", 9),
        ("domain:*.com", 7),
        ("domain:*.localhost", 7),
        ("domain:*.0.0.1", 9),
        ("domain:*.10.0.0.1", 7),
        ("domain:*.[::1]", 7),
        ("domain:*example.com", 7),
        ("domain:a.*.com", 9),
        ("domain:example.*", 15),
        ("domain:example.com:443", 18),
        ("domain:https://example.com", 12),
        ("domain:example.com/x", 18),
        ("domain:a@example.com", 8),
        ("domain:exa mple.com", 10),
        ("domain:straße.de", 7),
        ("domain:127.1", 7),
    ],
)
def test_a_rule_that_opens_too_much_or_nothing_is_refused(rule: str, offset: int) -> None:
    with pytest.raises(BadRule) as caught:
        HostPattern.parse(rule)
    assert (caught.value.offset, bool(caught.value.hint)) == (offset, True)


@given(st.text(max_size=30))
def test_whatever_a_rule_says_it_is_a_pattern_or_a_bad_rule(text: str) -> None:
    for each in (text, f"domain:{text}", f"domain:*.{text}"):
        try:
            made = HostPattern.parse(each)
        except BadRule:
            continue
        assert not made.matches("evil.test") or made.host.endswith("evil.test")
