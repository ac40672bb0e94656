"""The thread and the event loop on which the egress of all cells of a process runs."""

# ruff: noqa: PLC0415  # late imports: HTML libraries load slower than most sessions

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from cellwall.core.network import (
    EgressContext,
    HostService,
    KnownValues,
    Page,
    SecretUse,
    ServiceRequest,
    ServiceResponse,
)
from cellwall.core.types import FetchUrl
from cellwall.egress.destinations.allowlist import Allowlist
from cellwall.egress.destinations.resolution import Resolver, ServersResolver, SystemResolver
from cellwall.egress.inspection.body_filters import KnownValueCache
from cellwall.egress.limits import EgressSettings
from cellwall.egress.proxy.audit_events import EgressAudit, RecordEvent
from cellwall.egress.proxy.shared_state import SharedEgressState

if TYPE_CHECKING:
    from cellwall.egress.destinations.addresses import Own
    from cellwall.egress.inspection.leak_scan import KnownIndex
    from cellwall.egress.pages.fetch import WriteEvent

_T = TypeVar("_T")

END_TIMEOUT_S = 10.0


class _FetchParts(TypedDict):
    """What every fetch of this process is made of, whatever it fetches."""

    allowlist: Allowlist
    settings: EgressSettings
    resolver: Resolver
    own: Own
    known: KnownIndex
    tls: ssl.SSLContext
    record: WriteEvent


class EgressLoop:
    """The egress thread, its loop, and the state that sessions share."""

    def __init__(
        self,
        settings: EgressSettings,
        record: RecordEvent,
        known: KnownValues,
        upstream_tls: ssl.SSLContext | None,
        services: Sequence[HostService],
    ) -> None:
        self._services = services
        self._loop = asyncio.new_event_loop()
        tls = upstream_tls or ssl.create_default_context()
        # By default OpenSSL may treat a truncated connection as ended; see `TlsStream.recv`.
        tls.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
        tls.minimum_version = ssl.TLSVersion.TLSv1_2
        self.shared = SharedEgressState(
            settings=settings,
            resolver=_resolver(settings),
            record=record,
            known=KnownValueCache(known, settings.checks),
            upstream_tls=tls,
            loop=self._loop,
        )
        self._thread = threading.Thread(target=self._run, name="cellwall-egress", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self.shared.pipes.close()
            self._loop.close()

    def call(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run a coroutine on the loop; thread-safe."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def fetch(
        self,
        operation: FetchUrl,
        allowlist: Allowlist,
        bounds: EgressSettings,
        context: EgressContext,
    ) -> Page:
        """One page and its redirects."""
        from cellwall.egress.pages.fetch import PageFetch

        return await PageFetch(**self._fetch_parts(allowlist, bounds, context)).run(operation)

    async def request(
        self,
        request: ServiceRequest,
        secrets: Sequence[SecretUse],
        allowlist: Allowlist,
        bounds: EgressSettings,
        context: EgressContext,
    ) -> ServiceResponse:
        """One request of the runtime, with its secrets."""
        from cellwall.egress.pages.service_request import ServiceExchange

        exchange = ServiceExchange(
            **self._fetch_parts(allowlist, bounds, context),
            method=request.method,
            via="account",
            sent=request,
            secrets=secrets,
        )
        return await exchange.exchange()

    def _fetch_parts(
        self, allowlist: Allowlist, bounds: EgressSettings, context: EgressContext
    ) -> _FetchParts:
        shared = self.shared
        return {
            "allowlist": allowlist,
            "settings": bounds,
            "resolver": shared.resolver,
            "own": shared.own(),
            "known": shared.known.index(),
            "tls": shared.upstream_tls,
            "record": EgressAudit(shared.record, context, self._loop).write,
        }

    def close(self) -> None:
        """Cancel what runs, close the services, end the thread."""
        self.call(self._end())
        self._thread.join(END_TIMEOUT_S)

    async def _end(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=END_TIMEOUT_S / 2)
        for service in self._services:
            await service.close()
        self._loop.stop()


def _resolver(settings: EgressSettings) -> Resolver:
    if settings.dns_servers:
        return ServersResolver(settings.dns_servers, settings.connect_timeout_s)
    return SystemResolver(settings.connect_timeout_s)
