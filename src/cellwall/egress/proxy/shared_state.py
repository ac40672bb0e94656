"""What all egress sessions of a service share: resolver, checked addresses, slots, pipes."""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass, field

from cellwall.egress.destinations.addresses import Address, Own, own_addresses
from cellwall.egress.destinations.resolution import Resolver, resolve_checked
from cellwall.egress.inspection.body_filters import KnownValueCache
from cellwall.egress.limits import ConnectionSlots, EgressSettings
from cellwall.egress.proxy.audit_events import RecordEvent
from cellwall.egress.proxy.relay import PipePool

_OWN_ADDRESSES_CACHE_S = 5.0
_ADDRESS_CACHE_S = 2.0
"""How long the checked addresses of a name are reused."""
_MAX_HOSTS = 1024


@dataclass(slots=True, kw_only=True)
class SharedEgressState:
    """State that all sessions of a service share; used on the loop's thread only."""

    settings: EgressSettings
    resolver: Resolver
    record: RecordEvent
    upstream_tls: ssl.SSLContext
    loop: asyncio.AbstractEventLoop
    known: KnownValueCache
    pipes: PipePool = field(default_factory=PipePool)
    slots: ConnectionSlots = field(default_factory=ConnectionSlots)
    _own: Own = frozenset()
    _own_until_s: float = 0.0
    _addresses: dict[str, tuple[float, tuple[Address, ...]]] = field(default_factory=dict)
    _lookups: dict[str, asyncio.Task[tuple[Address, ...]]] = field(default_factory=dict)

    def own(self) -> Own:
        """The host's own addresses, which are blocked."""
        if time.monotonic() >= self._own_until_s:
            self._own = own_addresses()
            self._own_until_s = time.monotonic() + _OWN_ADDRESSES_CACHE_S
        return self._own

    async def addresses_of(self, host: str) -> tuple[Address, ...]:
        """The checked addresses of a host; one blocked address refuses the host."""
        until_s, addresses = self._addresses.get(host, (0.0, ()))
        if time.monotonic() < until_s:
            return addresses
        if (lookup_task := self._lookups.get(host)) is None:
            # Concurrent connections to one host share one look-up.
            allowed = self.settings.dangerously_allow_addresses
            lookup = resolve_checked(host, self.resolver, own=self.own(), allowed=allowed)
            lookup_task = self._lookups[host] = self.loop.create_task(lookup)
            lookup_task.add_done_callback(lambda done: self._on_resolved(host, done))
        return await asyncio.shield(lookup_task)

    def _on_resolved(self, host: str, done: asyncio.Task[tuple[Address, ...]]) -> None:
        del self._lookups[host]
        if done.cancelled() or done.exception() is not None:
            return
        if len(self._addresses) >= _MAX_HOSTS:
            self._addresses.clear()
        self._addresses[host] = time.monotonic() + _ADDRESS_CACHE_S, done.result()
