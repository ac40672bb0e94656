"""What a service does now and then, since it may run for months: delete what has expired, replace
old keys, take renewed certificates into use, end the sandboxes of users who are gone, evaluate
alert rules, index the text of records."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio
import anyio.to_thread

from cellwall.admin.accounts import Accounts
from cellwall.admin.alert_secrets import AlertSecrets
from cellwall.admin.alerts import AlertAdmin
from cellwall.admin.shared_snapshots import open_shared_snapshots
from cellwall.admin.text_indexer import TextIndexer
from cellwall.admin.tls_files import TlsFiles
from cellwall.core.account_ports import AccountsPort, SessionsPort
from cellwall.core.errors import CellwallError
from cellwall.core.types import Permission, Principal
from cellwall.interfaces.http.sandboxes import INTERFACE, OwnedSandboxes
from cellwall.runtime.app import App
from cellwall.runtime.home import local_principal
from cellwall.runtime.session_data import is_held, readable_keys
from cellwall.runtime.wiring import sweep_state

_LOOK_EVERY_S = 1.0
_DAY_S = 86_400.0
_log = logging.getLogger("cellwall.serve")


@dataclass(frozen=True, slots=True, kw_only=True)
class Housekeeping:
    """The tasks of one service. A failed one is logged and tried again the next time."""

    app: App
    accounts: Accounts
    sessions: SessionsPort
    tls: TlsFiles | None
    context: ssl.SSLContext | None
    every_s: float

    async def run(self) -> None:
        while True:
            await anyio.sleep(self.every_s)
            await self.run_once()

    async def run_once(self) -> None:
        tasks: tuple[tuple[str, Callable[[], Awaitable[object]]], ...] = (
            ("delete expired tokens", self.accounts.purge),
            ("delete metadata of old sessions", self._forget_sessions),
            ("rotate the signing key", self._rotate_keys),
            ("remove old changes", self._sweep),
            ("remove old snapshots of the shared folder", self._remove_shared),
            ("read the certificate again", self._reload_certificate),
        )
        for name, task in tasks:
            try:
                await task()
            except CellwallError as error:
                _log.warning("housekeeping: could not %s: %s", name, error)
            except Exception as error:  # noqa: BLE001  # the service and the other tasks go on
                _log.warning("housekeeping: could not %s: %s", name, type(error).__name__)

    async def watch_owners(
        self, store: AccountsPort, sandboxes: Callable[[], OwnedSandboxes | None]
    ) -> None:
        """End the sandboxes of users who were removed or disabled, or whose role has lost what a
        sandbox has: their processes would run on, with its egress and secrets. The revision changes
        with every such change, and is cheap."""
        seen = -1
        while True:
            await anyio.sleep(_LOOK_EVERY_S)
            try:
                revision = await store.revision()
                live = sandboxes()
                if revision != seen and live is not None:
                    await self._end_orphans(store, live)
                    seen = revision
            except CellwallError as error:
                _log.warning("sandboxes of removed users were not looked for: %s", error.code)

    async def _end_orphans(self, store: AccountsPort, sandboxes: OwnedSandboxes) -> None:
        for owner_id in {each.owner_id for each in sandboxes.all()}:
            user = await store.find_user(owner_id)
            has: frozenset[Permission] = frozenset()
            if user is not None and not user.is_disabled:
                who = Principal(user.name, INTERFACE, user.role)
                has = frozenset(self.app.runtime.roles.role_of(who).permissions)
            for each in sandboxes.all():
                if each.owner_id == owner_id and not each.needs <= has:
                    await sandboxes.end(each)

    async def _forget_sessions(self) -> None:
        """Metadata proves who owns a session's records and files, and goes with their keys."""
        days = self.app.settings.retention.session_days
        if days is None:
            return
        if await anyio.to_thread.run_sync(is_held, self.app.store.home):
            return
        await self.sessions.forget_sessions(ended_before_s=time.time() - days * _DAY_S)

    async def _rotate_keys(self) -> None:
        await self.accounts.rotate_aged_keys(by=local_principal("cellwall"))

    async def _sweep(self) -> None:
        """Copy-on-write changes older than keep_changes_days, and traces of killed processes."""
        await anyio.to_thread.run_sync(sweep_state, self.app)

    async def _remove_shared(self) -> None:
        """The last snapshots of sessions that ended with their host, kept for their time (FS-5)."""
        shared = open_shared_snapshots(self.app.settings, self.app.store)
        if shared is None or await anyio.to_thread.run_sync(is_held, self.app.store.home):
            return
        await anyio.to_thread.run_sync(shared.remove_old)

    async def _reload_certificate(self) -> None:
        if self.tls is not None and self.context is not None:
            is_new = await anyio.to_thread.run_sync(self.tls.reload_into, self.context)
            if is_new:
                _log.info("the certificate was read again")


async def watch_alerts(app: App) -> None:
    """Evaluate the alert rules in a thread, until the service ends (OBS-2)."""
    if app.settings.alerts.watch == "off":
        return
    home = app.store.home
    secrets = AlertSecrets(home, app.settings, local_principal("cellwall"))
    watcher = AlertAdmin(home, app.settings).watcher(secrets)
    watcher.start()
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(watcher.stop)
            await anyio.to_thread.run_sync(secrets.close)


async def index_texts(app: App) -> None:
    """Index the text of records in a thread, until the service ends."""
    home, settings = app.store.home, app.settings
    indexer = TextIndexer(home, lambda: readable_keys(home, lambda: settings))
    indexer.start()
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(indexer.stop)
