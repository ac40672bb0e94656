"""One cell's way out: what it may reach, and with what (NET-2, NET-3).

The steps of every connection; each one that fails is a refusal with its reason:
1. the name in its one spelling, 2. a rule that reaches it, 3. its addresses, all of them checked,
4. a place in the budget, 5. the record, 6. the dialling of exactly these addresses.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING

from cellwall.core.errors import CellwallError, EgressRefused
from cellwall.core.network import SecretUse, Traveller
from cellwall.egress.destinations.addresses import Own, own_addresses
from cellwall.egress.destinations.allowlist import Allowlist, Rule
from cellwall.egress.destinations.cell_dns import MAX_NAMES, NameTable, looks_like_data
from cellwall.egress.destinations.header_rules import HeaderRule
from cellwall.egress.destinations.hostnames import host_of, is_below
from cellwall.egress.destinations.resolution import Resolver, checked, dial
from cellwall.egress.inspection.body_filters import KnownNow
from cellwall.egress.inspection.echo_filter import Echoes, EchoIndex, Told
from cellwall.egress.proxy.audit_events import Journey, Leak, Leaks, Ledger, Lookout, Record
from cellwall.egress.proxy.relay import Pipes
from cellwall.egress.proxy.resources import Budget, Crowd, Share, Spares
from cellwall.egress.settings import EgressSettings

if TYPE_CHECKING:
    from cellwall.egress.proxy.certificate_authority import Authority

Address = IPv4Address | IPv6Address

_OWN_ADDRESSES_S = 5.0
_LOOK_UPS = 8
"""Of one session at a time: slow names of one must not hold up the names of others."""
_ADDRESSES_S = 2.0
"""For that long the addresses of a name are used again, each of them checked."""
_MAX_HOSTS = 1024
_HTTP_1_S = 300.0
_MAX_WAYS = 1024
_NEW_NAMES_PER_MINUTE = 120
"""Below a wildcard each new name is a question to that domain's own DNS server: a channel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Somewhere that a rule reaches. Nothing has been resolved yet."""

    host: str
    """As `str(host_of(…))`: an IPv6 address without brackets."""
    port: int
    rules: tuple[Rule, ...]
    open_tls: bool
    header_rules: tuple[HeaderRule, ...] = ()
    secrets: tuple[SecretUse, ...] = ()
    """Bound to the host, by whatever port: what one port was told another one can show."""

    @property
    def authority(self) -> str:
        """The host as requests write it."""
        return f"[{self.host}]" if ":" in self.host else self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The same with the addresses that were checked; only these are ever dialled."""

    way: Way
    addresses: tuple[Address, ...]


@dataclass(slots=True, kw_only=True)
class Outside:
    """What all sessions of a service share. It belongs to the loop's thread."""

    settings: EgressSettings
    resolver: Resolver
    record: Record
    upstream_tls: ssl.SSLContext
    loop: asyncio.AbstractEventLoop
    known: KnownNow
    pipes: Pipes = field(default_factory=Pipes)
    crowd: Crowd = field(default_factory=Crowd)
    _own: Own = frozenset()
    _own_until_s: float = 0.0
    _addresses: dict[str, tuple[float, tuple[Address, ...]]] = field(default_factory=dict)
    _asking: dict[str, asyncio.Task[tuple[Address, ...]]] = field(default_factory=dict)

    def own(self) -> Own:
        """The host's own addresses, which are nobody's to reach."""
        if time.monotonic() >= self._own_until_s:
            self._own = own_addresses()
            self._own_until_s = time.monotonic() + _OWN_ADDRESSES_S
        return self._own

    async def checked(self, host: str) -> tuple[Address, ...]:
        """Every address of the host, each one checked; one bad one refuses the host."""
        until_s, addresses = self._addresses.get(host, (0.0, ()))
        if time.monotonic() < until_s:
            return addresses
        if (asking := self._asking.get(host)) is None:
            # Many connections at once to one host are one question.
            asking = self._asking[host] = self.loop.create_task(self._ask(host))
            asking.add_done_callback(lambda done: self._on_asked(host, done))
        return await asyncio.shield(asking)

    async def _ask(self, host: str) -> tuple[Address, ...]:
        return await checked(
            host,
            self.resolver,
            own=self.own(),
            allowed=self.settings.dangerously_allow_addresses,
        )

    def _on_asked(self, host: str, done: asyncio.Task[tuple[Address, ...]]) -> None:
        del self._asking[host]
        if done.cancelled() or done.exception() is not None:
            return
        if len(self._addresses) >= _MAX_HOSTS:
            self._addresses.clear()
        self._addresses[host] = time.monotonic() + _ADDRESSES_S, done.result()


class Session:
    """For one cell, from its start to its end."""

    def __init__(
        self,
        outside: Outside,
        traveller: Traveller,
        allowlist: Allowlist,
        *,
        secrets: Sequence[SecretUse] = (),
        authority: Authority | None = None,
    ) -> None:
        self.outside = outside
        self.authority = authority
        self._allowlist = allowlist
        self._secrets = tuple(secrets)
        self._ways: dict[tuple[str, int], Way] = {}
        self.budget = Budget(outside.settings, outside.crowd)
        self.ledger = Ledger(outside.record, traveller, outside.loop)
        self.share = Share(outside.settings, outside.loop)
        self.leaks = Leaks(self.ledger)
        self.names = NameTable()
        self.echoes = Echoes()
        self.spares = Spares(outside.crowd)
        self._numbers = itertools.count(1)
        self._new_names = _NewNames()
        self._look_ups = asyncio.Semaphore(_LOOK_UPS)
        self._http_1_until_s: dict[tuple[str, int], float] = {}
        self.h2_count = 0
        """Connections that speak HTTP/2 now."""

    @property
    def settings(self) -> EgressSettings:
        return self.outside.settings

    @property
    def allowlist(self) -> Allowlist:
        return self._allowlist

    @property
    def secrets(self) -> tuple[SecretUse, ...]:
        return self._secrets

    def allow(self, allowlist: Allowlist) -> None:
        """From the next connection or request on. From any thread."""
        self._allowlist = allowlist
        self._ways = {}

    def lend(self, secrets: Sequence[SecretUse]) -> None:
        """Beside those that it has. From any thread."""
        self._secrets = tuple({use.placeholder: use for use in (*self._secrets, *secrets)}.values())
        self._ways = {}

    def way(self, host_text: str, port: int, *, via: str) -> Way:
        """Steps 1 and 2. Nothing leaves this process for a name that no rule reaches."""
        self.leaks.check_open()
        ways = self._ways  # if it is replaced meanwhile, what is found here is not kept
        if (way := ways.get((host_text, port))) is None:
            way = self._found(str(host_of(host_text)), port)
            if len(ways) < _MAX_WAYS:
                ways[host_text, port] = way
        if all(rule.is_wildcard for rule in way.rules):
            # A name that a rule spells out was not chosen by code.
            self.outside.known.check_host(way.host, self.lookout(way.host, port, via=via))
        return way

    def lookout(self, host: str, port: int, *, via: str) -> Lookout:
        """For what goes there."""
        return Lookout(leaks=self.leaks, host=host, port=port, via=via)

    def refused(self, error: CellwallError, *, host: str, port: int, via: str) -> None:
        """On record; a leak is since it was found."""
        if not isinstance(error, Leak):
            self.ledger.refused(error, host=host, port=port, via=via)

    def told(self, way: Way, told: Sequence[Told]) -> None:
        """What goes to a server now; and what it may have from others, from before. Both can come
        back, even when the lease is over by then, or the value another one."""
        self.echoes.add(told)
        for use in way.secrets:
            self.echoes.add(self.outside.known.told_before(use))

    def echoes_from(self, way: Way) -> EchoIndex | None:
        """What is taken out of answers from there; None: no secret can have gone there."""
        if not way.secrets:
            return None
        return self.echoes.of(frozenset(use.placeholder for use in way.secrets))

    def is_of_http_1(self, way: Way) -> bool:
        """Whether its server was found to speak no HTTP/2, not long ago."""
        return time.monotonic() < self._http_1_until_s.get((way.host, way.port), 0.0)

    def found_http_1(self, way: Way) -> None:
        """For that long nobody has to ask again."""
        if len(self._http_1_until_s) >= _MAX_HOSTS:
            self._http_1_until_s.clear()
        self._http_1_until_s[way.host, way.port] = time.monotonic() + _HTTP_1_S

    def _found(self, host: str, port: int) -> Way:
        rules = self.allowlist.reach(host, port)
        if not rules:
            raise EgressRefused(
                f"{host}:{port} is not among the hosts that this sandbox may reach",
                hint=f"If it should be, allow it with `--allow-domain {host}:{port}`.",
                code="CW-NOT-ALLOWED",
            )
        if all(rule.is_wildcard for rule in rules):
            self._check_channel(host)
        secrets = tuple(use for use in self.secrets if _is_bound_to(use, host))
        bounds = tuple(rule for rule in self.settings.header_rules if rule.reaches(host, port))
        return Way(
            host=host,
            port=port,
            rules=rules,
            open_tls=bool(secrets or bounds) or self.allowlist.must_open(host, port),
            header_rules=bounds,
            secrets=secrets,
        )

    def _check_channel(self, host: str) -> None:
        if looks_like_data(host):
            raise EgressRefused(
                "the host's name looks like data that is carried out in it",
                hint="If it is a real host, allow it by its whole name instead of a wildcard.",
                code="CW-NAME-DATA",
            )
        if not self._new_names.has_room(host):
            raise EgressRefused(
                "too many different names were asked for below a wildcard in one minute",
                hint="Slow down, or allow the hosts by their whole names.",
                code="CW-NET-LIMIT",
            )

    async def judge(self, host_text: str, port: int, *, via: str) -> Target:
        """Steps 1 to 3."""
        return await self.resolve(self.way(host_text, port, via=via))

    async def resolve(self, way: Way) -> Target:
        async with self._look_ups:
            return Target(way=way, addresses=await self.outside.checked(way.host))

    async def connect(self, target: Target, *, via: str) -> tuple[socket.socket, Journey]:
        """Steps 4 to 6. Whoever has the socket must tell the journey its end."""
        self.budget.check("up")
        self.budget.check("down")
        self.budget.count_connection()
        # What its other connections have carried too fast, this one does not escape.
        while debt_s := self.budget.debt_s():  # noqa: ASYNC110 - it is paid by time alone
            await asyncio.sleep(debt_s)
        way = target.way
        journey = Journey(
            self.ledger,
            {
                "connection": next(self._numbers),
                "host": way.host,
                "port": way.port,
                "rule": way.rules[0].text,
                "via": via,
            },
        )
        try:
            await journey.begin(target.addresses, is_opened=way.open_tls)
            sock = await dial(
                target.addresses, target.way.port, timeout_s=self.settings.connect_timeout_s
            )
        except BaseException as error:
            journey.ended(error=error if isinstance(error, CellwallError) else None)
            raise
        journey.reached(sock)
        return sock, journey


class _NewNames:
    """How many names were new in the last minute."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._times_s: deque[float] = deque()

    def has_room(self, host: str) -> bool:
        if host in self._seen:
            return True
        now_s = time.monotonic()
        while self._times_s and self._times_s[0] < now_s - 60:
            self._times_s.popleft()
        if len(self._times_s) >= _NEW_NAMES_PER_MINUTE:
            return False
        self._times_s.append(now_s)
        self._seen[host] = None
        if len(self._seen) > MAX_NAMES:
            self._seen.popitem(last=False)
        return True


def _is_bound_to(use: SecretUse, host: str) -> bool:
    """Whether the secret may be put into some request to there."""
    return any(
        is_below(host, binding.host[2:]) if binding.host.startswith("*.") else host == binding.host
        for binding in use.bindings
    )
