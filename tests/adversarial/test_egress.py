"""Names and addresses by which code inside tries to get beyond what is allowed.

Every trap is reachable from outside of a cell, and every way is open for what is allowed: what is
refused here is refused for what it is (NET-2, NET-3).
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable

import pytest

from adversarial.conftest import Verdicts
from adversarial.egress import ASTRAY, World, literals, own_address, the_world  # noqa: F401  # a fixture

Remember = Callable[[object, Callable[[], Verdicts]], Verdicts]

WAYS = ("connect", "absolute", "socks", "transparent")
REFUSED = dict.fromkeys((*WAYS, "direct"), "refused")

# Each was taken for something else by some program's allowlist. What the name in it leads to is
# `trap.example` or this host's loopback; characters stand for bytes.
TRICKS = {
    "decimal": "2130706433",
    "short": "127.1",
    "hexadecimal": "0x7f000001",
    "hexadecimal parts": "0x7f.0x0.0x0.0x1",
    "octal": "0177.0.0.1",
    "octal number": "017700000001",
    "metadata in decimal": "2852039166",
    "zero": "0",
    "zeros": "0.0.0.0",
    "IPv6 unspecified": "[::]",
    "IPv6 without brackets": "::1",
    "mapped": "[::ffff:127.0.0.1]",
    "mapped in hexadecimal": "[::ffff:7f00:1]",
    "compatible": "[::127.0.0.1]",
    "NAT64": "[64:ff9b::127.0.0.1]",
    "6to4": "[2002:7f00:1::]",
    "zone": "[::1%lo]",
    "zone, encoded": "[::1%25lo]",
    "zone behind IPv4": "127.0.0.1%lo",
    "loopback elsewhere": "127.0.0.2",
    "localhost": "localhost",
    "localhost below": "a.localhost",
    "NUL behind a name": "trap.example\0.good.example",
    "NUL behind an address": "127.0.0.1\0.good.example",
    "NUL, encoded": "trap.example%00.good.example",
    "CR LF": "trap.example\r\n.good.example",
    "LF": "trap.example\n.good.example",
    "space": "trap.example .good.example",
    "tab": "trap.example\t.good.example",
    "user": "good.example@trap.example",
    "user with a password": "good.example:80@trap.example",
    "the other way round": "trap.example@good.example",
    "slash": "trap.example/.good.example",
    "encoded slash": "trap.example%2f.good.example",
    "backslash": "trap.example\\.good.example",
    "fragment": "trap.example#.good.example",
    "query": "trap.example?.good.example",
    "semicolon": "trap.example;.good.example",
    "comma": "trap.example,good.example",
    "ends alike": "evilgood.example",
    "begins alike": "good.example.trap.example",
    "below what is allowed": "sub.good.example",
    "a wildcard's own name": "wild.example",
    "a wildcard itself": "*.wild.example",
    "empty label": "good..example",
    "first dot": ".good.example",
    "last dot": "trap.example.",
    "two last dots": "good.example..",
    "encoded dot": "trap%2eexample",
    "full-width letters": "\uff54rap.example".encode().decode("latin-1"),
    "ideographic full stop": "trap\u3002example".encode().decode("latin-1"),
    "Cyrillic letter": "g\u043e\u043ed.example".encode().decode("latin-1"),
    "its punycode": "xn--gd-emca.example",
    "soft hyphen": "go\u00adod.example".encode().decode("latin-1"),
    "not UTF-8": "good\xff.example",
    "nothing": "",
    "not allowed at all": "trap.example",
}
# What a lenient reader makes of them leads to loopback: outside of a cell they get there.
LENIENT = (
    "decimal", "short", "hexadecimal", "hexadecimal parts", "octal", "octal number", "zero", "zeros",
    "mapped", "mapped in hexadecimal", "localhost",
)  # fmt: skip
# Refused before anything was asked of anybody.
UNHEARD = {"CW-BAD-REQUEST", "CW-BAD-HOST", "CW-NOT-ALLOWED"}


def matrix(world: World, path: str, remember: Remember) -> Verdicts:
    """Everything at once, as one program."""

    def work() -> Verdicts:
        world.endpoints.forget()
        world.outside.asked.clear()
        hosts = {**TRICKS, **{name: name for name in (*ASTRAY, *literals(), "good.example")}}
        found = world.inside(
            path, f"{{name: knock(host, {world.port}) for name, host in {hosts!r}.items()}}"
        )
        return {**found, "met": list(world.endpoints.met), "asked": set(world.outside.asked)}

    return remember(("egress", path), work)


def kinds(verdicts: Verdicts, name: str) -> dict[str, str]:
    return {way: kind for way, (kind, _word) in verdicts[name].items()}


@pytest.mark.requirement("NET-2", "NET-7")
def test_what_is_allowed_is_reached_by_every_way_and_nothing_else(
    world: World, path: str, remember: Remember
) -> None:
    """The control of the two below."""
    found = matrix(world, path, remember)
    every_way = (*WAYS, "direct")
    assert found["good.example"] == {way: ["through", "good"] for way in every_way}
    assert found["met"] == ["good"] * len(every_way)
    assert found["asked"] == {*ASTRAY, "good.example"}, "the others did not even get that far"


@pytest.mark.only_on("cold", reason="nothing runs inside")
def test_traps_are_reached_from_outside_of_a_cell(world: World) -> None:
    """The other control: what the names and addresses lead to is there, and answers."""
    hosts = [TRICKS[name] for name in LENIENT] + [own_address(), "127.0.0.1"]
    for host in hosts:
        with socket.create_connection((host.strip("[]"), world.port), 20) as line:
            assert line.recv(4096).endswith(b"trap"), host
    world.endpoints.forget()


@pytest.mark.requirement("NET-2")
def test_a_trap_is_reached_by_every_way_once_it_is_allowed(world: World, path: str) -> None:
    """Only the list stood between, and it can be changed while the cell lives."""
    cell, ask = world.cell(path), f"[go(b'trap.example', {world.port}) for go in WAYS.values()]"
    cell.allow_domains([*world.rules, f"trap.example:{world.port}"])
    try:
        assert world.inside(path, ask) == [["through", "good"]] * len(WAYS)
    finally:
        cell.allow_domains(world.rules)
    assert [kind for kind, _ in world.inside(path, ask)] == ["refused"] * len(WAYS)


@pytest.mark.requirement("NET-2", "NET-3")
@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.table("trick")
def test_other_spelling_reaches_nothing(
    trick: str, world: World, path: str, remember: Remember
) -> None:
    found = matrix(world, path, remember)
    assert kinds(found, trick) == REFUSED
    assert {found[trick][way][1] for way in ("connect", "absolute")} <= UNHEARD


@pytest.mark.requirement("NET-3")
@pytest.mark.parametrize("name", [*ASTRAY, *literals()])
@pytest.mark.table("name")
def test_allowed_name_leads_to_no_address_that_is_none_of_its_business(
    name: str, world: World, path: str, remember: Remember
) -> None:
    found = matrix(world, path, remember)
    assert kinds(found, name) == REFUSED
    word = "CW-NO-ADDRESS" if name == "nothing.example" else "CW-ADDRESS"
    assert [found[name][way][1] for way in ("connect", "absolute")] == [word, word]


@pytest.mark.requirement("NET-3")
@pytest.mark.parametrize("way", WAYS)
def test_name_whose_answer_changes_is_dialled_where_it_was_checked(
    way: str, world: World, path: str
) -> None:
    """Rebinding: a second answer leads to loopback. Nobody asks for it between check and use."""
    good, bad = world.outside.names["good.example"], ["127.0.0.1"]
    world.endpoints.forget()
    # A question for each of the two families, then the other answer for ever.
    answers = itertools.chain([good, good], itertools.repeat(bad))
    world.outside.names[f"{way}-{path}.wild.example"] = lambda: next(answers)
    ask = f"WAYS[{way!r}](b'{way}-{path}.wild.example', {world.port})"
    assert world.inside(path, ask) == ["through", "good"]
    # And the other answer to every second question, whichever that is; each name is a new one.
    turns = itertools.cycle([good, bad, bad])
    hosts = [f"{way}-{path}-{number}.wild.example" for number in range(6)]
    world.outside.names.update(dict.fromkeys(hosts, lambda: next(turns)))
    asks = f"[WAYS[{way!r}](host.encode(), {world.port})[0] for host in {hosts!r}]"
    world.inside(path, asks)
    assert set(world.endpoints.met) == {"good"}
