"""The addresses that may be dialled (NET-3). Pure, except `own_addresses`, which reads /proc.

The tables are from the IANA special-purpose registries. `ipaddress.is_global` is not used: its
result changes with the version of Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

from cellwall.core.errors import EgressRefused

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Own = frozenset[Address | Network]
"""Networks too: Linux treats every address of a locally routed prefix as its own."""

# Metadata services of clouds, which give credentials to any client.
_METADATA = frozenset(
    {
        IPv4Address("169.254.169.254"),  # AWS, GCP, Azure, OpenStack, DigitalOcean, Oracle …
        IPv4Address("169.254.170.2"),  # AWS ECS: a task's role
        IPv4Address("169.254.170.23"),  # AWS EKS: a pod's identity
        IPv4Address("169.254.0.23"),  # Tencent Cloud
        IPv4Address("169.254.42.42"),  # Scaleway
        IPv4Address("100.100.100.200"),  # Alibaba Cloud, within CGNAT
        IPv4Address("192.0.0.192"),  # Oracle Cloud, classic
        IPv4Address("168.63.129.16"),  # Azure's wire server; a public address by its number
        IPv6Address("fd00:ec2::254"),  # AWS
        IPv6Address("fd00:ec2::23"),  # AWS EKS: a pod's identity
        IPv6Address("fd20:ce::254"),  # GCP
        IPv6Address("fd00:42::42"),  # Scaleway
        IPv6Address("fe80::a9fe:a9fe"),  # OpenStack
    }
)

# The first network that contains the address gives the reason.
_V4: tuple[tuple[IPv4Network, str], ...] = tuple(
    (IPv4Network(network), word)
    for network, word in (
        ("0.0.0.0/32", "unspecified"),  # Linux connects it to loopback
        ("0.0.0.0/8", "reserved"),  # RFC 791: this network
        ("10.0.0.0/8", "private"),  # RFC 1918
        ("100.64.0.0/10", "cgnat"),  # RFC 6598
        ("127.0.0.0/8", "loopback"),  # RFC 1122
        ("169.254.0.0/16", "link-local"),  # RFC 3927
        ("172.16.0.0/12", "private"),  # RFC 1918
        ("192.0.0.0/24", "reserved"),  # RFC 6890: protocol assignments, DS-Lite, PCP, TURN
        ("192.0.2.0/24", "documentation"),  # RFC 5737
        ("192.88.99.0/24", "6to4"),  # RFC 7526: relays, withdrawn
        ("192.168.0.0/16", "private"),  # RFC 1918
        ("198.18.0.0/15", "benchmarking"),  # RFC 2544; inside a cell these stand for names (NET-7)
        ("198.51.100.0/24", "documentation"),  # RFC 5737
        ("203.0.113.0/24", "documentation"),  # RFC 5737
        ("224.0.0.0/4", "multicast"),  # RFC 5771
        ("255.255.255.255/32", "broadcast"),  # RFC 919
        ("240.0.0.0/4", "reserved"),  # RFC 1112; some kernels route it
    )
)
_V6: tuple[tuple[IPv6Network, str], ...] = tuple(
    (IPv6Network(network), word)
    for network, word in (
        ("::/128", "unspecified"),  # Linux connects it to loopback
        ("::1/128", "loopback"),  # RFC 4291
        ("::/96", "compatible"),  # RFC 4291: an embedded IPv4 address, withdrawn
        ("::ffff:0:0/96", "mapped"),  # RFC 4291: Linux dials the IPv4 address
        ("::ffff:0:0:0/96", "translated"),  # RFC 2765: SIIT
        ("64:ff9b::/96", "nat64"),  # RFC 6052
        ("64:ff9b:1::/48", "nat64"),  # RFC 8215: local use
        ("100::/64", "discard"),  # RFC 6666
        ("2001::/32", "teredo"),  # RFC 4380
        ("2001:2::/48", "benchmarking"),  # RFC 5180
        ("2001::/23", "reserved"),  # RFC 2928: protocol assignments, ORCHID, DRIP
        ("2001:db8::/32", "documentation"),  # RFC 3849
        ("2002::/16", "6to4"),  # RFC 3056
        ("3ffe::/16", "reserved"),  # RFC 3701: the 6bone, given back
        ("3fff::/20", "documentation"),  # RFC 9637
        ("fc00::/7", "private"),  # RFC 4193
        ("fe80::/10", "link-local"),  # RFC 4291
        ("fec0::/10", "site-local"),  # RFC 3879
        ("ff00::/8", "multicast"),  # RFC 4291
    )
)
_UNICAST = IPv6Network("2000::/3")
"""The space that IANA allocates; other addresses outside of the table are `reserved`."""
_ISATAP = frozenset({0x00005EFE, 0x02005EFE})
"""RFC 5214: the upper half of an interface id whose lower half is an IPv4 address."""

# An embedded IPv4 address would bypass the IPv4 table; the others are not one host. No
# configuration allows these.
NEVER_ALLOWED = frozenset(
    {"mapped", "compatible", "translated", "nat64", "6to4", "teredo", "isatap", "zone"}
    | {"unspecified", "multicast", "broadcast"}
)
# A rule for 10.0.0.0/8 or fd00::/8 means neighbours, not this host or its metadata service.
_BY_ITSELF = frozenset({"metadata", "own"})

_LOCAL_ROUTE = 0x80000000  # RTF_LOCAL


def refused_reason(address: Address, *, own: Own, allowed: tuple[Network, ...]) -> str | None:
    """None if the address may be dialled, else the reason.

    `allowed` networks are permitted, with two exceptions: `metadata` and `own` must be listed as a
    single address, and reasons in `NEVER_ALLOWED` always block.
    """
    word = _word(address, own)
    if word is None or word in NEVER_ALLOWED:
        return word
    for network in allowed:
        by_itself = network.prefixlen == network.max_prefixlen
        if address in network and (by_itself or word not in _BY_ITSELF):
            return None
    return word


def own_addresses() -> Own:
    """Every local address of this host."""
    try:
        with open("/proc/net/fib_trie", encoding="ascii") as routes:
            addresses = set(_local_v4(routes))
        addresses.update(_local_v6())
    except (OSError, ValueError) as error:
        raise EgressRefused(
            "the addresses of this host cannot be read, so they cannot be blocked",
            hint="Mount /proc where Cellwall runs.",
            code="CW-OWN-ADDRESSES",
            detail=repr(error),
        ) from None
    return frozenset(addresses)


def _word(address: Address, own: Own) -> str | None:
    if isinstance(address, IPv4Address):
        word = _in_table(address, _V4)
    elif address.scope_id is not None:
        return "zone"
    else:
        word = _v6_word(address)
    if address in _METADATA:
        return "metadata"
    # Loopback is this host as well, and has its own reason.
    if word not in NEVER_ALLOWED and word != "loopback" and _is_own(address, own):
        return "own"
    return word


def _v6_word(address: IPv6Address) -> str | None:
    word = _in_table(address, _V6)
    if word is None and address not in _UNICAST:
        return "reserved"
    if word is None and (int(address) >> 32) & 0xFFFFFFFF in _ISATAP:
        return "isatap"
    return word


def _in_table(address: Address, table: Iterable[tuple[Network, str]]) -> str | None:
    return next((word for network, word in table if address in network), None)


def _is_own(address: Address, own: Own) -> bool:
    return address in own or any(
        address in network for network in own if isinstance(network, IPv4Network | IPv6Network)
    )


def _local_v4(lines: Iterable[str]) -> Iterator[Address | Network]:
    """`|-- 192.0.2.7` and below it `/32 host LOCAL`."""
    leaf = ""
    for line in lines:
        words = line.split()
        if words[:1] == ["|--"]:
            leaf = words[1]
        elif words[-1:] == ["LOCAL"]:
            yield _address_or_network(f"{leaf}{words[0]}")


def _local_v6() -> Iterator[Address | Network]:
    """The addresses of interfaces and all local routes; none where IPv6 is disabled."""
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as lines:
            for line in lines:
                yield IPv6Address(int(line.split()[0], 16))
        with open("/proc/net/ipv6_route", encoding="ascii") as lines:
            for line in lines:
                words = line.split()
                if int(words[8], 16) & _LOCAL_ROUTE:
                    yield _address_or_network(
                        f"{IPv6Address(int(words[0], 16))}/{int(words[1], 16)}"
                    )
    except FileNotFoundError:
        return


def _address_or_network(text: str) -> Address | Network:
    network = ip_network(text)
    return network.network_address if network.num_addresses == 1 else network
