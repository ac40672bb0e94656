"""Egress of all cells of this process: one thread with one loop, started on demand (NET-2).

The runtime calls from other threads and loops; the service only creates plain objects, or hands
work to the loop. A forked process starts with an empty service.
"""

# ruff: noqa: PLC0415  # late imports: certificate libraries load slower than most sessions

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread

from cellwall.core.errors import BadInput, EgressRefused
from cellwall.core.forks import OwnerProcess
from cellwall.core.network import (
    CellNetwork,
    DestinationConsent,
    EgressContext,
    HostService,
    KnownValues,
    Page,
    SecretUse,
    ServiceRequest,
    ServiceResponse,
)
from cellwall.core.types import Action, FetchUrl, ServeClient
from cellwall.egress.destinations.allowlist import Allowlist
from cellwall.egress.limits import EgressSettings
from cellwall.egress.loop import END_TIMEOUT_S, EgressLoop
from cellwall.egress.proxy.audit_events import RecordEvent
from cellwall.egress.proxy.cell_network import ProxyNetwork
from cellwall.egress.proxy.session import EgressSession

if TYPE_CHECKING:
    from cellwall.egress.proxy.gateway import Gateway

_T = TypeVar("_T")


class EgressService:
    """Implements `EgressPort`."""

    def __init__(
        self,
        settings: EgressSettings,
        *,
        record: RecordEvent,
        known: KnownValues,
        services: Mapping[str, HostService] | None = None,
        consent: DestinationConsent | None = None,
        upstream_tls: ssl.SSLContext | None = None,
    ) -> None:
        """`services` by the names that actions use. `consent` asks a person about destinations
        that no rule names, for the actions that ask. `upstream_tls` trusts servers that the
        system's authorities do not know; the service makes it as strict as the default context."""
        self._settings = settings
        self._record = record
        self._known = known
        self._services = services or {}
        self._consent = consent
        self._upstream_tls = upstream_tls
        self._reset()

    def _reset(self) -> None:
        self._owner = OwnerProcess()
        self._lock = threading.Lock()
        self._egress_loop: EgressLoop | None = None
        self._open: set[ProxyNetwork] = set()
        self._live: dict[str, ProxyNetwork] = {}
        """Networks of live sandboxes, by session."""
        self._gateway: Gateway | None = None
        self._is_closed = False

    @asynccontextmanager
    async def session(
        self, action: Action, secrets: Sequence[SecretUse]
    ) -> AsyncIterator[CellNetwork]:
        """The network for the cell of this action."""
        if action.session_id is not None:
            # The network lives as long as its sandbox: `end_session` ends it.
            yield self._live_network(action, action.session_id, secrets)
            return
        with self._locked():
            network = self._build(action, secrets)
        try:
            if isinstance(action.operation, ServeClient):
                await anyio.to_thread.run_sync(self._join, network, action.operation)
            yield network
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._end, network)

    def _live_network(
        self, action: Action, session_id: str, secrets: Sequence[SecretUse]
    ) -> ProxyNetwork:
        with self._locked():
            network = self._live.get(session_id)
            if network is None:
                network = self._live[session_id] = self._build(action, secrets)
            else:
                network.renew(_context(action), secrets)
            return network

    def open_gateway(
        self,
        context: EgressContext,
        listener: socket.socket,
        *,
        tokenless: Mapping[str, socket.socket],
    ) -> None:
        """Listen for clients outside of any sandbox; owns the sockets from now on (NET-8)."""
        from cellwall.egress.proxy.gateway import Gateway

        with self._locked():
            if self._gateway is not None:
                raise BadInput("this process already listens for clients", code="CW-USAGE")
            egress_loop = self._running_loop()
            self._gateway = Gateway(egress_loop.shared, context, listener, tokenless=tokenless)
            opened = egress_loop.call(_open_gateway(self._gateway))
        opened.result(END_TIMEOUT_S)

    def _join(self, network: ProxyNetwork, operation: ServeClient) -> None:
        with self._locked():
            gateway = self._gateway
        if gateway is None:
            raise BadInput("no proxy listens in this process", hint="Use `cellwall proxy`.")
        network.join(gateway.client(operation.client, operation.token_sha256, network.session))

    def _end(self, network: ProxyNetwork) -> None:
        network.end()
        with self._locked():
            self._open.discard(network)

    def _build(self, action: Action, secrets: Sequence[SecretUse]) -> ProxyNetwork:
        allowlist = Allowlist.of(action.allow_domains)
        is_live = action.session_id is not None
        # A live sandbox may get rules later that need the authority; its files are written once.
        services = [self._services[name] for name in action.registries]
        needs_authority = (
            is_live
            or bool(secrets or services)
            or self._settings.has_checks
            or self._needs_interception(allowlist)
            or (action.asks_destinations and bool(self._settings.header_rules))
        )
        authority = None
        if needs_authority:
            from cellwall.egress.proxy.certificate_authority import Authority

            authority = Authority()
        egress_loop = self._running_loop()
        session = EgressSession(
            egress_loop.shared,
            _context(action),
            allowlist,
            secrets=secrets,
            authority=authority,
            services=services,
            consent=self._consent if action.asks_destinations else None,
        )
        network = ProxyNetwork(session, egress_loop.call)
        self._open.add(network)
        return network

    def _needs_interception(self, allowlist: Allowlist) -> bool:
        bounds = self._settings.header_rules
        return any(
            rule.is_bounded or any(bound.may_meet(rule) for bound in bounds)
            for rule in allowlist.rules
        )

    async def fetch(self, action: Action, secrets: Sequence[SecretUse]) -> Page:
        """Fetch one page for an agent, on the same loop and by the same rules (NET-4)."""
        if not isinstance(action.operation, FetchUrl):
            raise BadInput("the operation of this action is not a fetch", hint="Fetch with a URL.")
        if secrets:
            raise BadInput(
                "a page is fetched without secrets",
                hint="Use the secret from code in a sandbox, where it is bound to a request.",
            )
        allowlist = Allowlist.of(action.allow_domains)
        with self._locked():
            egress_loop = self._running_loop()
        bounds = self._within_limits(action)
        work = egress_loop.fetch(action.operation, allowlist, bounds, _context(action))
        return await _wait_for(egress_loop.call(work))

    async def request(
        self, action: Action, secrets: Sequence[SecretUse], request: ServiceRequest
    ) -> ServiceResponse:
        """Send one request of the runtime, on the same loop and by the same rules."""
        allowlist = Allowlist.of(action.allow_domains)
        with self._locked():
            egress_loop = self._running_loop()
        work = egress_loop.request(
            request, secrets, allowlist, self._within_limits(action), _context(action)
        )
        return await _wait_for(egress_loop.call(work))

    async def ask_service(
        self, action: Action, ask: Callable[[EgressContext], Coroutine[Any, Any, _T]]
    ) -> _T:
        """Ask a service of this process, on the loop on which the service runs."""
        with self._locked():
            egress_loop = self._running_loop()
        return await _wait_for(egress_loop.call(ask(_context(action))))

    def _within_limits(self, action: Action) -> EgressSettings:
        return replace(
            self._settings,
            fetch_timeout_s=min(self._settings.fetch_timeout_s, action.limits.wall_s),
            fetch_max_bytes=min(self._settings.fetch_max_bytes, action.limits.output_bytes),
        )

    def allow(self, session_id: str, domains: Sequence[str]) -> None:
        """Replace the allowlist of a live sandbox, from its next connection or request on."""
        allowlist = Allowlist.of(domains)
        with self._locked():
            network = self._live.get(session_id)
        if network is None:
            raise EgressRefused(
                "there is no live sandbox with egress under this id",
                hint="Start it with an allowlist first.",
                code="CW-NO-SESSION",
            )
        network.session.allow(allowlist)

    def end_session(self, session_id: str) -> None:
        with self._locked():
            network = self._live.pop(session_id, None)
        if network is not None:
            self._end(network)

    def close(self) -> None:
        """End every session and the thread; open connections are aborted."""
        with self._locked():
            egress_loop, self._egress_loop = self._egress_loop, None
            networks = tuple(self._open)
            gateway, self._gateway = self._gateway, None
            self._live.clear()
            self._is_closed = True
        for network in networks:
            self._end(network)
        if egress_loop is not None:
            if gateway is not None:
                egress_loop.call(gateway.close()).result(END_TIMEOUT_S)
            egress_loop.close()

    def _running_loop(self) -> EgressLoop:
        if self._is_closed:
            raise _closed()
        if self._egress_loop is None:
            self._egress_loop = EgressLoop(
                self._settings,
                self._record,
                self._known,
                self._upstream_tls,
                tuple(self._services.values()),
            )
        return self._egress_loop

    def _locked(self) -> threading.Lock:
        if not self._owner.is_current:
            # A fork copies no thread. The parent's loop must not be used, not even closed: parent
            # and child share its epoll descriptor.
            _ABANDONED.append((self._egress_loop, self._open, self._gateway))
            self._reset()
        return self._lock


_ABANDONED: list[object] = []
"""A parent's loops in its child; a destructor would change the parent's epoll set."""


async def _wait_for(work: Future[_T]) -> _T:
    """The result of work on the loop; a caller that stops waiting ends the work."""
    try:
        return await anyio.to_thread.run_sync(work.result, abandon_on_cancel=True)
    except anyio.get_cancelled_exc_class():
        work.cancel()
        raise
    except FutureCancelled:
        raise _closed() from None


async def _open_gateway(gateway: Gateway) -> None:
    gateway.open()


def _closed() -> EgressRefused:
    return EgressRefused(
        "egress of this process is closed",
        hint="Start Cellwall again.",
        code="CW-EGRESS-CLOSED",
    )


def _context(action: Action) -> EgressContext:
    return EgressContext(
        action_id=action.id,
        principal=action.principal.name,
        interface=action.principal.interface,
        session_id=action.session_id or "",
        client=action.operation.client if isinstance(action.operation, ServeClient) else "",
    )
