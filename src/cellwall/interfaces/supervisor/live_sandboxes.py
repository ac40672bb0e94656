"""The live sandboxes of a supervisor; every process of the same user can use them."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cellwall.core.errors import BadInput
from cellwall.core.files import FileOperation
from cellwall.core.outcomes import Outcome
from cellwall.core.types import Json, OutputSink
from cellwall.interfaces.sdk.hosts import SandboxSpec
from cellwall.interfaces.sdk.local_host import LocalHost
from cellwall.interfaces.supervisor.codec import UNKNOWN_REQUEST, DownloadBuffer, decode_operation
from cellwall.interfaces.supervisor.conversation import Conversation, perform_while_connected
from cellwall.interfaces.supervisor.outcome_frames import encode_outcome
from cellwall.interfaces.supervisor.runtime_cache import RuntimeCache
from cellwall.runtime.app import App

_log = logging.getLogger("cellwall.supervisor")
_LOG_BYTES = 256 * 1024
_MAX_LIFE_S = 7 * 86_400.0


@dataclass(slots=True)
class _LiveSandbox:
    host: LocalHost
    app: App
    keep_alive_s: float
    made_s: float = field(default_factory=time.time)
    used_at: float = field(default_factory=time.monotonic)
    busy: int = 0
    calls: int = 0
    log: deque[bytes] = field(default_factory=deque)
    log_bytes: int = 0

    def append_log(self, data: bytes) -> None:
        """Append output; the oldest output is dropped beyond the limit."""
        self.log.append(data)
        self.log_bytes += len(data)
        while self.log_bytes > _LOG_BYTES and len(self.log) > 1:
            self.log_bytes -= len(self.log.popleft())


class LiveSandboxes:
    """Sandboxes by id. An ended sandbox and an unknown id get the same answer."""

    def __init__(self, cache: RuntimeCache) -> None:
        self._cache = cache
        self._sandboxes: dict[str, _LiveSandbox] = {}

    @property
    def count(self) -> int:
        return len(self._sandboxes)

    def describe(self) -> list[Json]:
        now = time.monotonic()
        usages = {
            name: live.app.runtime.sandbox.live_usage(name)
            for name, live in self._sandboxes.items()
        }
        return [
            {
                "id": name,
                "made_s": live.made_s,
                "idle_s": round(now - live.used_at, 1),
                "ends_in_s": round(live.keep_alive_s - (now - live.used_at), 1),
                "is_busy": live.busy > 0,
                "calls": live.calls,
                "cpu_s": round(usages[name].cpu_s, 3),
                "memory_bytes": usages[name].memory_bytes,
            }
            for name, live in self._sandboxes.items()
        ]

    async def dispatch(self, client: Conversation, message: Mapping[str, Any], blob: bytes) -> None:
        match message.get("do"):
            case "create":
                await self._create(client, message)
            case "attach":
                live = self._find(message)
                live.used_at = time.monotonic()
                await client.send({"id": message["id"], "keep_alive_s": live.keep_alive_s})
            case "perform":
                await self._perform(client, message, blob)
            case "logs":
                await client.send({"log": True}, b"".join(self._find(message).log))
            case "kill":
                self._find(message)
                await self._end(str(message["id"]))
                await client.send({"killed": message["id"]})
            case _:
                raise BadInput(UNKNOWN_REQUEST)

    def _find(self, message: Mapping[str, Any]) -> _LiveSandbox:
        live = self._sandboxes.get(str(message.get("id")))
        if live is None:
            raise BadInput(
                f"no live sandbox {str(message.get('id'))[:60]!r}",
                hint="It ended, timed out, or its supervisor was stopped. `cellwall ps` lists the "
                "live sandboxes; `cellwall create`, or keep_alive in Python, makes a new one.",
                code="CW-NO-SANDBOX",
            )
        return live

    async def _create(self, client: Conversation, message: Mapping[str, Any]) -> None:
        keep_alive_s = float(message["keep_alive_s"])
        if not 0 < keep_alive_s <= _MAX_LIFE_S:
            raise BadInput(
                "keep_alive is out of range", hint="Use seconds, at most seven days.",
                code="CW-BAD-KEEP-ALIVE",
            )  # fmt: skip
        spec = SandboxSpec(**message["spec"])
        app = await self._cache.take(message["config"], message["profile"], message["shaping"])
        try:
            host = await LocalHost.create(app, spec)
        except BaseException:
            self._cache.give_back(app)
            raise
        self._sandboxes[host.id] = _LiveSandbox(host, app, keep_alive_s)
        await client.send({"id": host.id})

    async def _perform(self, client: Conversation, message: Mapping[str, Any], blob: bytes) -> None:
        live = self._find(message)
        stdin_bytes = message["stdin"]
        stdin = None if stdin_bytes is None else blob[: int(stdin_bytes)]
        operation = decode_operation(message["operation"], blob[len(stdin or b"") :])

        async def work(tell: OutputSink) -> Outcome:
            def sink(name: Literal["stdout", "stderr"], chunk: bytes) -> None:
                live.append_log(chunk)
                if message["streams"]:
                    tell(name, chunk)

            return await live.host.perform(
                operation,
                timeout=message["timeout"],
                envs={str(k): str(v) for k, v in message["envs"].items()},
                stdin=stdin,
                sink=sink,
            )

        live.busy += 1
        live.calls += 1
        try:
            outcome = await perform_while_connected(client, work)
        finally:
            live.busy -= 1
            live.used_at = time.monotonic()
        if outcome is not None:
            sink = operation.sink if isinstance(operation, FileOperation) else None
            downloaded = sink.getvalue() if isinstance(sink, DownloadBuffer) else None
            body, data = encode_outcome(outcome, downloaded)
            await client.send({"outcome": body}, data)

    async def end_overdue(self) -> None:
        now = time.monotonic()
        for name, live in list(self._sandboxes.items()):
            if not live.busy and now - live.used_at > live.keep_alive_s:
                await self._end(name)

    async def _end(self, name: str) -> None:
        live = self._sandboxes.pop(name, None)
        if live is not None:
            try:
                await live.host.end()
            finally:
                self._cache.give_back(live.app)

    async def close(self) -> None:
        for name in list(self._sandboxes):
            try:
                await self._end(name)
            except Exception:  # noqa: BLE001  # the other sandboxes must end as well
                _log.exception("a sandbox did not end cleanly")
