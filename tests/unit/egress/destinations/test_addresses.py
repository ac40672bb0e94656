"""Which addresses are dialled, and that nothing but a public one is unless somebody says so (NET-3)."""

from __future__ import annotations

import socket
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cellwall.core.errors import EgressRefused
from cellwall.egress.destinations import addresses
from cellwall.egress.destinations.addresses import Network, own_addresses, refused_reason
from conftest import need

NOBODY: frozenset[IPv4Address | IPv6Address | Network] = frozenset()
EVERYTHING = (IPv4Network("0.0.0.0/0"), IPv6Network("::/0"))
PUBLIC = ["1.1.1.1", "8.8.8.8", "140.82.121.4", "2606:4700:4700::1111", "2a00:1450:4001:82f::200e"]

WORDS = {
    "unspecified": ["0.0.0.0", "::"],
    "reserved": [
        *("0.0.0.1", "0.255.255.255", "192.0.0.1", "192.0.0.9", "192.0.0.170", "192.0.0.255"),
        *("240.0.0.0", "255.255.255.254", "2001:1::1", "2001:10::1", "2001:20::1", "2001:1ff::1"),
        *("3ffe::1", "4000::1", "5f00::1", "1::1", "200::1", "8000::1", "fe00::1", "fbff::1"),
    ],
    "private": [
        *("10.0.0.0", "10.255.255.255", "172.16.0.0", "172.31.255.255", "192.168.0.1"),
        *("192.168.255.255", "fc00::1", "fd00::1", "fdff:ffff::1"),
    ],
    "cgnat": ["100.64.0.0", "100.100.100.199", "100.127.255.255"],
    "loopback": ["127.0.0.0", "127.0.0.1", "127.1.2.3", "127.255.255.255", "::1"],
    "link-local": ["169.254.0.0", "169.254.169.253", "169.254.255.255", "fe80::1", "febf:ffff::1"],
    "metadata": [
        *("169.254.169.254", "169.254.170.2", "169.254.170.23", "169.254.0.23", "169.254.42.42"),
        *("100.100.100.200", "192.0.0.192", "168.63.129.16", "fd00:ec2::254", "fd00:ec2::23"),
        *("fd20:ce::254", "fd00:42::42", "fe80::a9fe:a9fe"),
    ],
    "documentation": ["192.0.2.1", "198.51.100.1", "203.0.113.255", "2001:db8::1", "3fff::1"],
    "benchmarking": ["198.18.0.0", "198.18.0.1", "198.19.255.255", "2001:2::1"],
    "multicast": ["224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"],
    "broadcast": ["255.255.255.255"],
    "site-local": ["fec0::1", "feff::1"],
    "discard": ["100::1"],
    "mapped": ["::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:1.1.1.1"],
    "compatible": ["::127.0.0.1", "::169.254.169.254", "::1.1.1.1", "::2"],
    "translated": ["::ffff:0:127.0.0.1", "::ffff:0:1.1.1.1"],
    "nat64": [
        "64:ff9b::127.0.0.1",
        "64:ff9b::1.1.1.1",
        "64:ff9b:1::a9fe:a9fe",
        "64:ff9b:1:ffff::1",
    ],
    "6to4": ["2002:7f00:1::1", "2002:a9fe:a9fe::", "2002:101:101::1", "192.88.99.1"],
    "teredo": ["2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2"],
    "isatap": ["2606:4700::5efe:7f00:1", "2606:4700::200:5efe:a00:1"],
    "zone": ["fe80::1%eth0", "::1%1", "2606:4700:4700::1111%lo"],
}
CLASSIFIED = [(text, word) for word, texts in WORDS.items() for text in texts]


def reason(text: str, *allowed: str) -> str | None:
    networks = tuple(ip_network(network) for network in allowed)
    return refused_reason(ip_address(text), own=NOBODY, allowed=networks)


@pytest.mark.requirement("NET-3")
@pytest.mark.parametrize("text", PUBLIC)
def test_a_public_address_may_be_dialled(text: str) -> None:
    assert reason(text) is None


@pytest.mark.requirement("NET-3")
@pytest.mark.parametrize(("text", "word"), CLASSIFIED)
def test_an_address_of_no_public_host_is_refused(text: str, word: str) -> None:
    assert reason(text) == word


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("9.255.255.255", "10.0.0.0"),
        ("11.0.0.0", "10.255.255.255"),
        ("100.63.255.255", "100.64.0.0"),
        ("100.128.0.0", "100.127.255.255"),
        ("126.255.255.255", "127.0.0.0"),
        ("128.0.0.0", "127.255.255.255"),
        ("169.253.255.255", "169.254.0.0"),
        ("169.255.0.0", "169.254.255.255"),
        ("172.15.255.255", "172.16.0.0"),
        ("172.32.0.0", "172.31.255.255"),
        ("191.255.255.255", "192.0.0.0"),
        ("192.0.1.0", "192.0.0.255"),
        ("192.167.255.255", "192.168.0.0"),
        ("192.169.0.0", "192.168.255.255"),
        ("198.17.255.255", "198.18.0.0"),
        ("198.20.0.0", "198.19.255.255"),
        ("223.255.255.255", "224.0.0.0"),
        ("168.63.129.15", "168.63.129.16"),
        ("2001:200::", "2001:1ff:ffff::"),
        ("2001:db7:ffff::", "2001:db8::"),
        ("2003::", "2002:ffff::"),
        ("3fff:1000::", "3fff:fff::"),
    ],
)
def test_a_network_ends_where_it_ends(text: str, inside: str) -> None:
    assert reason(text) is None
    assert reason(inside) is not None


V4 = st.integers(0, 2**32 - 1).map(IPv4Address)
V6 = st.integers(0, 2**128 - 1).map(IPv6Address)
# Most IPv6 numbers are far from everything; these are near to what has a meaning.
NEAR = st.builds(
    lambda text, offset: IPv6Address(max(0, min(2**128 - 1, int(IPv6Address(text)) + offset))),
    st.sampled_from([text for text, word in CLASSIFIED if ":" in text and word != "zone"]),
    st.one_of(st.integers(-(2**16), 2**16), st.integers(-(2**100), 2**100)),
)


@pytest.mark.requirement("NET-3")
@settings(max_examples=500, deadline=None)
@given(st.one_of(V4, V6, NEAR))
@example(IPv4Address("192.0.0.8"))
@example(IPv6Address("2001:4:112::1"))
def test_whatever_python_calls_not_global_is_refused(address: IPv4Address | IPv6Address) -> None:
    dialled = refused_reason(address, own=NOBODY, allowed=()) is None
    assert address.is_global or not dialled
    assert not (dialled and (address.is_multicast or address.is_reserved or address.is_loopback))


@settings(max_examples=200, deadline=None)
@given(V4, st.sampled_from(["::ffff:0:0", "::", "::ffff:0:0:0", "64:ff9b::"]))
def test_an_ipv4_address_in_other_clothes_is_refused_whatever_is_allowed(
    address: IPv4Address, prefix: str
) -> None:
    dressed = IPv6Address(int(IPv6Address(prefix)) + int(address))
    by_itself = ip_network(dressed)
    control = IPv6Address("fd00::1")
    for networks in ((), EVERYTHING, (by_itself,)):
        found = refused_reason(dressed, own=NOBODY, allowed=networks)
        assert found is not None or dressed == IPv6Address("::1")
    assert refused_reason(control, own=NOBODY, allowed=EVERYTHING) is None


@pytest.mark.parametrize(
    "text",
    [
        text
        for word, texts in WORDS.items()
        if word
        in {"mapped", "compatible", "translated", "nat64", "6to4", "teredo", "isatap", "zone"}
        | {"unspecified", "multicast", "broadcast"}
        for text in texts
    ],
)
def test_some_addresses_cannot_be_allowed(text: str) -> None:
    word = reason(text)
    assert word is not None
    assert reason(text, "0.0.0.0/0", "::/0", text.partition("%")[0]) == word


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("10.1.2.3", "10.0.0.0/8"),
        ("127.0.0.1", "127.0.0.0/8"),
        ("127.0.0.1", "127.0.0.1/32"),
        ("::1", "::1/128"),
        ("100.64.0.1", "100.64.0.0/10"),
        ("169.254.1.1", "169.254.0.0/16"),
        ("192.0.2.7", "192.0.2.0/24"),
        ("198.18.0.1", "198.18.0.0/15"),
        ("fd00::1", "fd00::/8"),
        ("fe80::1", "fe80::/10"),
    ],
)
def test_what_is_allowed_in_words_may_be_dialled(text: str, network: str) -> None:
    assert reason(text) is not None
    assert reason(text, network) is None
    assert reason(text, "203.0.113.0/24", "2001:db8::/32") is not None


@pytest.mark.requirement("NET-3")
@pytest.mark.parametrize("text", WORDS["metadata"])
def test_metadata_is_not_opened_with_the_network_around_it(text: str) -> None:
    around = str(ip_network(f"{text}/{24 if '.' in text else 64}", strict=False))
    beside = str(ip_address(text) + 1)
    assert reason(beside, around) is None
    assert reason(text, around, "0.0.0.0/0", "::/0") == "metadata"
    assert reason(text, text) is None


@pytest.mark.parametrize("text", ["1.1.1.1", "10.0.0.5", "2606:4700:4700::1111", "fd00::5"])
def test_the_hosts_own_address_is_refused_unless_named_by_itself(text: str) -> None:
    address = ip_address(text)
    own = frozenset({address})

    def found(*networks: str) -> str | None:
        return refused_reason(address, own=own, allowed=tuple(map(ip_network, networks)))

    assert reason(text, "0.0.0.0/0", "::/0") is None
    assert found() == "own"
    assert found("0.0.0.0/0", "::/0") == "own"
    assert found(text) is None


def test_every_address_of_a_prefix_that_is_local_is_the_hosts_own() -> None:
    own = frozenset({ip_network("1.1.1.0/24"), ip_network("2606:4700::/32")})
    found = [
        refused_reason(ip_address(text), own=own, allowed=())
        for text in ("1.1.1.77", "2606:4700::7", "1.1.2.1", "2606:4701::7")
    ]
    assert found == ["own", "own", None, None]


@pytest.mark.parametrize(
    ("family", "loopback"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_the_hosts_own_addresses_are_those_a_socket_can_be_bound_to(
    family: socket.AddressFamily, loopback: str
) -> None:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((loopback, 0))
    except OSError:
        need(False, f"{loopback}")
    held = {item for item in own_addresses() if isinstance(item, IPv4Address | IPv6Address)}
    assert ip_address(loopback) in held
    version = 4 if family == socket.AF_INET else 6
    for address in held:
        if address.version == version and not address.is_link_local:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind((str(address), 0))


FIB_TRIE = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.0
           /8 host LOCAL
        |-- 127.0.0.1
           /32 host LOCAL
        |-- 127.255.255.255
           /32 link BROADCAST
     +-- 203.0.113.0/24 2 0 2
        |-- 203.0.113.0
           /24 link UNICAST
           /32 link BROADCAST
        |-- 203.0.113.9
           /32 host LOCAL
"""


def test_local_routes_are_read_from_the_kernels_table() -> None:
    found = list(addresses._local_v4(FIB_TRIE.splitlines(keepends=True)))
    assert found == [ip_network("127.0.0.0/8"), ip_address("127.0.0.1"), ip_address("203.0.113.9")]


def test_own_addresses_that_cannot_be_read_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(lines: object) -> None:
        raise PermissionError(13, "no", "/proc/net/fib_trie")

    assert own_addresses()
    monkeypatch.setattr(addresses, "_local_v4", broken)
    with pytest.raises(EgressRefused) as refused:
        own_addresses()
    assert refused.value.code == "CW-OWN-ADDRESSES"
    assert "fib_trie" not in str(refused.value)
