"""Several services on one database: each says that it is alive, and ends what the dead have left.

Accounts, tokens, budgets and signing keys are shared by the database, rates by Redis. A sandbox and
a question belong to the process that made them; a request that reaches another process is refused
with `CW-ELSEWHERE`, so that it is not taken for a wrong id.
"""

from __future__ import annotations

import logging
import time

import anyio

from cellwall.admin.accounts import Accounts
from cellwall.config.models import Settings
from cellwall.core.errors import CellwallError, ConfigError, NotFound, StorageError
from cellwall.core.messages import SessionStore
from cellwall.core.services import ServicesPort
from cellwall.interfaces.http.approval_records import Unanswered

_NOTE_EVERY_S = 20.0
_UNSEEN_AFTER_S = 120.0
"""Longer than a pause of a busy machine, and than the difference of two machines' clocks."""
_log = logging.getLogger("cellwall.http")


class ServicePresence:
    """The place of this service among those of its database."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    async def begin(self) -> None:
        """At the start: no session outlives the process that ran it, and who asked before is gone,
        which denies."""
        now_s = time.time()
        await self._store.end_all_sessions(now_s=now_s)
        await self._store.end_all_approvals(answer=Unanswered.RESTARTED, now_s=now_s)
        await self._look(now_s)

    async def run(self) -> None:
        while True:
            await anyio.sleep(_NOTE_EVERY_S)
            try:
                await self._look(time.time())
            except StorageError as error:
                _log.warning("the service was not noted in the database: %s", error.code)

    async def end(self) -> None:
        """All sandboxes have ended."""
        try:
            await self._store.forget_service()
        except StorageError as error:  # the others find out by themselves
            _log.warning("the end of the service was not stored: %s", error.code)

    async def _look(self, now_s: float) -> None:
        await self._store.note_service(now_s=now_s)
        await self._store.end_for_unseen_services(
            unseen_since_s=now_s - _UNSEEN_AFTER_S, answer=Unanswered.RESTARTED, now_s=now_s
        )


async def check_neighbours(store: ServicesPort, accounts: Accounts, settings: Settings) -> None:
    """Raise `ConfigError` where this service cannot work beside the others of its database."""
    if not await store.count_other_services(seen_since_s=time.time() - _UNSEEN_AFTER_S):
        return
    if not await accounts.opens_newest_key():
        raise ConfigError(
            "another service uses this database with another key of accounts",
            hint="Give all services of one database the same file: key_file in [accounts].",
            code="CW-SERVE-KEY",
        )
    if not settings.rates.redis_url:
        _log.warning(
            "another service uses this database, and each counts rates for itself: "
            "set redis_url in [rates]"
        )


def elsewhere(what: str) -> CellwallError:
    """For a session or question of the caller's that another process holds."""
    return NotFound(
        f"another process of this service has this {what}",
        hint="Send all requests of one user to the same process (docs/guides/serve.md).",
        code="CW-ELSEWHERE",
    )
