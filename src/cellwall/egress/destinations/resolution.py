"""From a name to the addresses that may be dialled for it (NET-3).

Whoever dials takes exactly what `checked` gives and asks no resolver again, so a second answer of
the same name (DNS rebinding) is never used.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from itertools import zip_longest
from typing import Protocol

import dns.asyncresolver
import dns.exception
import dns.name
import dns.nameserver
import dns.rdatatype
import dns.resolver

from cellwall.core.errors import BadInput, EgressRefused
from cellwall.egress.destinations.addresses import Address, Network, Own, refused_reason
from cellwall.egress.destinations.hostnames import address_of

_MAX_ANSWERS = 256
_MAX_ADDRESSES = 8
"""That are kept to dial; every one of an answer is checked."""
_MAX_LOOKUPS = 64
_HOSTS = "/etc/hosts"


class Resolver(Protocol):
    """Asks for the addresses of a name."""

    async def addresses(self, host: str) -> Sequence[Address]:
        """All of them, in the order to dial; `EgressRefused` if there is none."""


class SystemResolver:
    """As this host resolves names: its own table, then whatever its C library asks."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        # Threads of its own: a look-up cannot be stopped, and slow ones must not hold up whatever
        # else of the process waits for a thread.
        self._threads = ThreadPoolExecutor(_MAX_LOOKUPS, thread_name_prefix="cellwall-names")

    async def addresses(self, host: str) -> Sequence[Address]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await loop.run_in_executor(self._threads, _look_up, host)
        except (OSError, ValueError) as error:  # gaierror, TimeoutError, UnicodeError
            raise no_address(host, repr(error)) from None


class ServersResolver:
    """Asks these DNS servers, and neither this host's configuration nor its table."""

    def __init__(self, servers: Sequence[tuple[str, int]], timeout_s: float) -> None:
        for server, _ in servers:
            if address_of(server) is None:
                raise BadInput(
                    "a DNS server must be given by its address",
                    hint="Write it as 192.0.2.53 or [2001:db8::53], with :PORT if it is not 53.",
                    code="CW-BAD-DNS-SERVER",
                )
        self._timeout_s = timeout_s
        self._resolver = dns.asyncresolver.Resolver(configure=False)
        self._resolver.nameservers = [
            dns.nameserver.Do53Nameserver(server, port) for server, port in servers
        ]

    async def addresses(self, host: str) -> Sequence[Address]:
        try:
            name = dns.name.from_text(f"{host}.")
            async with asyncio.timeout(self._timeout_s):
                # Both are awaited whatever comes: a failed one leaves no other behind.
                answers = await asyncio.gather(
                    self._ask(name, dns.rdatatype.AAAA),
                    self._ask(name, dns.rdatatype.A),
                    return_exceptions=True,
                )
            found: list[Address] = []
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
                found += answer
        except (dns.exception.DNSException, OSError, ValueError) as error:
            raise no_address(host, repr(error)) from None
        return found

    async def _ask(self, name: dns.name.Name, kind: dns.rdatatype.RdataType) -> tuple[Address, ...]:
        answer = await self._resolver.resolve(
            name, kind, search=False, raise_on_no_answer=False, lifetime=self._timeout_s
        )
        return tuple(ip_address(record.address) for record in answer.rrset or ())


async def resolve_checked(
    host: str | Address, resolver: Resolver, *, own: Own, allowed: tuple[Network, ...]
) -> tuple[Address, ...]:
    """The addresses to dial for a name, or for an address itself.

    One refused address refuses the name: who mixes a public and a private one wants the second.
    """
    literal = address_of(host) if isinstance(host, str) else host
    found = (literal,) if literal is not None else await resolver.addresses(str(host))
    if not found:
        raise no_address(str(host), "the answer is empty")
    if len(found) > _MAX_ANSWERS:
        raise no_address(str(host), "the answer has too many addresses")
    for address in found:
        reason = refused_reason(address, own=own, allowed=allowed)
        if reason is not None:
            raise _bad_address(host, address, reason)
    return tuple(found)[:_MAX_ADDRESSES]


def _bad_address(host: str | Address, address: Address, reason: str) -> EgressRefused:
    # Inside, all of these are told alike: whoever answers for an allowed name could else try out
    # which addresses are this host's own.
    return EgressRefused(
        f"{host} resolves to a blocked address",
        hint="Name a host that has only public addresses. The audit log names the address; "
        "an intended private network can be listed in [egress] dangerously_allow_addresses.",
        code="CW-ADDRESS",
        detail=f"{address} is {reason}",
    )


def no_address(host: str, detail: str) -> EgressRefused:
    """A name that leads nowhere now; a failure to ask is never an answer."""
    return EgressRefused(
        f"{host} does not resolve to an address",
        hint="Check the name, and that this host can resolve it.",
        code="CW-NO-ADDRESS",
        detail=detail,
    )


def _look_up(host: str) -> tuple[Address, ...]:
    if found_locally := _hosts_file_addresses(host):
        return found_locally
    # The dot: without it the search list of resolv.conf makes another name of this one, such as
    # api.example.com.svc.cluster.local, that somebody else may own.
    found = socket.getaddrinfo(f"{host}.", None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(ip_address(entry[4][0]) for entry in found))


def _hosts_file_addresses(host: str) -> tuple[Address, ...]:
    """What this host's own table says; the C library does not look there for `name.`."""
    try:
        with open(_HOSTS, encoding="utf-8", errors="replace") as lines:
            rows = [line.partition("#")[0].split() for line in lines]
    except FileNotFoundError:
        return ()
    found = [row[0] for row in rows if host in (name.lower() for name in row[1:])]
    return tuple(dict.fromkeys(ip_address(text) for text in found))


ATTEMPT_DELAY_S = 0.25
"""How long an address may take before the next one is tried beside it (RFC 8305, section 8)."""
_MAX_ATTEMPTS = 2
"""At a time. Each is a descriptor, and whoever answers for a name chooses how many stay silent."""


async def dial(addresses: Iterable[Address], port: int, *, timeout_s: float) -> socket.socket:
    """A connected, non-blocking socket to one of exactly these addresses."""
    if not 0 < port < 65536:
        raise _unreachable("no such port")
    race = _Race(port)
    try:
        async with asyncio.timeout(timeout_s):
            await race.run(_interleaved(addresses))
        winner = race.take_winner()
    except TimeoutError:
        raise _unreachable(", ".join([*race.failures, "late"])) from None
    finally:
        race.close()
    if winner is None:
        raise _unreachable(", ".join(race.failures) or "no address")
    return winner


def _unreachable(detail: str) -> EgressRefused:
    return EgressRefused(
        "the host cannot be reached",
        hint="Check that the host is up and listens on this port.",
        code="CW-UNREACHABLE",
        detail=detail,
    )


class _Race:
    """The attempts of one call. Every socket is in `_open` until it is closed or taken."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._open: dict[socket.socket, None] = {}  # the oldest first
        self._winner: socket.socket | None = None
        self._changed = asyncio.Event()
        self.failures: list[str] = []

    async def run(self, waiting: deque[Address]) -> None:
        """Until one is connected or all have failed."""
        while self._winner is None and (waiting or self._open):
            self._changed.clear()
            if waiting:
                if len(self._open) >= _MAX_ATTEMPTS:
                    self._drop(next(iter(self._open)))
                self._start(waiting.popleft())
            try:
                async with asyncio.timeout(ATTEMPT_DELAY_S if waiting else None):
                    await self._changed.wait()
            except TimeoutError:
                continue  # the next one beside those that still try

    def take_winner(self) -> socket.socket | None:
        """The connected socket, which is the caller's from here on."""
        if self._winner is not None:
            self._open.pop(self._winner, None)
        return self._winner

    def close(self) -> None:
        for sock in tuple(self._open):
            self._drop(sock)

    def _start(self, address: Address) -> None:
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:  # no IPv6 here, or no descriptor left
            self._failed(address, error.errno)
            return
        self._open[sock] = None
        sock.setblocking(False)
        code = sock.connect_ex((str(address), self._port))
        if code == errno.EINPROGRESS:
            self._loop.add_writer(sock, self._settle, sock, address)
        else:
            self._settle(sock, address, code)

    def _settle(self, sock: socket.socket, address: Address, code: int | None = None) -> None:
        self._loop.remove_writer(sock)
        if code is None:
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code == 0 and self._winner is None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._winner = sock
            self._changed.set()
        elif code != 0:
            self._drop(sock)
            self._failed(address, code)

    def _failed(self, address: Address, code: int | None) -> None:
        self.failures.append(f"{address}: {os.strerror(code or 0)}")
        self._changed.set()

    def _drop(self, sock: socket.socket) -> None:
        self._open.pop(sock, None)
        self._loop.remove_writer(sock)
        sock.close()


def _interleaved(addresses: Iterable[Address]) -> deque[Address]:
    """IPv6 and IPv4 by turns, so that a broken one costs one delay; the first stays first."""
    list_values = tuple(dict.fromkeys(addresses))
    first = [found for found in list_values if found.version == list_values[0].version]
    other = [found for found in list_values if found.version != list_values[0].version]
    pairs = zip_longest(first, other)
    return deque(found for pair in pairs for found in pair if found is not None)
