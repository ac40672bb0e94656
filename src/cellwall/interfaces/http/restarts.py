"""Sessions that start again from their last snapshot when their host is lost (SRV-6).

  (1) each snapshot of such a session is copied to the folder that all hosts share;
  (2) the next request of the owner after the loss takes the session over: of two hosts, one does;
  (3) the session starts with the files of the snapshot, under its id, and the request is answered
      with the time of the snapshot. The request is not executed: it may not fit the older files.
A run with an idempotency key that was under way on the lost host is not executed again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread

from cellwall.admin.accounts import Identity
from cellwall.admin.fleet import has_labels, no_host
from cellwall.admin.shared_snapshots import open_shared_snapshots
from cellwall.core.accounts import SessionRecord
from cellwall.core.errors import BadInput, Busy, CellwallError
from cellwall.core.hosts import HOST_LOST, SESSION_LABELS
from cellwall.core.messages import SessionStore
from cellwall.core.types import Json, Permission
from cellwall.interfaces.sdk.hosts import SandboxSpec
from cellwall.runtime.app import App
from cellwall.runtime.judging import require

RESTARTS = "restarts"
"""The mark in the metadata of a session."""
_SEQUENCES = ("allow_domains", "registries", "secrets", "skills")


@dataclass(frozen=True, slots=True, kw_only=True)
class LostSession:
    """A session that this host has taken over, and starts now."""

    id: str
    spec: SandboxSpec
    keep_alive_s: float
    taken_s: float
    """When its snapshot was taken."""


class SessionRestarts:
    """The sessions of this host that start again elsewhere, and those that start again here."""

    def __init__(self, app: App, store: SessionStore, labels: Mapping[str, str]) -> None:
        """`labels`: of this host."""
        self._store, self._labels, self._settings = store, labels, app.settings
        self._shared = open_shared_snapshots(app.settings, app.store)

    def check(self) -> None:
        """Raise where snapshots would be lost with their host."""
        if self._shared is None:
            raise BadInput(
                "no folder for snapshots is shared by the hosts, so no session can start again",
                hint="Leave restart_from_snapshot out, or name a folder: snapshots in [fleet].",
                code="CW-FLEET-SNAPSHOTS",
            )

    async def copy(
        self,
        session_id: str,
        snapshot_id: str,
        spec: SandboxSpec,
        *,
        keep_alive_s: float,
        is_held: Callable[[], Coroutine[Any, Any, bool]],
    ) -> None:
        """(1). `is_held`: whether this host still has the session; asked before the copy of another
        host could be replaced."""
        options: dict[str, Json] = {
            **{name: list(getattr(spec, name)) for name in _SEQUENCES},
            "envs": dict(spec.envs),
            "limits": dict(spec.limits),
            "template": spec.template,
            "second_user": spec.second_user,
            "keep_alive_s": keep_alive_s,
        }
        if self._shared is not None:
            copy = self._shared.copy
            ask = partial(anyio.from_thread.run, is_held)
            await anyio.to_thread.run_sync(copy, session_id, snapshot_id, options, ask)

    async def forget(self, session_id: str) -> None:
        """The session has ended."""
        if self._shared is not None:
            await anyio.to_thread.run_sync(self._shared.forget, session_id)

    async def take_over(
        self, who: Identity, record: SessionRecord, *, max_live: int
    ) -> LostSession | None:
        """(2): the session, for its owner, if it is to start again and has a snapshot. Raises where
        the caller may create no sandbox, and where this host lacks a label that the session has
        asked for: a region, or hosts of a tenant."""
        shared = self._shared
        if shared is None or not record.about.get(RESTARTS) or record.owner_id != who.user_id:
            return None
        if not await anyio.to_thread.run_sync(shared.has, record.id):
            return None
        require(self._settings, who.principal("http"), Permission.SANDBOX_EXECUTE)
        if not has_labels(self._labels, _labels_of(record)):
            raise no_host("this host lacks the labels that it has asked for")
        owner_id = record.owner_id
        if not await self._store.take_over_session(record.id, owner_id=owner_id, max_live=max_live):
            raise await self._not_taken(record, max_live)
        try:
            restored = await anyio.to_thread.run_sync(shared.restore, record.id)
            return LostSession(
                id=record.id,
                spec=_spec(restored.options, restored.snapshot_id),
                keep_alive_s=float(restored.options["keep_alive_s"]),
                taken_s=restored.taken_s,
            )
        except BaseException:
            await self.give_up(record.id)
            raise

    async def _not_taken(self, record: SessionRecord, max_live: int) -> CellwallError:
        now = await self._store.find_session(record.id, user_id=record.owner_id, teams=frozenset())
        if now is not None and now.end_reason == HOST_LOST:
            return too_many_sessions(max_live)
        return being_restarted()

    async def give_up(self, session_id: str) -> None:
        """It did not start: its owner may try again, or look into the reason."""
        with anyio.CancelScope(shield=True):
            await self._store.lose_session(session_id, now_s=time.time())


class SessionRestarted(CellwallError):
    """The session is there again, with older files; the request was not executed."""

    default_code = "CW-SESSION-RESTARTED"


def too_many_sessions(max_live: int) -> Busy:
    """For one more session of a user."""
    return Busy(
        f"{max_live} sandboxes of this user are live already",
        hint="End one: DELETE /v1/sessions/ID.",
        code="CW-TOO-MANY-SESSIONS",
    )


def being_restarted() -> Busy:
    """For a request that comes meanwhile: the session has not ended, and is not there yet."""
    return Busy("the session is being started again", hint="Try again in a moment.")


def session_restarted(taken_s: float) -> SessionRestarted:
    """(3)"""
    taken = datetime.fromtimestamp(taken_s, UTC).isoformat(timespec="seconds")
    return SessionRestarted(
        "the host of this session was lost; the session was started again from its snapshot of "
        f"{taken}, and this request was not executed",
        hint="Changes after that time are lost, and so are its processes. Send the request again "
        "if it fits.",
    )


def _labels_of(record: SessionRecord) -> Mapping[str, str]:
    asked = record.about.get(SESSION_LABELS)
    return {str(k): str(v) for k, v in asked.items()} if isinstance(asked, Mapping) else {}


def _spec(options: Mapping[str, Any], snapshot_id: str) -> SandboxSpec:
    listed: dict[str, Sequence[str]] = {name: tuple(options[name]) for name in _SEQUENCES}
    return SandboxSpec(
        workspace=None,
        policy=None,
        timeout=None,
        memory=None,
        envs=options["envs"],
        limits=options["limits"],
        template=options["template"],
        asked_in="",
        from_snapshot=snapshot_id,
        second_user=options.get("second_user", False),  # a copy of an earlier version has none
        **listed,
    )
