"""The egress session of one cell: its destinations and its secrets (NET-2, NET-3).

The steps of every connection; a failed step refuses the connection with its reason:
1. canonical host name, 2. a matching rule, or a person's answer where the configuration says so,
3. resolution, with every address checked, 4. the budget, 5. the audit record, 6. a connection to
exactly these addresses.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cellwall.core.errors import CellwallError, EgressRefused
from cellwall.core.network import DestinationConsent, EgressContext, HostService, SecretUse
from cellwall.egress.destinations.addresses import Address
from cellwall.egress.destinations.allowlist import Allowlist, AllowRule
from cellwall.egress.destinations.cell_dns import NameTable
from cellwall.egress.destinations.chosen_names import ChosenNames
from cellwall.egress.destinations.header_rules import HeaderRule
from cellwall.egress.destinations.hostnames import host_of, is_host_in
from cellwall.egress.destinations.resolution import dial
from cellwall.egress.inspection.body_filters import Echoes, EchoIndex, SentValue
from cellwall.egress.limits import (
    ConnectionPool,
    EgressSettings,
    FairShare,
    SessionBudget,
)
from cellwall.egress.proxy.asked_destinations import (
    ASKED_PORTS,
    AskedDestinations,
    UnknownDestination,
    may_be_asked,
)
from cellwall.egress.proxy.audit_events import (
    ConnectionRecord,
    EgressAudit,
    LeakLimit,
    LeakRefused,
    LeakReporter,
)
from cellwall.egress.proxy.service_connections import ServiceConnections
from cellwall.egress.proxy.shared_state import SharedEgressState
from cellwall.egress.proxy.stream_memory import StreamMemory

if TYPE_CHECKING:
    from cellwall.egress.proxy.certificate_authority import Authority

_MAX_SESSION_LOOKUPS = 8
"""Concurrent look-ups of one session: its slow names must not delay other sessions."""
_MAX_HOSTS = 1024
_HTTP1_ONLY_S = 300.0
_MAX_DESTINATIONS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A host and port that a rule allows, not resolved yet."""

    host: str
    """As `str(host_of(…))` writes it: an IPv6 address without brackets."""
    port: int
    rules: tuple[AllowRule, ...]
    intercepts_tls: bool
    header_rules: tuple[HeaderRule, ...] = ()
    secrets: tuple[SecretUse, ...] = ()
    """Bound to the host on any port: a value sent to one port can be returned by another one."""
    service: HostService | None = None
    """Answers in place of the server; no address is resolved or dialled."""
    is_asked: bool = False
    """A person has allowed it, for the action under way."""

    @property
    def authority(self) -> str:
        """The host as the Host header writes it."""
        return f"[{self.host}]" if ":" in self.host else self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedDestination:
    """A destination with its checked addresses; no other address is ever dialled."""

    destination: Destination
    addresses: tuple[Address, ...]


_SERVICE_PORT = 443
_SERVICE_PORTS = frozenset({_SERVICE_PORT, 80})
"""Without TLS as well: the connection ends in this process, and TLS costs more than the answer."""


def _served(host: str, port: int, service: HostService) -> Destination:
    """The destination of a service: TLS is intercepted, for there is no server behind it."""
    if port not in _SERVICE_PORTS:
        raise EgressRefused(
            f"{host} is served on port {_SERVICE_PORT} only in this sandbox",
            hint=f"Use https://{host}/.",
            code="CW-NOT-ALLOWED",
        )
    rule = AllowRule(host, False, frozenset({port}), frozenset({"GET", "HEAD"}), "/", host)
    return Destination(host=host, port=port, rules=(rule,), intercepts_tls=True, service=service)


class EgressSession:
    """The session of one cell, from its start to its end."""

    def __init__(
        self,
        shared: SharedEgressState,
        context: EgressContext,
        allowlist: Allowlist,
        *,
        secrets: Sequence[SecretUse] = (),
        authority: Authority | None = None,
        services: Sequence[HostService] = (),
        consent: DestinationConsent | None = None,
    ) -> None:
        """`consent` asks a person about destinations that no rule names; None: they are refused."""
        self.shared = shared
        self._services = {host: service for service in services for host in service.hosts}
        self.offered: Mapping[str, bytes] = {
            path: content for each in services for path, content in each.offered.items()
        }
        self.authority = authority
        self.allowlist = allowlist
        self.secrets = tuple(secrets)
        self._destinations: dict[tuple[str, int], Destination] = {}
        self.budget = SessionBudget(shared.settings, shared.slots)
        self.audit = EgressAudit(shared.record, context, shared.loop)
        self.share = FairShare(shared.settings, shared.loop)
        self.leak_limit = LeakLimit(self.audit)
        self.names = NameTable()
        self.echoes = Echoes()
        self.pool = ConnectionPool(shared.slots)
        self.service_connections = ServiceConnections(self.pool)
        self._numbers = itertools.count(1)
        self._chosen_names = ChosenNames()
        self._asked: AskedDestinations | None = None
        if consent is not None:
            self._asked = AskedDestinations(
                consent, self.audit, check_address=shared.addresses_of, loop=shared.loop
            )
        self._look_ups = asyncio.Semaphore(_MAX_SESSION_LOOKUPS)
        self._http1_only_until_s: dict[tuple[str, int], float] = {}
        self.h2_count = 0
        """Open HTTP/2 connections."""
        self.stream_memory = StreamMemory()

    @property
    def settings(self) -> EgressSettings:
        return self.shared.settings

    def allow(self, allowlist: Allowlist) -> None:
        """Replace the allowlist, from the next connection or request on. Thread-safe."""
        self.allowlist = allowlist
        self._destinations = {}

    def add_secrets(self, secrets: Sequence[SecretUse]) -> None:
        """Add leased secrets. Thread-safe."""
        self.secrets = tuple({use.placeholder: use for use in (*self.secrets, *secrets)}.values())
        self._destinations = {}

    def match_rules(self, host_text: str, port: int, *, via: str) -> Destination:
        """Steps 1 and 2. No query leaves this process for a name that no rule allows."""
        self.leak_limit.check_open()
        destinations = self._destinations  # `allow` may replace the dict meanwhile
        if (destination := destinations.get((host_text, port))) is None:
            destination = self._match(str(host_of(host_text)), port)
            if len(destinations) < _MAX_DESTINATIONS and not destination.is_asked:
                destinations[host_text, port] = destination
        if all(rule.is_wildcard for rule in destination.rules):
            # A name that a rule spells out was not chosen by code in the cell.
            self.shared.known.check_host(
                destination.host, self.leak_reporter(destination.host, port, via=via)
            )
        return destination

    def leak_reporter(self, host: str, port: int, *, via: str) -> LeakReporter:
        """The leak reporter for that destination."""
        return LeakReporter(leak_limit=self.leak_limit, host=host, port=port, via=via)

    def record_refusal(self, error: CellwallError, *, host: str, port: int, via: str) -> None:
        """Record a refusal; a leak was recorded when it was found."""
        if not isinstance(error, LeakRefused):
            self.audit.record_refusal(error, host=host, port=port, via=via)

    def note_sent_values(self, destination: Destination, values: Sequence[SentValue]) -> None:
        """Note values that a server gets now, and those it may have from before. Both can be
        returned, even after the end of the lease or a rotation."""
        self.echoes.add(values)
        for use in destination.secrets:
            self.echoes.add(self.shared.known.previously_sent(use))

    def echo_index_for(self, destination: Destination) -> EchoIndex | None:
        """The values to remove from responses; None: no secret can have been sent there."""
        if not destination.secrets:
            return None
        return self.echoes.of(frozenset(use.placeholder for use in destination.secrets))

    def is_http1_only(self, destination: Destination) -> bool:
        """Whether the server recently did not offer HTTP/2."""
        key = destination.host, destination.port
        return time.monotonic() < self._http1_only_until_s.get(key, 0.0)

    def note_http1_only(self, destination: Destination) -> None:
        """Remember that the server does not offer HTTP/2."""
        if len(self._http1_only_until_s) >= _MAX_HOSTS:
            self._http1_only_until_s.clear()
        key = destination.host, destination.port
        self._http1_only_until_s[key] = time.monotonic() + _HTTP1_ONLY_S

    def knows(self, host: str) -> bool:
        """Whether the cell's DNS resolves the name."""
        if self._asked is not None and may_be_asked(host):
            return True
        return host in self._services or self.allowlist.knows(host)

    def names_exactly(self, host: str) -> bool:
        """Whether the name is spelt out, so that code in the cell did not choose it."""
        return host in self._services or self.allowlist.names_exactly(host)

    @property
    def ports(self) -> frozenset[int]:
        """The ports that programs without proxy support can reach."""
        asked = frozenset() if self._asked is None else ASKED_PORTS
        return self.allowlist.ports | asked | ({_SERVICE_PORT} if self._services else set())

    def _match(self, host: str, port: int) -> Destination:
        if (service := self._services.get(host)) is not None:
            return _served(host, port, service)
        rules = self.allowlist.reach(host, port)
        is_asked = False
        if not rules and self._asked is not None:
            rules = self._asked.rules_for(host, port)
            is_asked = True
        if not rules:
            raise UnknownDestination(host, port)
        if all(rule.is_wildcard for rule in rules):
            self._chosen_names.check(host)
        # The secrets that may be injected into some request to the host.
        secrets = tuple(
            use
            for use in self.secrets
            if any(is_host_in(host, binding.host) for binding in use.bindings)
        )
        bounds = tuple(rule for rule in self.settings.header_rules if rule.reaches(host, port))
        return Destination(
            host=host,
            port=port,
            rules=rules,
            intercepts_tls=bool(secrets or bounds)
            or self.shared.settings.has_checks
            or self.allowlist.must_intercept(host, port),
            header_rules=bounds,
            secrets=secrets,
            is_asked=is_asked,
        )

    async def find(self, host_text: str, port: int, *, via: str, method: str) -> Destination:
        """Steps 1 and 2; a person may allow what no rule does (NET-9)."""
        try:
            return self.match_rules(host_text, port, via=via)
        except UnknownDestination as refusal:
            if self._asked is None:
                raise
            host = refusal.host
        self.shared.known.check_host(host, self.leak_reporter(host, port, via=via))
        await self._asked.ask(host, port, method=method)
        return self.match_rules(host_text, port, via=via)

    async def authorize(
        self, host_text: str, port: int, *, via: str, method: str
    ) -> ResolvedDestination:
        """Steps 1 to 3."""
        return await self.resolve(await self.find(host_text, port, via=via, method=method))

    async def resolve(self, destination: Destination) -> ResolvedDestination:
        if destination.service is not None:
            return ResolvedDestination(destination=destination, addresses=())
        async with self._look_ups:
            return ResolvedDestination(
                destination=destination, addresses=await self.shared.addresses_of(destination.host)
            )

    async def connect(
        self, target: ResolvedDestination, *, via: str
    ) -> tuple[socket.socket, ConnectionRecord]:
        """Steps 4 to 6. The caller owns the socket and must close the record."""
        destination = target.destination
        asked = self._asked if destination.is_asked else None
        if asked is not None:
            asked.require(destination.host, destination.port)
        connection_record = await self.admit(target, via=via)
        try:
            sock = await dial(
                target.addresses, destination.port, timeout_s=self.settings.connect_timeout_s
            )
            if asked is not None:
                asked.hold(sock, destination.host, destination.port)
        except BaseException as error:
            connection_record.write_closed(
                error=error if isinstance(error, CellwallError) else None
            )
            raise
        connection_record.set_peer(sock)
        return sock, connection_record

    async def admit(self, target: ResolvedDestination, *, via: str) -> ConnectionRecord:
        """Steps 4 and 5. The caller must close the record."""
        self.budget.check("up")
        self.budget.check("down")
        self.budget.count_connection()
        # The bandwidth limit counts over all connections: a new one does not escape the throttle.
        while throttle_delay_s := self.budget.throttle_delay_s():  # noqa: ASYNC110 - only time ends the delay
            await asyncio.sleep(throttle_delay_s)
        destination = target.destination
        connection_record = ConnectionRecord(
            self.audit,
            {
                "connection": next(self._numbers),
                "host": destination.host,
                "port": destination.port,
                "rule": destination.rules[0].text,
                "via": via,
            },
        )
        try:
            await connection_record.write_opened(
                target.addresses, is_intercepted=destination.intercepts_tls
            )
        except BaseException as error:
            connection_record.write_closed(
                error=error if isinstance(error, CellwallError) else None
            )
            raise
        return connection_record
