"""The way out of all cells of this process: one thread with one loop, started when needed (NET-2).

The runtime calls from other threads and other loops; what it calls here only makes plain objects,
or hands work over to the loop. A process that was forked off starts again with nothing.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Coroutine, Sequence
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread

from cellwall.core.errors import BadInput, EgressRefused
from cellwall.core.forks import OwnerProcess
from cellwall.core.network import CellNetwork, KnownValues, Page, SecretUse, Traveller
from cellwall.core.types import Action, FetchUrl
from cellwall.egress.proxy.built_in import BuiltIn
from cellwall.egress.proxy.ledger import Ledger, Record
from cellwall.egress.proxy.session import Outside, Session
from cellwall.egress.reach.allowlist import Allowlist
from cellwall.egress.reach.resolve import Resolver, ServersResolver, SystemResolver
from cellwall.egress.settings import EgressSettings
from cellwall.egress.values.screen import KnownNow

if TYPE_CHECKING:
    from cellwall.egress.proxy.authority import Authority

_T = TypeVar("_T")

_END_TIMEOUT_S = 10.0


class EgressService:
    """Implements `EgressPort`."""

    def __init__(
        self,
        settings: EgressSettings,
        *,
        record: Record,
        known: KnownValues,
        upstream_tls: ssl.SSLContext | None = None,
    ) -> None:
        """`upstream_tls` is for servers that the system's authorities do not know; it is changed
        to be as strict as theirs."""
        self._settings = settings
        self._record = record
        self._known = known
        self._upstream_tls = upstream_tls
        self._start_over()

    def _start_over(self) -> None:
        self._owner = OwnerProcess()
        self._lock = threading.Lock()
        self._home: _Home | None = None
        self._open: set[BuiltIn] = set()
        self._kept: dict[str, BuiltIn] = {}
        """Those of live sandboxes, by session."""
        self._is_closed = False

    @asynccontextmanager
    async def session(
        self, action: Action, secrets: Sequence[SecretUse]
    ) -> AsyncIterator[CellNetwork]:
        """The way out for the cell of this action."""
        if action.session_id is not None:
            # It lives as long as its sandbox: `end_session` ends it.
            yield self._kept_for(action, action.session_id, secrets)
            return
        with self._locked():
            network = self._build(action, secrets)
        try:
            yield network
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._end, network)

    def _kept_for(self, action: Action, session_id: str, secrets: Sequence[SecretUse]) -> BuiltIn:
        with self._locked():
            network = self._kept.get(session_id)
            if network is None:
                network = self._kept[session_id] = self._build(action, secrets)
            else:
                network.renew(_traveller(action), secrets)
            return network

    def _end(self, network: BuiltIn) -> None:
        network.end()
        with self._locked():
            self._open.discard(network)

    def _build(self, action: Action, secrets: Sequence[SecretUse]) -> BuiltIn:
        allowlist = Allowlist.of(action.allow_domains)
        is_live = action.session_id is not None
        # A live sandbox can be given rules later that need it, and its files are written once.
        needs_authority = is_live or bool(secrets) or self._must_open_some(allowlist)
        home = self._at_home()
        session = Session(
            home.outside,
            _traveller(action),
            allowlist,
            secrets=secrets,
            authority=_new_authority() if needs_authority else None,
        )
        network = BuiltIn(session, home.call)
        self._open.add(network)
        return network

    def _must_open_some(self, allowlist: Allowlist) -> bool:
        bounds = self._settings.header_rules
        return any(
            rule.is_bounded or any(bound.may_meet(rule) for bound in bounds)
            for rule in allowlist.rules
        )

    async def fetch(self, action: Action, secrets: Sequence[SecretUse]) -> Page:
        """One page for an agent, on the same loop and by the same rules (NET-4)."""
        if not isinstance(action.operation, FetchUrl):
            raise BadInput("this action fetches nothing", hint="Fetch with a URL.")
        if secrets:
            raise BadInput(
                "a page is fetched without secrets",
                hint="Use a secret from code in a sandbox, where it is bound to a request.",
            )
        allowlist = Allowlist.of(action.allow_domains)
        with self._locked():
            home = self._at_home()
        bounds = replace(
            self._settings,
            fetch_timeout_s=min(self._settings.fetch_timeout_s, action.limits.wall_s),
            fetch_max_bytes=min(self._settings.fetch_max_bytes, action.limits.output_bytes),
        )
        page = home.call(home.fetched(action.operation, allowlist, bounds, _traveller(action)))
        try:
            return await anyio.to_thread.run_sync(page.result, abandon_on_cancel=True)
        except anyio.get_cancelled_exc_class():
            page.cancel()
            raise
        except FutureCancelled:
            raise _closed() from None

    def allow(self, session_id: str, domains: Sequence[str]) -> None:
        """Another allowlist for a live sandbox, from its next connection or request on."""
        allowlist = Allowlist.of(domains)
        with self._locked():
            network = self._kept.get(session_id)
        if network is None:
            raise EgressRefused(
                "there is no live sandbox with a way out by this id",
                hint="Start it with an allowlist first.",
                code="CW-NO-SESSION",
            )
        network.session.allow(allowlist)

    def end_session(self, session_id: str) -> None:
        with self._locked():
            network = self._kept.pop(session_id, None)
        if network is not None:
            self._end(network)

    def close(self) -> None:
        """End every session and the thread. Connections that are open are cut."""
        with self._locked():
            home, self._home = self._home, None
            networks = tuple(self._open)
            self._kept.clear()
            self._is_closed = True
        for network in networks:
            self._end(network)
        if home is not None:
            home.close()

    def _at_home(self) -> _Home:
        if self._is_closed:
            raise _closed()
        if self._home is None:
            self._home = _Home(self._settings, self._record, self._known, self._upstream_tls)
        return self._home

    def _locked(self) -> threading.Lock:
        if not self._owner.is_current:
            # A fork copies neither the thread nor what it was doing. The parent's loop must not
            # be touched, not even closed: its epoll descriptor is one and the same.
            _LEFT_BEHIND.append((self._home, self._open))
            self._start_over()
        return self._lock


_LEFT_BEHIND: list[object] = []
"""A parent's loops in its child; a destructor would reach into the parent."""


class _Home:
    """The thread, its loop, and what all sessions share there."""

    def __init__(
        self,
        settings: EgressSettings,
        record: Record,
        known: KnownValues,
        upstream_tls: ssl.SSLContext | None,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self.outside = Outside(
            settings=settings,
            resolver=_resolver(settings),
            record=record,
            known=KnownNow(known),
            upstream_tls=_strict(upstream_tls or ssl.create_default_context()),
            loop=self._loop,
        )
        self._thread = threading.Thread(target=self._run, name="cellwall-egress", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self.outside.pipes.close()
            self._loop.close()

    def call(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Done on the loop; from any thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def fetched(
        self,
        operation: FetchUrl,
        allowlist: Allowlist,
        bounds: EgressSettings,
        traveller: Traveller,
    ) -> Page:
        # Pages are parsed with libraries that a session never needs.
        from cellwall.egress.pages.fetch import fetch_page  # noqa: PLC0415  # see above

        outside = self.outside
        ledger = Ledger(outside.record, traveller, self._loop)
        return await fetch_page(
            operation,
            allowlist=allowlist,
            settings=bounds,
            resolver=outside.resolver,
            own=outside.own(),
            known=outside.known.index(),
            tls=outside.upstream_tls,
            record=ledger.write,
        )

    def close(self) -> None:
        self.call(self._end())
        self._thread.join(_END_TIMEOUT_S)

    async def _end(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=_END_TIMEOUT_S / 2)
        self._loop.stop()


def _new_authority() -> Authority:
    # The libraries for certificates take longer to load than most sessions to start.
    from cellwall.egress.proxy.authority import Authority  # noqa: PLC0415  # see above

    return Authority()


def _closed() -> EgressRefused:
    return EgressRefused(
        "the way out of this process is closed",
        hint="Start Cellwall again.",
        code="CW-EGRESS-CLOSED",
    )


def _resolver(settings: EgressSettings) -> Resolver:
    if settings.dns_servers:
        return ServersResolver(settings.dns_servers, settings.connect_timeout_s)
    return SystemResolver(settings.connect_timeout_s)


def _strict(context: ssl.SSLContext) -> ssl.SSLContext:
    # Python lets OpenSSL take a cut connection for one that ended; see `TlsWire.recv`.
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _traveller(action: Action) -> Traveller:
    return Traveller(
        action_id=action.id,
        principal=action.principal.name,
        interface=action.principal.interface,
        session_id=action.session_id or "",
    )
