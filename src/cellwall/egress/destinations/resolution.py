"""Resolution of a name to checked addresses, and the connection to one of them (NET-3).

`dial` connects to exactly the addresses of `resolve_checked` and never resolves again, so a second
answer for the same name (DNS rebinding) is never used.
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
"""Addresses kept for `dial`; every address of an answer is checked."""
_MAX_LOOKUPS = 64
_HOSTS = "/etc/hosts"


class Resolver(Protocol):
    """Resolves names."""

    async def addresses(self, host: str) -> Sequence[Address]:
        """All addresses of a name, in the order to dial; `EgressRefused` if there is none."""


class SystemResolver:
    """Resolves as this host does: /etc/hosts, then the C library."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        # A pool of its own: a look-up cannot be cancelled, and slow ones must not block other
        # users of the default pool.
        self._threads = ThreadPoolExecutor(_MAX_LOOKUPS, thread_name_prefix="cellwall-names")

    async def addresses(self, host: str) -> Sequence[Address]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await loop.run_in_executor(self._threads, _look_up, host)
        except (OSError, ValueError) as error:  # gaierror, TimeoutError, UnicodeError
            raise no_address(host, repr(error)) from None


class ServersResolver:
    """Queries these DNS servers; ignores resolv.conf and /etc/hosts."""

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
                # Both are awaited in any case: a failure leaves no task behind.
                answers = await asyncio.gather(
                    self._ask(name, dns.rdatatype.AAAA),
                    self._ask(name, dns.rdatatype.A),
                    return_exceptions=True,
                )
            addresses: list[Address] = []
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
                addresses += answer
        except (dns.exception.DNSException, OSError, ValueError) as error:
            raise no_address(host, repr(error)) from None
        return addresses

    async def _ask(self, name: dns.name.Name, kind: dns.rdatatype.RdataType) -> tuple[Address, ...]:
        answer = await self._resolver.resolve(
            name, kind, search=False, raise_on_no_answer=False, lifetime=self._timeout_s
        )
        return tuple(ip_address(record.address) for record in answer.rrset or ())


async def resolve_checked(
    host: str | Address, resolver: Resolver, *, own: Own, allowed: tuple[Network, ...]
) -> tuple[Address, ...]:
    """The addresses to dial for a name or an address.

    One blocked address refuses the name: an answer with a public and a private address is an
    attack.
    """
    literal = address_of(host) if isinstance(host, str) else host
    addresses = (literal,) if literal is not None else await resolver.addresses(str(host))
    if not addresses:
        raise no_address(str(host), "the answer is empty")
    if len(addresses) > _MAX_ANSWERS:
        raise no_address(str(host), "the answer has too many addresses")
    for address in addresses:
        reason = refused_reason(address, own=own, allowed=allowed)
        if reason is not None:
            raise _bad_address(host, address, reason)
    return tuple(addresses)[:_MAX_ADDRESSES]


def _bad_address(host: str | Address, address: Address, reason: str) -> EgressRefused:
    # One message for all reasons: the owner of an allowed name could otherwise probe which
    # addresses belong to this host.
    return EgressRefused(
        f"{host} resolves to a blocked address",
        hint="Name a host that has only public addresses. The audit log names the address; "
        "an intended private network can be listed in [egress] dangerously_allow_addresses.",
        code="CW-ADDRESS",
        detail=f"{address} is {reason}",
    )


def no_address(host: str, detail: str) -> EgressRefused:
    """The error for a name without an address, also when resolution failed."""
    return EgressRefused(
        f"{host} does not resolve to an address",
        hint="Check the name, and that this host can resolve it.",
        code="CW-NO-ADDRESS",
        detail=detail,
    )


def _look_up(host: str) -> tuple[Address, ...]:
    if found_locally := _hosts_file_addresses(host):
        return found_locally
    # The trailing dot: without it the search list of resolv.conf would make another name, such as
    # api.example.com.svc.cluster.local, which may have another owner.
    entries = socket.getaddrinfo(f"{host}.", None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(ip_address(entry[4][0]) for entry in entries))


def _hosts_file_addresses(host: str) -> tuple[Address, ...]:
    """The addresses in /etc/hosts, where the C library does not look for `name.`."""
    try:
        with open(_HOSTS, encoding="utf-8", errors="replace") as lines:
            rows = [line.partition("#")[0].split() for line in lines]
    except FileNotFoundError:
        return ()
    texts = [row[0] for row in rows if host in (name.lower() for name in row[1:])]
    return tuple(dict.fromkeys(ip_address(text) for text in texts))


ATTEMPT_DELAY_S = 0.25
"""Delay before the next address is tried in parallel (RFC 8305, section 8)."""
_MAX_ATTEMPTS = 2
"""Parallel attempts. Each is a descriptor, and the owner of a name chooses how many hang."""


async def dial(addresses: Iterable[Address], port: int, *, timeout_s: float) -> socket.socket:
    """A connected, non-blocking socket to one of exactly these addresses."""
    if not 0 < port < 65536:
        raise _unreachable("no such port")
    race = _ConnectRace(port)
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


class _ConnectRace:
    """The attempts of one `dial` (happy eyeballs). Open sockets are in `_open`.

    No task or thread is used, only loop callbacks: on success, deadline or cancellation every other
    socket is closed before other code runs.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._open: dict[socket.socket, None] = {}  # the oldest first
        self._winner: socket.socket | None = None
        self._changed = asyncio.Event()
        self.failures: list[str] = []

    async def run(self, waiting: deque[Address]) -> None:
        """Run until one socket is connected or all have failed."""
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
                continue  # the next address, in parallel to the pending attempts

    def take_winner(self) -> socket.socket | None:
        """The connected socket; the caller owns it."""
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
    unique = tuple(dict.fromkeys(addresses))
    first = [address for address in unique if address.version == unique[0].version]
    other = [address for address in unique if address.version != unique[0].version]
    pairs = zip_longest(first, other)
    return deque(address for pair in pairs for address in pair if address is not None)
