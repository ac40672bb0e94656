"""The service of one host of a fleet: all of it but the socket, which the fronts have.

The engine opens it by name (`OPENING`) in a process of its own. It answers requests as long as its
lease is valid, and drains when it is told to.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
from fastapi import FastAPI

from cellwall.admin.accounts import Accounts, open_accounts
from cellwall.admin.fleet import (
    HostLease,
    HostPeers,
    Receive,
    Scope,
    Send,
    lost_after_s,
    open_hosts,
)
from cellwall.admin.fleet_vault import FleetVault, KeeperStore, SecretKeeper, open_trust_files
from cellwall.admin.fleet_witness import open_witness
from cellwall.admin.host_releases import HostReleases, open_releases
from cellwall.config.load import load_settings
from cellwall.config.models import Settings
from cellwall.config.server_section import is_loopback
from cellwall.core.errors import Busy, CellwallError
from cellwall.core.home import shaping
from cellwall.core.outcomes import ErrorInfo
from cellwall.core.types import Json, Permission
from cellwall.interfaces.http.application import ServiceSettings, make_application
from cellwall.interfaces.http.fleet_routing import UNSERVED_HEADER
from cellwall.interfaces.http.host_load import host_load
from cellwall.interfaces.http.housekeeping import Housekeeping, index_texts, watch_alerts
from cellwall.interfaces.http.operator_view import OperatorView
from cellwall.interfaces.http.presence import check_neighbours
from cellwall.interfaces.http.problems import problem, status_of
from cellwall.interfaces.http.sandboxes import OwnedSandboxes
from cellwall.interfaces.standalone_proxy import first_error
from cellwall.interfaces.supervisor.ownership import own_cells
from cellwall.interfaces.supervisor.server import Supervisor
from cellwall.runtime.app import App

OPENING = f"{__name__}:open_host"
_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
_BEYOND = frozenset({Permission.NETWORK_USE, Permission.PACKAGES_INSTALL, Permission.SECRETS_USE})
_log = logging.getLogger("cellwall.fleet")


async def open_host(options: Mapping[str, Any], peers: HostPeers) -> FleetHost:
    """Start the service of a state folder; raises what its start refuses."""
    os.environ.update(options["environ"])
    os.umask(0o077)
    os.chdir("/")
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    host = FleetHost(options, peers)
    await host.start()
    return host


class FleetHost:
    """Implements `OpenedHost` and `LeasedHost`."""

    def __init__(self, options: Mapping[str, Any], peers: HostPeers) -> None:
        self._peers = peers
        self._config, self._profile = options["config"], options["profile"]
        self._home, self._incarnation = options["home"], options["incarnation"]
        self._settings: Settings = load_settings(
            file=self._config, profile=self._profile, environ=os.environ
        )
        self._labels = {**self._settings.fleet.labels, **options["labels"]}
        self._coordinator = options["coordinator"]
        self._is_draining = False
        self._releases: tuple[HostReleases, ...] = ()
        self._keeper: SecretKeeper | None = None
        self._lease: HostLease | None = None
        self._api: FastAPI | None = None
        self._accounts: Accounts | None = None
        self._app: App | None = None
        self._started, self._stopping = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns once the host serves; raises what the start has raised."""
        self._task = asyncio.ensure_future(self._run())
        waiting = asyncio.ensure_future(self._started.wait())
        await asyncio.wait({self._task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._task.done():
            self._task.result()

    async def close(self) -> None:
        """End the sessions and the service."""
        self._stopping.set()
        await self.closed()

    async def closed(self) -> None:
        if self._task is not None:
            await asyncio.wait({self._task})

    async def first_owner_code(self) -> str:
        assert self._accounts is not None  # noqa: S101  # it has started
        return await self._accounts.sign_in.first_owner_link() or ""

    async def hear(self, question: bytes) -> bytes:
        """Of a host that needs secrets; empty where this one keeps none, or is fenced."""
        is_valid = self._lease is not None and self._lease.is_valid
        return await self._keeper.hear(question) if is_valid and self._keeper is not None else b""

    async def application(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The service, while the lease is valid."""
        if self._lease is None or self._api is None or not await self._lease.prove():
            await _refuse(_fenced(), scope, receive, send)
        elif (problem := self._release_problem()) is not None:
            await _refuse(_without_release(problem), scope, receive, send)
        elif self._settings.fleet.vault == "fleet" and _is_secret(scope):
            await _refuse(_kept_elsewhere(), scope, receive, send)
        elif self._is_draining and _is_new_session(scope):
            await _refuse(_drains(), scope, receive, send)
        else:
            await self._api(scope, receive, send)

    def describe(self) -> Mapping[str, Json]:
        problem = self._release_problem()
        return {
            **({} if self._app is None else host_load(self._app, self._sandboxes())),
            "address": self._settings.fleet.node_address,
            "labels": self._labels,
            "coordinator": self._coordinator,
            "policy_version": self._policy_version(),
            "problem": "" if problem is None else problem.code,
            "vault": self._settings.fleet.vault,
        }

    def set_draining(self, *, is_draining: bool) -> None:
        self._is_draining = is_draining

    async def fence(self) -> None:
        """The host may be cut off: sessions that reach other machines or use secrets end."""
        found = self._sandboxes()
        if found is None:
            return
        for each in found.all():
            if each.needs & _BEYOND:
                _log.error("a session with egress or secrets ends: the lease is not proven")
                await found.end(each, is_fenced=True)

    def _sandboxes(self) -> OwnedSandboxes | None:
        service = None if self._api is None else getattr(self._api.state, "service", None)
        return None if service is None else service.sandboxes

    async def _run(self) -> None:
        line, lock = await anyio.to_thread.run_sync(own_cells, self._home)
        try:
            supervisor = Supervisor(
                self._home, service=(view := OperatorView(self._settings.server.public_url or ""))
            )
            try:
                app = await supervisor.cache.take(self._config, self._profile, shaping(os.environ))
                await self._serve(app, supervisor, line, view)
            except BaseExceptionGroup as group:
                raise first_error(group) from None
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(supervisor.cache.close)
        finally:
            line.close()
            os.close(lock)

    async def _serve(
        self, app: App, supervisor: Supervisor, line: socket.socket, view: OperatorView
    ) -> None:
        settings, url = self._settings, self._settings.server.public_url or ""
        async with open_accounts(self._home, settings, issuer=url, audit=app.audit) as (
            accounts,
            store,
        ):
            await check_neighbours(store, accounts, settings)
            # A process that was killed may start again before a front calls its host lost.
            await store.lose_all_sessions(now_s=time.time())
            api = make_application(
                app,
                accounts,
                replace(
                    ServiceSettings.configured(
                        settings.server, names=_names(settings), public_url=url
                    ),
                    tenant=self._labels.get("tenant", ""),
                    labels=self._labels,
                ),
                store=store,
            )
            view.follow(app, store, api)
            housekeeping = Housekeeping(
                app=app,
                accounts=accounts,
                sessions=store,
                tls=None,
                context=None,
                every_s=settings.server.housekeeping_s,
            )
            witness = open_witness(self._home, app.audit)
            releases = open_releases(self._home) or ()
            lending = self._open_lending(app, store)
            lease = HostLease(
                store,
                self,
                self._incarnation,
                lease_s=settings.fleet.lease_s,
                open_hosts=partial(open_hosts, self._home, settings),
                end_process=self._end_process,
            )
            async with anyio.create_task_group() as tasks, api.router.lifespan_context(api):
                self._app, self._accounts, self._api = app, accounts, api
                if witness is not None:  # a log that was rolled back starts no host
                    await witness.start(store)
                for each in releases:
                    await each.look(store)
                self._releases = releases
                await lease.join()
                self._lease = lease
                for task in (
                    partial(watch_alerts, app),
                    partial(index_texts, app),
                    housekeeping.run,
                    partial(housekeeping.watch_owners, store, self._sandboxes),
                    partial(supervisor.serve, line),
                    lease.keep,
                ):
                    tasks.start_soon(task)
                for lends in lending:
                    tasks.start_soon(lends)
                if witness is not None:
                    tasks.start_soon(witness.run, store)
                for each in releases:
                    every_s = settings.fleet.lease_s / 4
                    tasks.start_soon(partial(each.follow, store, every_s=every_s))
                self._started.set()
                await self._stopping.wait()
                await lease.leave()
                supervisor.stop()
                tasks.cancel_scope.cancel()

    def _open_lending(
        self, app: App, store: KeeperStore
    ) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        """Keep the vault of the fleet, or borrow from it; returns the tasks of that."""
        settings, trust = self._settings, open_trust_files(self._home, self._settings)
        if trust is None:
            return ()
        if settings.fleet.vault == "keeper":
            self._keeper = SecretKeeper(
                lambda: app.leaser.vault,
                store,
                trust.keys,
                trust.authority,
                policy=self._policy_version,
                lost_after_s=lost_after_s(settings),
            )
            return (self._keeper.tidy_up,)
        vault = FleetVault(
            trust,
            store,
            self._peers,
            settings,
            app.audit,
            incarnation=self._incarnation,
            policy=self._policy_version,
        )
        app.leaser.lend_from(vault)
        return (vault.renew,)

    def _policy_version(self) -> int:
        return next((each.version for each in self._releases), 0)  # the policy is the first

    def _release_problem(self) -> CellwallError | None:
        return next((each.problem for each in self._releases if each.problem is not None), None)

    async def _end_process(self) -> None:
        self._stopping.set()


def _names(settings: Settings) -> list[str]:
    """Values of `Host` that are accepted: a front passes on what clients have sent."""
    public = urlsplit(settings.server.public_url or "").hostname or ""
    named = [f"[{public}]" if ":" in public else public, *settings.server.hosts]
    return [*named, *(_LOOPBACK_NAMES if is_loopback(public) else ())]


def _is_new_session(scope: Scope) -> bool:
    paths = {"/v1/sessions", "/e2b/sandboxes", "/e2b/v2/sandboxes"}
    return scope.get("method") == "POST" and scope["path"] in paths


def _is_secret(scope: Scope) -> bool:
    return f"{scope['path']}/".startswith("/v1/secrets/")


def _kept_elsewhere() -> Busy:
    return Busy(
        "the secrets of this fleet are kept by another host, which does not serve now",
        hint="Start the host whose vault in [fleet] is keeper; leave Cellwall-Host out.",
        code="CW-FLEET-KEEPER",
    )


def _fenced() -> Busy:
    return Busy(
        "this host cannot prove its lease, so it does not serve",
        hint="Try again in a moment: the request was not executed.",
        code="CW-HOST-FENCED",
    )


def _without_release(problem: CellwallError) -> Busy:
    return Busy(
        f"this host lacks a valid policy or feed, so it does not serve: {problem.message}",
        hint=problem.hint,
        code=problem.code,
    )


def _drains() -> Busy:
    return Busy(
        "this host takes no new sessions",
        hint="Try again: another host takes the session.",
        code="CW-HOST-DRAINS",
    )


async def _refuse(error: CellwallError, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1013})
        return
    response = problem(ErrorInfo.of(error), status_of(error))
    response.headers[UNSERVED_HEADER] = "1"
    await response(scope, receive, send)
