"""Addresses that no agent may reach: metadata, link-local and private ones (NET-3). Pure.

A name is not looked up here: the egress proxy does that, with the address it then connects to.

  denied    metadata services hand out credentials; link-local and private networks hold routers,
            databases and consoles that trust every client
  loopback  is often the user's own development server: a rule that names the host
            allows it, a rule for any host does not
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal
from urllib.parse import unquote

from cellwall.core.verdict import Decision, Verdict
from cellwall.policy.rulebook import refuse

AddressKind = Literal["metadata", "link-local", "private", "loopback"]

REASONS: dict[AddressKind, str] = {
    "metadata": "gives the cloud credentials of this machine to every client",
    "link-local": "is a link-local address: devices there trust every client",
    "private": "is a private address: services there trust every client",
    "loopback": "is this machine itself: local services trust every client",
}

_METADATA = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "169.254.169.254",  # AWS, Azure, Google Cloud, Oracle, DigitalOcean, OpenStack
        "169.254.170.2",  # AWS containers
        "169.254.170.23",  # AWS EKS pod identity
        "169.254.169.123",
        "169.254.42.42",  # Scaleway
        "100.100.100.200",  # Alibaba Cloud
        "192.0.0.192",  # Oracle Cloud
        "168.63.129.16",  # Azure
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd20:ce::254",  # Google Cloud
        "fd00:42::42",
    )
)
_METADATA_NAMES = frozenset(
    ("metadata", "metadata.google.internal", "metadata.goog", "instance-data", "metadata.azure.com",
     "instance-data.ec2.internal", "metadata.azure.internal", "metadata.tencentyun.com")
)  # fmt: skip
_LOOPBACK_NAMES = frozenset(("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"))
_LOOPBACK_SUFFIXES = (".localhost", "localtest.me", "lvh.me", "vcap.me", "lacolhost.com")
"""Names that resolve to this machine by a standard (RFC 6761), or by public records for tests."""
_PRIVATE_SUFFIXES = (
    *(".internal", ".local", ".localdomain", ".lan", ".intranet", ".corp", ".home", ".private"),
    *(".home.arpa", ".svc"),
)
"""Names outside the public DNS (RFC 6762, RFC 8375, ICANN's `.internal`)."""
_LINK_LOCAL = tuple(map(ipaddress.ip_network, ("169.254.0.0/16", "fe80::/10")))
_LOOPBACK = tuple(map(ipaddress.ip_network, ("127.0.0.0/8", "0.0.0.0/8", "::1/128", "::/128")))
_PRIVATE = tuple(
    map(
        ipaddress.ip_network,
        ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "192.0.0.0/24",
         "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4", "fc00::/7", "fec0::/10", "ff00::/8"),
    )
)  # fmt: skip
_NAT64 = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "::ffff:0:0:0/96")))
"""Networks whose addresses hold one of IPv4 in their last 32 bits (RFC 6052, RFC 2765)."""
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]{1,16}|[0-9]{1,24}")
_MIN_WHOLE = 1 << 24
"""A lone number below it is a port, a count or a time; as an address it would be 0.x.y.z."""
_WILD_NAMES = (".nip.io", ".sslip.io", ".xip.io", ".traefik.me")
_EMBEDDED = re.compile(r"(?:^|[.-])([0-9]{1,3}[.-][0-9]{1,3}[.-][0-9]{1,3}[.-][0-9]{1,3})$")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}:/{1,3}([^\s/?#'\"`\\<>]{1,300})")
"""curl takes one to three slashes."""
_SEPARATORS = re.compile(r"[\s=,;]+")
_FULL_STOPS = str.maketrans("\u3002\uff0e\uff61", "...")
_IGNORED = re.compile("[\u00ad\u200b-\u200d\u2060\ufeff]")
_QUOTED = re.compile(r"""(?=(['"`])([^'"`\n]{2,300})\1)""")
_FOUR_PARTS = re.compile(r"(?:[0-9a-fA-FxX]+\.){3}[0-9a-fA-FxX]+")
_WHOLE_HEX = re.compile(r"0[xX][0-9a-fA-F]{7,8}")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def kind_of(host: str) -> AddressKind | None:
    """The kind of a host in any spelling; None: a public address, or a name to look up."""
    text = normalise_host(host)
    if text in _METADATA_NAMES:
        return "metadata"
    if text in _LOOPBACK_NAMES or f".{text}".endswith(_LOOPBACK_SUFFIXES):
        return "loopback"
    address = _address(text) or _embedded(text)
    return None if address is None else _kind(address)


def kind_in_url(host: str) -> AddressKind | None:
    """The same for a host that stands in a URL, where `x.local` is no file and `router` no word."""
    kind, text = kind_of(host), normalise_host(host)
    if kind is None and text.endswith(_PRIVATE_SUFFIXES):
        return "private"
    return kind


def normalise_host(host: str) -> str:
    """A host as resolvers read it, without percent-encoding, compatibility forms (NFKC), other full
    stops of IDNA, invisible characters, a zone id and final dots."""
    text = unquote(unquote(host))
    text = _IGNORED.sub("", unicodedata.normalize("NFKC", text).translate(_FULL_STOPS))
    return text.strip().strip("[]").partition("%")[0].rstrip(".").lower()


def _kind(address: Address) -> AddressKind | None:
    if isinstance(address, ipaddress.IPv6Address):
        if address in _METADATA:
            return "metadata"
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and any(address in network for network in _NAT64):
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is None and int(address) >> 32 == 0 and int(address) > 1:  # ::a.b.c.d
            inner = ipaddress.IPv4Address(int(address))
        if inner is not None:
            return _kind(inner)
    if address in _METADATA:
        return "metadata"
    for kind, networks in (
        ("loopback", _LOOPBACK),
        ("link-local", _LINK_LOCAL),
        ("private", _PRIVATE),
    ):
        if any(address in network for network in networks):
            return kind  # type: ignore[return-value]  # the three words are of the type
    return None


def _address(text: str) -> Address | None:
    """As inet_aton(3) reads an address: decimal, octal, hexadecimal, one to four parts; or IPv6."""
    if ":" in text:
        try:
            return ipaddress.IPv6Address(text)
        except ValueError:
            return None
    parts = text.split(".")
    if len(parts) > 4 or not all(_NUMBER.fullmatch(part) for part in parts):
        return None
    try:
        numbers = [_number(part) for part in parts]
    except ValueError:
        return None
    *first, last = numbers
    if any(number > 255 for number in first) or last >= 1 << 8 * (4 - len(first)):
        return None
    if not first and last < _MIN_WHOLE:
        return None
    value = last + sum(number << 8 * (3 - at) for at, number in enumerate(first))
    return ipaddress.IPv4Address(value)


def _number(text: str) -> int:
    if text.lower().startswith("0x"):
        return int(text, 16)
    return int(text, 8) if len(text) > 1 and text.startswith("0") else int(text)


def _embedded(text: str) -> Address | None:
    """`10.0.0.1.nip.io` resolves to the address in its name."""
    for suffix in _WILD_NAMES:
        found = _EMBEDDED.search(text.removesuffix(suffix)) if text.endswith(suffix) else None
        if found is not None:
            return _address(found[1].replace("-", "."))
    return None


def hosts_in(word: str) -> Iterator[str]:
    """Every host that an argument of a connecting program could name."""
    first = len(word)
    for found in _URL.finditer(word):
        first = min(first, found.start())
        yield host_of_authority(found[1])
    is_path = "://" not in word[first:] and bool(word[first:])  # `host:/path` of scp
    for part in _SEPARATORS.split(word if is_path else word[:first]):
        target = part.rpartition("@")[2].partition("/")[0]
        yield target
        yield _without_port(target)
        # `--resolve name:port:address`, `TCP:host:port` of socat, `-L port:host:port` of ssh
        if target.count(":") in {1, 2, 3}:
            yield from target.split(":")


def host_of_authority(authority: str) -> str:
    """The host of a URL, without the user and the port."""
    return _without_port(unquote(authority).rpartition("@")[2])


def _without_port(authority: str) -> str:
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0] if authority.count(":") == 1 else authority


AddressFinding = tuple[str, AddressKind]


def forbidden_in(words: Iterator[str] | tuple[str, ...]) -> AddressFinding | None:
    """The first denied host among the words of a connecting program, with its kind."""
    for word in words:
        for host in hosts_in(word):
            kind = kind_of(host)
            if kind is not None and kind != "loopback":
                return host, kind
    return None


def forbidden_in_any(word: str) -> AddressFinding | None:
    """The same for a word of a program that may connect: `10.1` may be a version there, and
    `metadata` a name, so only URLs and unmistakable addresses count."""
    found = forbidden_in_urls(word)
    if found is not None or _SEPARATORS.sub("", word) != word.replace("=", "") or "==" in word:
        return found
    for host in hosts_in(re.sub(r"^-[A-Za-z](?=[0-9])", "", word)):
        if (kind := _written_out(host)) is not None:
            return host, kind
    return None


def forbidden_in_urls(text: str) -> AddressFinding | None:
    """The same for the URLs in any text."""
    for found in _URL.finditer(text):
        host = host_of_authority(found[1])
        is_url = found[0][: -len(found[1])].endswith("//")
        kind = kind_in_url(host) if is_url else _written_out(host)
        if kind is not None and kind != "loopback":
            return host, kind
    return None


def forbidden_in_code(text: str) -> AddressFinding | None:
    """The same for a program's text: its URLs, and strings that are an address, or begin with
    one and go on with a port."""
    found = forbidden_in_urls(text)
    if found is not None:
        return found
    for match in _QUOTED.finditer(text):
        for host in hosts_in(match[2]):
            if (kind := _written_out(host)) is not None:
                return host, kind
    return None


def _written_out(host: str) -> AddressKind | None:
    """The kind of a host that is unmistakably an address, not a version, a count or a word."""
    kind, text = kind_of(host), normalise_host(host)
    if kind is None or kind == "loopback":
        return None
    is_address = ":" in text or bool(_FOUR_PARTS.fullmatch(text) or _WHOLE_HEX.fullmatch(text))
    is_name = "." in text and not text.replace(".", "").isdigit()
    return kind if is_address or is_name or (kind == "metadata" and text.isdigit()) else None


def kind_fetched(host: str) -> AddressKind | None:
    """The kind of the host of a fetched URL: a name without a dot is a machine of this network."""
    text = normalise_host(host)
    is_short = bool(text) and not {".", ":"} & set(text)
    return kind_in_url(host) or ("private" if is_short else None)


def judge_address(decision: Decision, host: str) -> Decision:
    """A fetch: denied for a private host; a question for this machine, unless a rule names it."""
    kind = kind_fetched(host)
    if kind is None or decision.verdict is Verdict.DENY:
        return decision
    if kind != "loopback":
        return refuse(f"{host} {REASONS[kind]}", decision.subject, "addresses")
    is_named = "(" in decision.rule
    if decision.verdict is Verdict.ASK or is_named:
        return decision
    reason = f"{host} {REASONS[kind]}; only a rule that names it allows it"
    return replace(
        decision, verdict=Verdict.ASK, rule="addresses", reason=reason, source="built-in"
    )
