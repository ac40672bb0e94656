"""The live sandboxes of the service, each with its owner (RBAC-3).

A sandbox of another user is as absent as an unknown one: `require_own` decides both by the same
comparison and raises the same error.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import anyio
import anyio.abc
import anyio.lowlevel

from cellwall.admin.accounts import Identity, require_own, require_tenant
from cellwall.admin.fleet import host_lost
from cellwall.core.accounts import SessionRecord
from cellwall.core.errors import Busy, CellwallError, NotFound
from cellwall.core.hosts import HOST_LOST, SESSION_LABELS
from cellwall.core.limits import Limits
from cellwall.core.messages import SessionStore
from cellwall.core.types import Json
from cellwall.interfaces.http.ended_sessions import EndedSessions
from cellwall.interfaces.http.owned_sandbox import OwnedSandbox, about_spec
from cellwall.interfaces.http.presence import elsewhere
from cellwall.interfaces.http.restarts import (
    RESTARTS,
    LostSession,
    SessionRestarts,
    being_restarted,
    session_restarted,
    too_many_sessions,
)
from cellwall.interfaces.http.runs import Runs
from cellwall.interfaces.http.shipped_policy import default_policy
from cellwall.interfaces.sandbox_options import with_limits
from cellwall.interfaces.sdk.hosts import SandboxSpec
from cellwall.interfaces.sdk.local_host import LocalHost
from cellwall.runtime.app import App

MAX_KEEP_ALIVE_S = 7 * 86_400.0
INTERFACE = "http"
_LOOK_EVERY_S = 1.0
_log = logging.getLogger("cellwall.http")


class OwnedSandboxes:
    """All sandboxes of the service."""

    def __init__(
        self,
        app: App,
        store: SessionStore,
        *,
        max_per_owner: int,
        tasks: anyio.abc.TaskGroup,
        tenant: str = "",
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self._app, self._tenant = app, tenant
        self._store = store
        self._max_per_owner = max_per_owner
        self._tasks = tasks
        self._live: dict[str, OwnedSandbox] = {}
        self._making: dict[str, int] = {}
        self._ends = EndedSessions(store)
        self._restarts = SessionRestarts(app, store, labels or {})
        self._restarting: Counter[str] = Counter()
        """Requests that start a session of a lost host again, or try to, by its id."""
        self._is_closed = False

    async def create(
        self,
        who: Identity,
        spec: SandboxSpec,
        *,
        keep_alive_s: float,
        team_id: str | None = None,
        resumed_id: str | None = None,
        restarts: bool = False,
        labels: Mapping[str, str] | None = None,
        lost: LostSession | None = None,
    ) -> OwnedSandbox:
        """A new sandbox; raises `Busy` beyond the number that one user may have. `resumed_id`: of
        a kept session, whose files it gets; see `KeptSessions.find`. `restarts`: again on another
        host with these `labels` when this one is lost. `lost`: a session of a lost host, which
        starts here."""
        require_tenant(who, self._tenant)
        if restarts:
            self._restarts.check()
        spec, limits = self._bounded(spec)
        again: dict[str, Json] = {RESTARTS: True, SESSION_LABELS: dict(labels or {})}
        with self._counted(who.user_id):
            stored: list[str] = []

            async def store_record(session_id: str) -> None:
                """Before code runs: the keeper of a fleet's vault lends to stored sessions."""
                record = SessionRecord(
                    id=session_id,
                    owner_id=who.user_id,
                    team_id=team_id,
                    created_s=time.time(),
                    ended_s=None,
                    about={**about_spec(spec, limits), **(again if restarts else {})},
                )
                stored.append(session_id)
                if not await self._store.add_session(record, max_live=self._max_per_owner):
                    raise too_many_sessions(self._max_per_owner)

            try:
                host = await LocalHost.create(
                    self._app,
                    spec,
                    principal=who.principal(INTERFACE),
                    resumed_id=resumed_id,
                    on_session=None if lost is not None else store_record,
                    session_id=None if lost is None else lost.id,
                )
            except BaseException:
                for each in stored:
                    self._ends.add(each)
                with anyio.CancelScope(shield=True):
                    await self._ends.save()
                raise
            made = OwnedSandbox(
                host=host,
                owner_id=who.user_id,
                team_id=team_id,
                limits=limits,
                keep_alive_s=keep_alive_s,
                runs=Runs(self._tasks),
                spec=spec,
                restarted_s=None if lost is None else lost.taken_s,
            )
            if restarts or lost is not None:
                made.copy_snapshot = partial(self._copy_snapshot, made)
            self._live[host.id] = made
        if self._is_closed:
            await self.end(made)
            raise _stopping()
        # Files of before bring labels, which are judged with the first action.
        if resumed_id is None and lost is None and spec.from_snapshot is None:
            self._tasks.start_soon(self._open_early, made)
        return made

    async def _open_early(self, made: OwnedSandbox) -> None:
        """Behind the answer: the first action finds the cell of the sandbox open."""
        await anyio.lowlevel.checkpoint()  # `JoinedWrites` sends the answer in the next turn
        try:
            await made.host.open_early()
        except Exception:  # noqa: BLE001  # the other sandboxes must go on
            _log.error("a cell was not opened early")  # a trace shows host paths

    def _bounded(self, spec: SandboxSpec) -> tuple[SandboxSpec, Limits]:
        """The specification with the limits of the profile at most, and the policy of the host."""
        most = self._app.limits
        wanted = with_limits(most, timeout=spec.timeout, memory=spec.memory, **dict(spec.limits))
        names = [name for name in most.__slots__ if getattr(wanted, name) != getattr(most, name)]
        lowered = {name: min(getattr(wanted, name), getattr(most, name)) for name in names}
        bounded = replace(
            spec, timeout=None, memory=None, limits=lowered, policy=default_policy(self._app)
        )
        return bounded, with_limits(most, **lowered)

    async def find(self, who: Identity, name: str) -> OwnedSandbox:
        """The caller's sandbox; raises the same error for an unknown, ended or foreign id, and
        another one for a sandbox of the caller's in another process or on a lost host."""
        try:
            found = self.look(who, name)
        except NotFound:
            record = await self._store.find_session(name, user_id=who.user_id, teams=who.teams)
            if record is not None and record.end_reason == HOST_LOST:
                raise await self._restart(who, record) from None
            if record is None or record.ended_s is not None:
                raise
            if not self.is_own(record):
                raise elsewhere("session") from None
            if name not in self._live:
                # Taken over by an earlier request, and not made yet; else it is about to end here.
                if self._restarting[name]:
                    raise being_restarted() from None
                raise
            found = self.look(who, name)  # made since
        found.used_at = time.monotonic()
        return found

    async def _restart(self, who: Identity, record: SessionRecord) -> CellwallError:
        """Start a session of a lost host again, where it was asked for; returns what its owner is
        told."""
        self._restarting[record.id] += 1
        try:
            lost = await self._restarts.take_over(who, record, max_live=self._max_per_owner)
            if lost is None:
                return host_lost()
            try:
                await self.create(
                    who,
                    lost.spec,
                    keep_alive_s=lost.keep_alive_s,
                    team_id=record.team_id,
                    lost=lost,
                )
            except BaseException:
                await self._restarts.give_up(record.id)
                raise
        finally:
            self._restarting[record.id] -= 1
            self._restarting += Counter()  # without those that are at zero
        return session_restarted(lost.taken_s)

    async def _copy_snapshot(self, sandbox: OwnedSandbox, snapshot_id: str) -> None:
        spec = replace(sandbox.spec, allow_domains=sandbox.host.domains)

        async def is_held() -> bool:
            """Another host may have the session by now, with a later snapshot."""
            found = await self._store.find_session(
                sandbox.id, user_id=sandbox.owner_id, teams=frozenset()
            )
            return found is not None and found.ended_s is None and self.is_own(found)

        await self._restarts.copy(
            sandbox.id, snapshot_id, spec, keep_alive_s=sandbox.keep_alive_s, is_held=is_held
        )

    def is_own(self, record: SessionRecord) -> bool:
        """Whether the session was made by this service, not by another one of its database."""
        return record.service_id in {"", self._store.service_id}

    def look(self, who: Identity, name: str) -> OwnedSandbox:
        """`find` without using it: its time goes on."""
        return require_own(self._live.get(name), who, what="session")

    def is_owner(self, user_id: str, name: str) -> bool:
        """Whether this sandbox is live, and this user's own."""
        found = self._live.get(name)
        return found is not None and found.owner_id == user_id

    def is_shared(self, who: Identity, name: str) -> bool:
        """Whether this sandbox is live, and shared with a team of the user."""
        found = self._live.get(name)
        return found is not None and found.team_id is not None and found.team_id in who.teams

    def of(self, who: Identity) -> list[OwnedSandbox]:
        """The live sandboxes of the caller and of the caller's teams, by id."""
        found = [
            each
            for each in self._live.values()
            if each.owner_id == who.user_id or each.team_id in who.teams
        ]
        return sorted(found, key=lambda each: each.id)

    def described_to(self, who: Identity, *, sees_all: bool) -> list[OwnedSandbox]:
        """Those whose metadata the caller may see. Who reads the record knows all of them from it;
        their files and their output stay with their owners, see `look`."""
        if not sees_all:
            return self.of(who)
        return sorted(self._live.values(), key=lambda each: each.id)

    def all(self) -> tuple[OwnedSandbox, ...]:
        """Of all users: for the operator alone, never for a request."""
        return tuple(self._live.values())

    @property
    def is_closed(self) -> bool:
        """Whether the service is stopping."""
        return self._is_closed

    @property
    def count(self) -> int:
        return len(self._live)

    async def end(self, sandbox: OwnedSandbox, *, is_fenced: bool = False) -> None:
        """End a sandbox with its runs; a second call has no effect. `is_fenced`: this host may be
        lost, and the session starts again, here or elsewhere, where that was asked for."""
        if self._live.pop(sandbox.id, None) is None:
            return
        with anyio.CancelScope(shield=True):
            if sandbox.copy_snapshot is None:
                self._ends.add(sandbox.id, is_lost=is_fenced)
                await self._ends.save_beside(sandbox.end_host)
                return
            # A host that was lost and comes back ends what it had, and then another host may have
            # the session, which starts from the shared snapshot when that one is lost as well.
            forget = partial(self._restarts.forget, sandbox.id)
            is_kept = is_fenced or self._is_closed
            try:
                await sandbox.end_host()
            finally:
                self._ends.add(
                    sandbox.id, is_lost=is_fenced, afterwards=None if is_kept else forget
                )
                await self._ends.save()

    async def watch(self) -> None:
        """End the sandboxes that were unused for their time."""
        while True:
            await anyio.sleep(_LOOK_EVERY_S)
            for each in [each for each in self._live.values() if each.is_overdue]:
                await self._end_quietly(each)
            await self._ends.save()

    async def close(self) -> None:
        """End all sandboxes; none is created any more."""
        self._is_closed = True
        async with anyio.create_task_group() as tasks:
            for each in list(self._live.values()):
                tasks.start_soon(self._end_quietly, each)

    async def _end_quietly(self, sandbox: OwnedSandbox) -> None:
        try:
            await self.end(sandbox)
        except Exception:  # noqa: BLE001  # the other sandboxes must end as well
            _log.error("a sandbox did not end cleanly")  # a trace shows host paths

    @contextmanager
    def _counted(self, owner: str) -> Iterator[None]:
        """Counts creations under way, so that concurrent ones cannot exceed the number together."""
        if self._is_closed:
            raise _stopping()
        live = sum(1 for each in self._live.values() if each.owner_id == owner)
        if live + self._making.get(owner, 0) >= self._max_per_owner:
            raise too_many_sessions(self._max_per_owner)
        self._making[owner] = self._making.get(owner, 0) + 1
        try:
            yield
        finally:
            self._making[owner] -= 1
            if not self._making[owner]:
                del self._making[owner]


def _stopping() -> Busy:
    return Busy("the service is stopping", hint="Try again in a moment.", code="CW-STOPPING")
