"""Watches of directories, as a stream or fetched by the client."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import anyio

from cellwall.core.errors import BadInput
from cellwall.core.files import FileChange, FileEntry, FileOperation
from cellwall.core.types import Principal
from cellwall.interfaces.e2b.bodies import WatchRequest
from cellwall.interfaces.e2b.callers import SandboxCaller
from cellwall.interfaces.e2b.paths import absolute, entry_json
from cellwall.interfaces.http.problems import raise_for_refusal
from cellwall.interfaces.sdk.files import AsyncWatch

MAX_WATCHES = 16
_MAX_EVENTS = 10_000
"""Of one answer."""
_STEP_S = 5.0
"""Between two looks at the token of the reader."""
_KINDS = {
    "created": "EVENT_TYPE_CREATE",
    "modified": "EVENT_TYPE_WRITE",
    "removed": "EVENT_TYPE_REMOVE",
}


class WatchEvents:
    """The changes below one directory, as E2B names them."""

    def __init__(self, caller: SandboxCaller, body: WatchRequest) -> None:
        self._caller, self._body = caller, body
        self._root = absolute(body.path)
        operation = FileOperation("watch", body.path, recursive=body.recursive)

        async def begin() -> object:
            outcome = await caller.sandbox.perform(await caller.principal(), operation)
            return raise_for_refusal(outcome).payload

        host = caller.sandbox.host
        self._watch = AsyncWatch(host, begin, timeout_s=_STEP_S)

    async def open(self) -> None:
        """Start the watch."""
        await self._watch.open()

    def close(self) -> None:
        self._watch.close()

    async def until(self, deadline: float | None) -> AsyncIterator[dict[str, Any] | None]:
        """Events until the deadline or the end of the directory; None as a sign of life."""
        while deadline is None or time.monotonic() < deadline:
            principal = await self._caller.principal()
            change = await self._watch.next_change()
            if change is None and self._watch.is_ended:
                return
            if change is None:
                yield None
                continue
            for event in await self._events(change, principal):
                yield event

    async def take(self, principal: Principal) -> list[dict[str, Any]]:
        """The events since the last call."""
        found: list[dict[str, Any]] = []
        while len(found) < _MAX_EVENTS:
            change = await self._watch.next_change(timeout_s=0.0)
            if change is None:
                break
            found += await self._events(change, principal)
        return found

    async def _events(self, change: FileChange, principal: Principal) -> list[dict[str, Any]]:
        if change.kind == "overflow":
            raise BadInput("changes were lost", hint="List the directory again.")
        if change.kind == "moved":
            pairs = [("EVENT_TYPE_RENAME", change.path), ("EVENT_TYPE_CREATE", change.target)]
        else:
            pairs = [(_KINDS[change.kind], change.path)]
        return [await self._event(kind, path, principal) for kind, path in pairs]

    async def _event(self, kind: str, path: str, principal: Principal) -> dict[str, Any]:
        event: dict[str, Any] = {"name": self._name(path), "type": kind}
        if self._body.include_entry:
            outcome = await self._caller.sandbox.perform(principal, FileOperation("stat", path))
            if isinstance(outcome.payload, FileEntry):
                event["entry"] = entry_json(outcome.payload)
        return event

    def _name(self, path: str) -> str:
        """Relative to the watched directory."""
        return absolute(path).removeprefix(self._root).lstrip("/")


class PolledWatch:
    """A watch whose events one user fetches, one request at a time."""

    def __init__(self, user_id: str, caller: SandboxCaller, body: WatchRequest) -> None:
        self.user_id = user_id
        self._events = WatchEvents(caller, body)
        self._in_use = anyio.Lock()

    async def open(self) -> None:
        """Start the watch."""
        async with self._in_use:
            await self._events.open()

    async def take(self, principal: Principal) -> list[dict[str, Any]]:
        """The events since the last call."""
        async with self._in_use:
            return await self._events.take(principal)

    def close(self) -> None:
        """A request that is reading ends."""
        self._events.close()
