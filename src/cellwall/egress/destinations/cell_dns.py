"""DNS inside a cell, for programs without proxy support (NET-7). Pure.

An allowed name gets an address of its own, which is routed only to the proxy: a connection to the
address is authorized as one to the name. No query is forwarded, so a name discloses nothing. Only
an allowed connection does, and there a name that looks like data is refused (NET-5).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from cellwall.core.errors import EgressRefused
from cellwall.core.network import TRANSPARENT_NET
from cellwall.egress.destinations.hostnames import host_name

MAX_NAMES = 4096
TTL_S = 30
_PER_BLOCK = 254  # no address ends in .0 or .255, which some programs take for a network's own
_HEADER_BYTES = 12
_MAX_BYTES = 512
_OUR_PAYLOAD_BYTES = 1232
_LABEL = re.compile(rb"[0-9A-Za-z_-]{1,63}")

_MAX_LABEL = 40
_MAX_LABELS = 8
_MAX_RANDOM = 24
_MIN_RANDOM = 8
_HEX = re.compile(r"[0-9a-f]+")
_CHANGE = re.compile(r"(?<=[a-z])(?=[0-9])|(?<=[0-9])(?=[a-z])")
_NO_VOWEL = re.compile(r"[bcdfghjklmnpqrstvwxz]{6}")


class NameTable:
    """The addresses of names in one session; an address is never reused for another name."""

    def __init__(self, max_names: int = MAX_NAMES) -> None:
        self._max_names = max_names
        self._addresses: dict[str, IPv4Address] = {}
        self._names: dict[IPv4Address, str] = {}

    def address_for(self, host: str) -> IPv4Address:
        """The fixed address of a name; `host` as `hostnames.host_name` writes it."""
        address = self._addresses.get(host)
        if address is not None:
            return address
        index = len(self._addresses)
        if index >= self._max_names:
            raise EgressRefused(
                "the session has resolved too many names",
                hint="Use fewer names, the proxy, or a new session.",
                code="CW-NET-LIMIT",
            )
        block, place = divmod(index, _PER_BLOCK)
        address = TRANSPARENT_NET[(block << 8) + place + 1]
        self._addresses[host] = address
        self._names[address] = host
        return address

    def name_of(self, address: IPv4Address) -> str | None:
        """The name of an address."""
        return self._names.get(address)


@dataclass(frozen=True, slots=True)
class DnsAnswer:
    """The reply, if any, and the audit information."""

    reply: bytes | None
    name: str = ""
    """Canonical; empty if the query names no host."""
    refused: str | None = None
    """The reason of a refusal; None for an answer."""


def answer_query(
    query: bytes,
    *,
    is_allowed: Callable[[str], bool],
    table: NameTable,
    is_exact: Callable[[str], bool] | None = None,
) -> DnsAnswer:
    """Answer one packet.

    `is_exact`: whether a rule spells out the name. Code cannot choose such a name, so it carries
    no data; a name below a wildcard may.
    """
    message = _read(query)
    if isinstance(message, DnsAnswer):
        return message
    question = message.question[0]
    try:
        host = _host(question.name)
    except EgressRefused as error:
        return _refused(message, "", error.message)
    if question.rdclass != dns.rdataclass.IN:
        return _refused(message, host, "it is not of the class IN")
    if not is_allowed(host):
        return _refused(message, host, "the name is not allowed")
    if not (is_exact is not None and is_exact(host)) and looks_like_data(host):
        return _refused(message, host, "the name looks like data")
    reply = _reply(message, dns.rcode.NOERROR)
    # An empty answer for other types: programs then continue with the A record.
    if question.rdtype == dns.rdatatype.A:
        try:
            address = table.address_for(host)
        except EgressRefused as error:
            return _refused(message, host, error.message)
        # With the case of the question: resolvers compare it exactly (0x20).
        reply.answer.append(dns.rrset.from_text(question.name, TTL_S, "IN", "A", str(address)))
    return DnsAnswer(_wire(reply), host)


def looks_like_data(host: str) -> bool:
    """Whether a name below a wildcard looks like exfiltrated data (NET-5).

    Hexadecimal, base32 and the like, in one label or over several.
    """
    labels = host.split(".")
    if len(labels) > _MAX_LABELS or any(len(label) > _MAX_LABEL for label in labels):
        return True
    return sum(len(label) for label in labels if _is_random(label)) > _MAX_RANDOM


def _is_random(label: str) -> bool:
    text = label.replace("-", "").replace("_", "")
    if len(text) < _MIN_RANDOM:
        return False
    is_hex = _HEX.fullmatch(text) is not None
    return is_hex or len(_CHANGE.findall(text)) > 3 or _NO_VOWEL.search(text) is not None


def _read(query: bytes) -> dns.message.Message | DnsAnswer:
    """Parse a query with exactly one question."""
    if len(query) < _HEADER_BYTES or query[2] & 0x80:
        # Too short to answer, or a response: a reply to a response could loop forever.
        return DnsAnswer(None, refused="it is not a query")
    if (query[2] >> 3) & 0x0F != dns.opcode.QUERY:
        return _unread(query, dns.rcode.NOTIMP, "it is not a plain query")
    counts = [int.from_bytes(query[at : at + 2], "big") for at in range(4, _HEADER_BYTES, 2)]
    is_truncated = query[2] & 0x02
    if len(query) > _MAX_BYTES or is_truncated or counts[:3] != [1, 0, 0] or counts[3] > 1:
        return _unread(query, dns.rcode.FORMERR, "it is not one question of at most 512 bytes")
    try:
        message = dns.message.from_wire(query)
    except (dns.exception.DNSException, ValueError):
        return _unread(query, dns.rcode.FORMERR, "it is malformed")
    # A compressed name could only point into the header, where a strict parser sees no name.
    is_plain = len(message.question) == 1 and query.startswith(
        message.question[0].name.to_wire() or b"", _HEADER_BYTES
    )
    if not is_plain or message.additional:
        return _unread(query, dns.rcode.FORMERR, "it has more than a question and EDNS")
    if message.edns > 0:
        return DnsAnswer(_wire(_reply(message, dns.rcode.BADVERS)), refused="its EDNS is not known")
    return message


def _host(name: dns.name.Name) -> str:
    """The canonical name; labels must have the same meaning as text."""
    labels = name.labels[:-1]
    if not all(_LABEL.fullmatch(label) for label in labels):
        raise EgressRefused("the name is not that of a host", code="CW-BAD-HOST")
    return host_name(b".".join(labels).decode("ascii"))


def _refused(query: dns.message.Message, host: str, why: str) -> DnsAnswer:
    return DnsAnswer(_wire(_reply(query, dns.rcode.REFUSED)), host, why)


def _reply(query: dns.message.Message, code: dns.rcode.Rcode) -> dns.message.Message:
    reply = dns.message.make_response(
        query, recursion_available=True, our_payload=_OUR_PAYLOAD_BYTES
    )
    reply.set_rcode(code)
    return reply


def _wire(reply: dns.message.Message) -> bytes | None:
    try:
        return reply.to_wire(max_size=_MAX_BYTES)
    except dns.exception.DNSException:
        return None


def _unread(query: bytes, code: dns.rcode.Rcode, why: str) -> DnsAnswer:
    """A bare header: a malformed question is not repeated."""
    flags = dns.flags.QR | (int.from_bytes(query[2:4], "big") & dns.flags.RD) | code
    opcode = query[2] & 0x78
    head = query[:2] + (flags | opcode << 8).to_bytes(2, "big")
    return DnsAnswer(head + bytes(8), refused=why)
