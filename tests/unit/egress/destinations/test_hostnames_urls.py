"""A URL has one reading, or none (NET-3)."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cellwall.core.errors import EgressRefused
from cellwall.egress.destinations.allowlist import Allowlist
from cellwall.egress.destinations.hostnames import Url, domain_of, parse_url, resolve_redirect


@pytest.mark.requirement("NET-3")
@pytest.mark.parametrize(
    ("text", "url"),
    [
        (
            "https://docs.example.com",
            Url(scheme="https", host="docs.example.com", port=443, target="/"),
        ),
        (
            "HTTP://DOCS.Example.com.:8080?q=1#x",
            Url(scheme="http", host="docs.example.com", port=8080, target="/?q=1"),
        ),
        (
            "https://bücher.example/straße?ä=ö",
            Url(
                scheme="https",
                host="xn--bcher-kva.example",
                port=443,
                target="/stra%C3%9Fe?%C3%A4=%C3%B6",
            ),
        ),
        (
            "https://[2606:2800:21f:cb07::1]:8443/a//b/../c",
            Url(scheme="https", host="2606:2800:21f:cb07::1", port=8443, target="/a//b/../c"),
        ),
        ("http://192.0.2.7/x@y:z", Url(scheme="http", host="192.0.2.7", port=80, target="/x@y:z")),
    ],
)
def test_url_is_read_and_written_the_same(text: str, url: Url) -> None:
    assert parse_url(text) == url
    assert parse_url(str(url)) == url


@pytest.mark.requirement("NET-3")
@pytest.mark.parametrize(
    "text",
    [
        *("", "docs.example.com", "//docs.example.com/", "/etc/passwd", "file:///etc/passwd"),
        *("ftp://docs.example.com/", "https:docs.example.com", "https:/docs.example.com"),
        *("https://", "https:///x", "https://:443/", "https://docs.example.com:/"),
        *("https://docs.example.com:0/", "https://docs.example.com:65536/"),
        *("https://docs.example.com:0443/", "https://docs.example.com:+443/"),
        *("https://user@docs.example.com/", "https://user:pw@docs.example.com/", "https://@x.org/"),
        *("https://docs.example.com@evil.example/", "https://docs.example.com:443@evil.example/"),
        *("https://docs.example.com\\@evil.example/", "https://evil.example\\.docs.example.com/"),
        *(
            "https://docs.example.com\t/",
            "https://docs.exa\nmple.com/",
            " https://docs.example.com",
        ),
        *("https://docs.example.com/a b", "https://docs.example.com/\0", "https://x.org/\x7f"),
        *(
            "https://docs.example.com/\u202e",
            "https://docs.example.com/\u200b",
            "https://x.org/\ud800",
        ),
        *("https://evil.example%00.docs.example.com/", "https://docs.example.com%2eevil.example/"),
        *("http://2852039166/", "http://127.1/", "http://0177.0.0.1/", "http://0x7f000001/"),
        *(
            "http://127.0.0.1.1/",
            "http://[::1%25eth0]/",
            "http://[::1]evil.example/",
            "http://[::1/",
        ),
        *("http://[v1.x]/", "http://[127.0.0.1]/", "http://*.example.com/", "http://a..b.example/"),
        *("https://\u0430\u0440\u0440\u04cf\u0435.com/", "https://ex\u0430mple.com/"),
        "https://docs.example.com/" + "a" * 8192,
        "https://docs.example.com/" + "ä" * 4000,
    ],
)
def test_url_with_two_readings_is_refused(text: str) -> None:
    with pytest.raises(EgressRefused) as raised:
        parse_url(text)
    assert raised.value.code in ("CW-BAD-URL", "CW-BAD-HOST")


@pytest.mark.requirement("NET-3")
@pytest.mark.parametrize(
    ("location", "text"),
    [
        (b"next", "https://docs.example.com/a/next"),
        (b"/next", "https://docs.example.com/next"),
        (b"../../next", "https://docs.example.com/next"),
        (b"?q=2", "https://docs.example.com/a/page?q=2"),
        (b"#x", "https://docs.example.com/a/page?q=1"),
        (b"//www.example.com/x", "https://www.example.com/x"),
        (b"http://www.example.com", "http://www.example.com/"),
        ("/größe".encode(), "https://docs.example.com/gr%C3%B6%C3%9Fe"),
    ],
)
def test_redirect_is_relative_to_where_it_stands(location: bytes, text: str) -> None:
    assert str(resolve_redirect(parse_url("https://docs.example.com/a/page?q=1"), location)) == text


@pytest.mark.requirement("NET-3")
@pytest.mark.parametrize(
    "location",
    [
        *(b"", b" /x", b"/x y", b"\t//evil.example", b"/\\evil.example", b"\\\\evil.example"),
        *(b"https://user@evil.example/", b"javascript:x", b"https://[::1", b"/\xff", b"/\r\nx"),
        b"/" + b"a" * 9000,
    ],
)
def test_redirect_with_two_readings_is_refused(location: bytes) -> None:
    with pytest.raises(EgressRefused):
        resolve_redirect(parse_url("https://docs.example.com/a"), location)


@pytest.mark.parametrize(
    "text", ["https://docs.example.com/x", "http://[2001:db8::1]/", "http://192.0.2.7:8080"]
)
def test_domain_of_a_url_allows_its_host_and_port_alone(text: str) -> None:
    url, allowlist = parse_url(text), Allowlist.of([domain_of(text)])
    assert allowlist.allows(url.host, url.port, "GET", "/anything")
    assert not allowlist.reach(url.host, url.port + 1)
    assert not allowlist.reach("www.example.com", url.port)


_PARTS = st.sampled_from(
    [
        *"/?#@:\\.%[]\t\r\n\0 ä1a",
        "https://",
        "http:",
        "//",
        "docs.example.com",
        "..",
        "%2e",
        "127.1",
    ]
)


@given(st.lists(_PARTS, max_size=12).map("".join) | st.text(max_size=80))
@example("https://docs.example.com//evil.example/%2e%2e?x=//y@z")
def test_whatever_is_read_has_one_spelling_that_reads_the_same(text: str) -> None:
    base = parse_url("https://docs.example.com/a")
    for read in (
        parse_url,
        lambda text: resolve_redirect(base, text.encode("utf-8", "surrogatepass")),
    ):
        with suppress(EgressRefused):
            url = read(text)
            assert parse_url(str(url)) == url
            assert url.target.startswith("/")
            assert (url.target + url.authority).isascii()
            assert not any(char in f"{url.authority}{url.target}" for char in " \\\r\n\0#")
            assert not any(char in url.host for char in "/?@%[]")
