"""DNS inside a cell: allowed names get addresses of ours, all others a plain no."""

from __future__ import annotations

from ipaddress import IPv4Address

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset
import pytest

from cellwall.core.errors import EgressRefused
from cellwall.core.network import TRANSPARENT_NET
from cellwall.egress.destinations.cell_dns import (
    DnsAnswer,
    NameTable,
    answer_query,
    looks_like_data,
)

pytestmark = pytest.mark.requirement("NET-7")

ALLOWED = {"api.example.com", "münchen.example".encode("idna").decode()}
LONG = "0123456789abcdef" * 2


def is_allowed(host: str) -> bool:
    return host in ALLOWED or host.endswith(".wild.example.com")


def ask(query: dns.message.Message | bytes, table: NameTable | None = None) -> DnsAnswer:
    wire = query if isinstance(query, bytes) else query.to_wire()
    return answer_query(wire, is_allowed=is_allowed, table=table or NameTable())


def told(found: DnsAnswer) -> dns.message.Message:
    assert found.reply is not None
    assert len(found.reply) <= 512
    return dns.message.from_wire(found.reply)


def question(name: str = "api.example.com", kind: str = "A", **more: object) -> dns.message.Message:
    query = dns.message.make_query(name, kind, use_edns=False, **more)
    query.id = 4711
    return query


# The table.


def test_a_name_has_one_address_and_an_address_one_name() -> None:
    table = NameTable()
    first, second = table.address_for("a.example"), table.address_for("b.example")
    assert (first, second) == (IPv4Address("198.18.0.1"), IPv4Address("198.18.0.2"))
    assert table.address_for("a.example") == first
    assert [table.name_of(first), table.name_of(second)] == ["a.example", "b.example"]
    assert table.name_of(IPv4Address("198.18.0.3")) is None


def test_every_address_is_one_of_ours_and_none_looks_like_a_networks_own() -> None:
    table = NameTable()
    found = [table.address_for(f"n{number}.example") for number in range(4096)]
    assert len(set(found)) == 4096
    assert all(
        address in TRANSPARENT_NET and address.packed[3] not in (0, 255) for address in found
    )


def test_a_full_table_refuses_new_names_and_keeps_the_old_ones() -> None:
    table = NameTable(max_names=2)
    first, _ = table.address_for("a.example"), table.address_for("b.example")
    with pytest.raises(EgressRefused) as refused:
        table.address_for("c.example")
    assert refused.value.code == "CW-NET-LIMIT"
    assert table.address_for("a.example") == first


# Answers.


def test_an_allowed_name_gets_its_address() -> None:
    table = NameTable()
    found = ask(question("API.eXample.com."), table)
    expected = dns.message.make_response(question("API.eXample.com."), recursion_available=True)
    expected.answer.append(dns.rrset.from_text("API.eXample.com.", 30, "IN", "A", "198.18.0.1"))
    assert (found.name, found.refused) == ("api.example.com", None)
    assert found.reply == expected.to_wire()
    assert b"API\x07eXample" in found.reply, "resolvers compare the letters as they sent them"
    assert table.name_of(IPv4Address("198.18.0.1")) == "api.example.com"


@pytest.mark.parametrize("kind", ["AAAA", "HTTPS", "SVCB", "TXT", "MX", "NS", "SOA", "ANY", "PTR"])
def test_of_other_types_an_allowed_name_has_none(kind: str) -> None:
    table = NameTable()
    found = ask(question(kind=kind), table)
    reply = told(found)
    assert (reply.rcode(), reply.answer, found.refused) == (dns.rcode.NOERROR, [], None)
    assert table.name_of(IPv4Address("198.18.0.1")) is None, "only an address takes a place"


@pytest.mark.parametrize(
    "name",
    [
        "evil.example.net",
        "api.example.com.evil.net",
        "xapi.example.com",
        "example.com",
        "wild.example.com",
        "1.0.18.198.in-addr.arpa",
        "localhost",
        "host.docker.internal",
        ".",
        "a b.wild.example.com",
        r"a\000.wild.example.com",
        r"evil\.wild.example.com",
        r"x\046y.wild.example.com",
        "127.1",
    ],
)
@pytest.mark.parametrize("kind", ["A", "TXT"])
@pytest.mark.requirement("NET-2", "NET-5")
def test_any_other_name_is_refused(name: str, kind: str) -> None:
    assert ask(question()).refused is None, "the control must be answered"
    found = ask(question(name, kind))
    reply = told(found)
    assert (reply.rcode(), reply.answer, reply.id) == (dns.rcode.REFUSED, [], 4711)
    assert found.refused


def test_a_name_below_a_wildcard_is_answered() -> None:
    assert ask(question("a.b.wild.example.com")).refused is None


def test_a_full_table_is_a_refusal() -> None:
    table = NameTable(max_names=0)
    found = ask(question(), table)
    assert (told(found).rcode(), found.refused) == (
        dns.rcode.REFUSED,
        "the session has resolved too many names",
    )


def test_edns_is_answered_by_edns_and_without_it_there_is_none() -> None:
    query = question()
    query.use_edns(
        0, ednsflags=dns.flags.DO, payload=4096, options=[dns.edns.GenericOption(10, b"12345678")]
    )
    reply = told(ask(query))
    assert (reply.edns, reply.payload, reply.options) == (0, 1232, ())
    assert len(reply.answer) == 1
    assert told(ask(question())).edns == -1


def test_an_unknown_version_of_edns_is_told_so() -> None:
    query = question()
    query.use_edns(1)
    found = ask(query)
    assert (told(found).rcode(), found.refused) == (dns.rcode.BADVERS, "its EDNS is not known")


def test_another_class_is_refused() -> None:
    found = ask(question(rdclass="CH"))
    assert (told(found).rcode(), found.name) == (dns.rcode.REFUSED, "api.example.com")


def changed(at: int, value: bytes) -> bytes:
    wire = question().to_wire()
    return wire[:at] + value + wire[at + len(value) :]


@pytest.mark.parametrize("opcode", [1, 2, 4, 5, 6])
def test_what_is_no_plain_query_is_not_done(opcode: int) -> None:
    reply = told(ask(changed(2, bytes([opcode << 3]))))
    assert (reply.rcode(), reply.opcode(), reply.id) == (dns.rcode.NOTIMP, opcode, 4711)


def two_questions() -> bytes:
    wire = question().to_wire()
    return wire[:4] + b"\x00\x02" + wire[6:] + wire[12:]


def with_record() -> bytes:
    query = question()
    query.additional.append(dns.rrset.from_text("a.example.", 1, "IN", "A", "192.0.2.1"))
    return query.to_wire()


def signed() -> bytes:
    query = question()
    query.use_tsig({dns.name.from_text("key"): b"secret"})
    return query.to_wire()


def padded(size: int) -> bytes:
    query = question()
    query.use_edns(0, options=[dns.edns.GenericOption(12, bytes(size))])
    return query.to_wire()


def test_a_query_of_any_usual_size_is_answered() -> None:
    wire = padded(464)
    assert len(wire) == 512
    assert ask(wire).refused is None


MALFORMED = {
    "no question": question().to_wire()[:4] + bytes(8),
    "two questions": two_questions(),
    "an answer in it": changed(6, b"\x00\x01"),
    "an authority in it": changed(8, b"\x00\x01"),
    "a record in it": with_record(),
    "cut off": question().to_wire()[:-1],
    "cut off in the name": question().to_wire()[:20],
    "header alone": question().to_wire()[:12],
    "bytes behind it": question().to_wire() + b"\x00",
    "truncated": changed(2, b"\x03"),
    "compressed name": changed(4, b"\x00\x01")[:12] + b"\xc0\x04\x00\x01\x00\x01",
    "name that points at itself": changed(4, b"\x00\x01")[:12] + b"\xc0\x0c\x00\x01\x00\x01",
    "label type 0x40": changed(12, b"\x41"),
    "too long": padded(465),
    "signed": signed(),
}


@pytest.mark.parametrize("query", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_query_is_told_so(query: bytes) -> None:
    assert ask(question()).refused is None, "the control must be answered"
    found = ask(query)
    assert found.reply is not None
    assert found.reply[:2] == question().to_wire()[:2]
    assert found.reply[2] & 0x80
    assert found.reply[3] & 0x0F == dns.rcode.FORMERR
    assert found.refused


@pytest.mark.parametrize("query", [b"", b"\x00" * 11, changed(2, b"\x81")])
def test_what_cannot_be_answered_is_not(query: bytes) -> None:
    assert ask(query) == DnsAnswer(None, "", "it is not a query")


# Names as a covert channel for data.


@pytest.mark.parametrize(
    "host",
    [
        "api.wild.example.com",
        "a.b.c.d.wild.example.com",
        "eu-central-1.console.wild.example.com",
        "ec2-52-10-1-2.us-west-2.wild.example.com",
        "d111111abcdef8.wild.example.com",
        "production-service-of-customers.wild.example.com",
        "xn--mnchen-3ya.wild.example.com",
        "pr-12345-preview.wild.example.com",
        "9f86d081884c7d65.wild.example.com",
        "internationalization.wild.example.com",
    ],
)
@pytest.mark.requirement("NET-5")
def test_names_of_hosts_do_not_look_like_data(host: str) -> None:
    assert not looks_like_data(host)


@pytest.mark.parametrize(
    "host",
    [
        "a" * 41 + ".wild.example.com",
        "a.b.c.d.e.f.wild.example.com",
        "c2VjcmV0IHRva2VuIGlzIGhlcmU3.wild.example.com".lower(),
        "0123456789abcdef0123456789.wild.example.com",
        "deadbeefdeadbeefcafecafebabe.wild.example.com",
        "nbswy3dpeb3w64tmmqqho2dfojss.wild.example.com",
        "01234567-89ab-cdef-0123-456789abcdef.wild.example.com",
        "nbswy3dpeb3w.64tmmqqho2df.ojsxg43fpa3t.wild.example.com",
    ],
)
@pytest.mark.requirement("NET-5")
def test_data_in_a_name_is_seen(host: str) -> None:
    assert looks_like_data(host)


@pytest.mark.requirement("NET-5")
def test_data_below_a_wildcard_is_refused_unless_a_rule_spells_it_out() -> None:
    host = f"{LONG}.wild.example.com"
    query = question(host).to_wire()
    refused = answer_query(query, is_allowed=is_allowed, table=NameTable())
    assert (told(refused).rcode(), refused.refused) == (
        dns.rcode.REFUSED,
        "the name looks like data",
    )
    spelled = answer_query(
        query, is_allowed=is_allowed, table=NameTable(), is_exact=lambda name: name == host
    )
    assert spelled.refused is None
    assert len(told(spelled).answer) == 1
