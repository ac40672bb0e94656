"""One spelling for one host, and nothing that two readers could take for two (NET-2, NET-3)."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest

from cellwall.core.errors import EgressRefused
from cellwall.egress.destinations.hostnames import (
    address_of,
    host_name,
    host_of,
    is_below,
    is_public_suffix,
    public_suffix,
)

LONG = ".".join(["a" * 63, "b" * 63, "c" * 63, "d" * 61])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("example.com", "example.com"),
        ("EXAMPLE.Com", "example.com"),
        ("example.com.", "example.com"),
        ("localhost", "localhost"),
        ("_acme-challenge.example.com", "_acme-challenge.example.com"),
        ("a_b.c_d.example.com", "a_b.c_d.example.com"),
        ("r3---sn-x.example.com", "r3---sn-x.example.com"),
        ("1and1.com", "1and1.com"),
        ("127.0.0.1.example.com", "127.0.0.1.example.com"),
        ("0x7f.example.com", "0x7f.example.com"),
        (LONG, LONG),
        (LONG + ".", LONG),
    ],
)
def test_a_plain_name_has_one_spelling(text: str, name: str) -> None:
    assert len(LONG) == 253
    assert host_name(text) == name
    assert host_of(text) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("bücher.de", "xn--bcher-kva.de"),
        ("BÜCHER.de", "xn--bcher-kva.de"),
        ("bu\u0308cher.de", "xn--bcher-kva.de"),  # u and a combining mark
        ("xn--bcher-kva.de", "xn--bcher-kva.de"),
        ("XN--BCHER-KVA.DE", "xn--bcher-kva.de"),
        ("faß.de", "xn--fa-hia.de"),  # IDNA 2003 would have asked for fass.de
        ("пример.рф", "xn--e1afmkfd.xn--p1ai"),
        ("москва.com", "xn--80adxhks.com"),
        ("παράδειγμα.gr", "xn--hxajbheg2az3al.gr"),
        ("例え.テスト", "xn--r8jz45g.xn--zckzah"),
        ("日本abc.jp", "xn--abc-s08fl0d.jp"),
        ("한국.kr", "xn--3e0b707e.kr"),
        ("l·l.cat", "xn--ll-0ea.cat"),
        ("مثال.إختبار", "xn--mgbh0fb.xn--kgbechtv"),
        ("ｅｘａｍｐｌｅ．ｃｏｍ", "example.com"),  # full width  # noqa: RUF001
        ("example。com", "example.com"),  # ideographic full stop
        ("bücher.de。", "xn--bcher-kva.de"),
        ("_x.bücher.de", "_x.xn--bcher-kva.de"),
        ("сор.рф", "xn--n1aeb.xn--p1ai"),  # looks Latin, but .рф tells what it is  # noqa: RUF001
    ],
)
def test_other_scripts_become_a_labels(text: str, name: str) -> None:
    assert host_name(text) == name
    assert host_name(name) == name


# Each with the name that it would have to be told from, so that the refusal is for the trick alone.
TRICKS = {
    "NUL": ("evil.com\0.example.com", "evil.com.example.com"),
    "NUL at the end": ("example.com\0", "example.com"),
    "CRLF": ("example.com\r\nHost: evil.com", "example.com"),
    "LF": ("example.com\n", "example.com"),
    "tab": ("example\t.com", "example.com"),
    "space": ("example.com ", "example.com"),
    "space before": (" example.com", "example.com"),
    "delete": ("example\x7f.com", "example.com"),
    "C1 control": ("example\x85.com", "example.com"),
    "user": ("example.com@evil.com", "evil.com"),
    "user and password": ("a:b@example.com", "example.com"),
    "port": ("example.com:443", "example.com"),
    "path": ("example.com/evil.com", "example.com"),
    "backslash": ("example.com\\evil.com", "example.com"),
    "query": ("evil.com?example.com", "evil.com"),
    "fragment": ("evil.com#.example.com", "evil.com.example.com"),
    "percent": ("example%2ecom", "example.com"),
    "zone id": ("fe80::1%eth0", "eth0"),
    "wildcard": ("*.example.com", "a.example.com"),
    "comma": ("example.com,evil.com", "example.com"),
    "bracket": ("[example.com]", "example.com"),
    "two dots at the end": ("example.com..", "example.com"),
    "empty label": ("a..example.com", "a.example.com"),
    "dot first": (".example.com", "example.com"),
    "hyphen first": ("-a.example.com", "a.example.com"),
    "hyphen last": ("a-.example.com", "a.example.com"),
    "long label": ("a" * 64 + ".com", "a" * 63 + ".com"),
    "long name": (LONG + "d", LONG),
    "underscore in the last label": ("example.co_m", "example.com"),
    "soft hyphen": ("exam\u00adple.com", "example.com"),
    "zero width space": ("exam\u200bple.com", "example.com"),
    "zero width joiner": ("exam\u200dple.com", "example.com"),
    "right to left override": ("\u202eexample.com", "example.com"),
    "variation selector": ("example\ufe0f.com", "example.com"),
    "Hangul filler": ("example\u3164.com", "example.com"),
    "byte order mark": ("\ufeffexample.com", "example.com"),
    "lone surrogate": ("example\ud800.com", "example.com"),
    "no-break space": ("example.com\u00a0", "example.com"),
    "slash as one letter": ("example.com\u2044evil", "example.com"),
    "account of as one letter": ("\u2100.example.com", "a.example.com"),
    "one dot leader": ("example\u2024com", "example.com"),
    "full width percent": ("example\uff05.com", "example.com"),
    "full width at": ("a\uff20example.com", "example.com"),
    "full width colon": ("example.com\uff1a443", "example.com"),
    "emoji": ("i❤.example.com", "i.example.com"),
}


@pytest.mark.requirement("NET-3")
@pytest.mark.parametrize(("trick", "control"), TRICKS.values(), ids=TRICKS.keys())
def test_a_name_with_a_second_meaning_is_refused(trick: str, control: str) -> None:
    assert host_name(control) == control
    for read in (host_name, host_of):
        with pytest.raises(EgressRefused) as refused:
            read(trick)
        assert refused.value.code == "CW-BAD-HOST"
        assert refused.value.hint
        # The name may hold anything, an escape sequence or a secret.
        assert trick not in refused.value.message
        assert str(refused.value).isprintable()


@pytest.mark.requirement("NET-3")
@pytest.mark.parametrize(
    "text",
    [
        "2852039166",  # 169.254.169.254
        "0xa9fea9fe",
        "0XA9FEA9FE",
        "025177524776",
        "127.1",
        "127.0.1",
        "0x7f.1",
        "0177.0.0.1",
        "0177.1",
        "127.0.0.01",
        "127.0.0.0x1",
        "127.0.0.0x",
        "127.0.0.1.",
        "127.0.0.256",
        "1.2.3.4.5",
        "0",
        "00000000000000000000000000000000000000000000000000177.0.0.1",
        "example.com.1",
        "example.0x1",
        "①②⑦.⓪.⓪.①",
        "１２７.0.0.1",  # noqa: RUF001
        "127。0。0。1",
        "169。254。169。254",
        "+127.0.0.1",
        "127.0.0.1%lo",
        "127.0.0.1 ",
    ],
)
def test_a_number_that_a_resolver_reads_as_an_address_is_no_host(text: str) -> None:
    assert host_of("127.0.0.1") == IPv4Address("127.0.0.1")
    for read in (host_name, host_of):
        with pytest.raises(EgressRefused) as refused:
            read(text)
        assert refused.value.code == "CW-BAD-HOST"


@pytest.mark.parametrize(
    ("trick", "control"),
    [
        ("p\u0430ypal.com", "paypal.com"),  # Cyrillic a
        ("xn--pypal-4ve.com", "paypal.com"),
        ("\u0440aypal.com", "paypal.com"),
        ("g\u03bf\u03bfgle.com", "google.com"),  # Greek omicron
        ("\u0430\u0440\u0440\u04cf\u0435.com", "apple.com"),  # wholly Cyrillic
        ("xn--80ak6aa92e.com", "apple.com"),
        ("www.xn--80ak6aa92e.com", "www.apple.com"),
        ("\u03b9\u03ba\u03b1.com", "ika.com"),  # wholly Greek
        ("\u0585\u057d.com", "ou.com"),  # wholly Armenian
        ("\u0441\u043e.\u0441\u043e", "co.co"),  # the last label, too
        ("\u0441\u0441-1.com", "cc-1.com"),
        ("\u09e6\u09e6.com", "oo.com"),  # Bengali zeros
        ("\u0261oogle.com", "google.com"),  # script g
        ("appl\u0131.com", "appli.com"),  # dotless i
        ("\u13a0\u13a1.com", "dr.com"),  # Cherokee
        ("com\u30cebar.com", "com.bar.com"),  # Katakana no reads as a slash
        ("com\u30fcbar.com", "com-bar.com"),
        ("b\u0338ar.com", "bar.com"),  # an overlay
        ("xn--a.com", "xn.com"),  # no A-label
        ("xn--a-ecp.ru", "xn.ru"),
        ("xn--.com", "xn.com"),
        ("xn--example-.com", "example.com"),
        ("xn--bucher-xyd.de", "xn--bcher-kva.de"),  # the same letters, not composed
        ("xn--ASCII-.com", "ascii.com"),
        ("xn--ri7cmaa8a.com", "full.com"),  # full width letters
    ],
)
def test_a_name_that_looks_like_another_is_refused(trick: str, control: str) -> None:
    assert host_name(control) == control
    with pytest.raises(EgressRefused) as refused:
        host_name(trick)
    assert refused.value.code == "CW-BAD-HOST"


@pytest.mark.parametrize(
    "text", ["", ".", "..", "a" * 254, "ü" * 254, "ü" * 100_000, "." * 100_000]
)
def test_nothing_and_too_much_are_refused(text: str) -> None:
    with pytest.raises(EgressRefused) as refused:
        host_name(text)
    assert refused.value.code == "CW-BAD-HOST"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("192.0.2.1", IPv4Address("192.0.2.1")),
        ("0.0.0.0", IPv4Address("0.0.0.0")),
        ("255.255.255.255", IPv4Address("255.255.255.255")),
        ("[2001:db8::1]", IPv6Address("2001:db8::1")),
        ("[2001:DB8:0:0::1]", IPv6Address("2001:db8::1")),
        ("[::]", IPv6Address("::")),
        ("[::ffff:127.0.0.1]", IPv6Address("::ffff:127.0.0.1")),
    ],
)
def test_a_literal_is_an_address(text: str, address: IPv4Address | IPv6Address) -> None:
    assert host_of(text) == address
    assert address_of(text) == address
    assert address_of(str(address)) == address


@pytest.mark.requirement("NET-3")
@pytest.mark.parametrize(
    "text",
    [
        "[fe80::1%eth0]",
        "[fe80::1%25eth0]",
        "[::1",
        "::1]",
        "[]",
        "[[::1]]",
        "[127.0.0.1]",
        "[::1]:443",
        "[::1].example.com",
        "[v1.fe80::a]",
        "[::ffff:127.0.0.01]",
        "[::ffff:0x7f.1]",
        "[:: 1]",
        "[::1\0]",
        "[1:2:3:4:5:6:7:8:9]",
        "[12345::]",
        "[example.com]",
        "::1",  # cannot be told from a port
        "1:2",
    ],
)
def test_what_only_resembles_a_literal_is_refused(text: str) -> None:
    assert host_of("[::1]") == IPv6Address("::1")
    with pytest.raises(EgressRefused) as refused:
        host_of(text)
    assert refused.value.code == "CW-BAD-HOST"


def test_a_name_is_no_address() -> None:
    assert [address_of(text) for text in ("example.com", "127.1", "", "fe80::1%lo", "]::1[")] == [
        None
    ] * 5


@pytest.mark.parametrize(
    ("host", "suffix"),
    [
        ("com", "com"),
        ("co.uk", "co.uk"),
        ("github.io", "github.io"),
        ("s3.amazonaws.com", "s3.amazonaws.com"),
        ("kobe.jp", "kobe.jp"),
        ("xn--p1ai", "xn--p1ai"),
        ("no-such-suffix", "no-such-suffix"),
        ("example.com", "com"),
        ("a.example.co.uk", "co.uk"),
        ("somebody.github.io", "github.io"),
        ("city.kobe.jp", "kobe.jp"),  # an exception of the list
        ("a.no-such-suffix", "no-such-suffix"),
        ("xn--e1afmkfd.xn--p1ai", "xn--p1ai"),
    ],
)
def test_a_public_suffix_is_where_anybody_can_have_a_name(host: str, suffix: str) -> None:
    assert is_public_suffix(host) == (host == suffix)
    assert public_suffix(host) == suffix


@pytest.mark.parametrize(
    ("host", "above", "expected"),
    [
        ("a.example.com", "example.com", True),
        ("a.b.example.com", "example.com", True),
        ("sts.amazonaws.com", "amazonaws.com", True),
        ("a.mine.github.io", "mine.github.io", True),
        ("example.com", "example.com", False),
        ("evilexample.com", "example.com", False),
        ("evil.com\0.example.com", "example.com", False),
        ("a..example.com", "example.com", False),
        ("a.example.com.", "example.com", False),
        ("A.example.com", "example.com", False),
        ("example.com", "com", False),
        ("s3.amazonaws.com", "amazonaws.com", False),
        ("evil.s3.amazonaws.com", "amazonaws.com", False),
    ],
)
def test_a_wildcard_stands_for_whole_names_below_it(host: str, above: str, expected: bool) -> None:
    assert is_below(host, above) == expected
