"""Sessions whose files their owners keep after the end, and resume as new sessions (FS-5).

Only the owner: a member of a team, and any other user, gets the answer for an unknown session.
"""

from __future__ import annotations

from functools import partial
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread

from cellwall.admin import kept_workspaces
from cellwall.admin.accounts import Identity, require_owner
from cellwall.admin.kept_workspaces import KeepBounds, KeptWorkspace
from cellwall.core.accounts import SessionRecord
from cellwall.core.errors import NotFound, WorkspaceError
from cellwall.core.messages import SessionStore
from cellwall.core.types import Principal
from cellwall.interfaces.http.presence import elsewhere
from cellwall.interfaces.http.sandboxes import OwnedSandboxes
from cellwall.runtime.app import App


class KeptSessions:
    """The kept sessions of one service. Files are encrypted and decrypted in threads."""

    def __init__(
        self, app: App, store: SessionStore, sandboxes: OwnedSandboxes, bounds: KeepBounds
    ) -> None:
        self._app, self._store, self._sandboxes, self._bounds = app, store, sandboxes, bounds
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    async def keep(self, who: Identity, session_id: str) -> None:
        """End a live session of this user, and keep its files."""
        sandbox = require_owner(await self._sandboxes.find(who, session_id), who, what="session")
        lock = self._locks.setdefault(who.user_id, anyio.Lock())
        async with lock:  # concurrent calls cannot exceed the bounds together
            mark = partial(
                kept_workspaces.keep,
                self._app,
                sandbox.id,
                keeper=who.user_id,
                bounds=self._bounds,
            )
            try:
                await anyio.to_thread.run_sync(mark)
            except WorkspaceError as error:
                if error.code == "CW-NO-WORKSPACE":  # ended meanwhile
                    require_owner(None, who, what="session")
                raise
            await self._sandboxes.end(sandbox)
            await anyio.to_thread.run_sync(kept_workspaces.require_sealed, self._app, sandbox.id)

    async def of(
        self, who: Identity, *, after: str, limit: int
    ) -> list[tuple[SessionRecord, KeptWorkspace]]:
        """Those of this user, by id."""
        kept = await anyio.to_thread.run_sync(kept_workspaces.kept_by, self._app, who.user_id)
        page = {each.id: each for each in [each for each in kept if each.id > after][:limit]}
        records = await self._store.list_sessions(
            user_id=who.user_id, teams=frozenset(), among=tuple(page), limit=limit
        )
        return [(record, page[record.id]) for record in records]

    async def among(self, session_ids: list[str]) -> dict[str, KeptWorkspace]:
        """Those of these sessions that are kept."""
        return await anyio.to_thread.run_sync(kept_workspaces.find_kept, self._app, session_ids)

    async def own_record(self, who: Identity, session_id: str) -> SessionRecord:
        """Of a session that this user owns and this service had."""
        record = await self._store.find_session(session_id, user_id=who.user_id, teams=frozenset())
        record = require_owner(record, who, what="session")
        if not self._sandboxes.is_own(record):  # its keys and files are in another state folder
            raise elsewhere("session")
        return record

    async def find(self, who: Identity, session_id: str) -> KeptWorkspace:
        """The kept files of a session of this user."""
        record = await self.own_record(who, session_id)
        kept = (await self.among([record.id])).get(record.id)
        if kept is None:
            raise NotFound(
                "no files of this session are kept",
                hint="GET /v1/sessions?state=kept lists the sessions that are.",
            )
        return kept

    async def discard(self, who: Identity, principal: Principal, session_id: str) -> None:
        """Destroy the kept files of a session of this user, now."""
        kept = await self.find(who, session_id)
        discard = partial(kept_workspaces.discard, self._app, kept.id, principal=principal)
        await anyio.to_thread.run_sync(discard)
