"""The sandboxes that live in a supervisor, reached by any process of the same user."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import anyio

from cellwall.core.errors import BadInput
from cellwall.core.outcomes import Outcome
from cellwall.core.types import Json, OutputSink
from cellwall.interfaces.sdk.asynchronous import AsyncSandbox
from cellwall.interfaces.supervisor.codec import decode_operation, encode_outcome
from cellwall.interfaces.supervisor.conversation import followed
from cellwall.interfaces.supervisor.runtime_cache import Houses
from cellwall.runtime.wiring import House

if TYPE_CHECKING:
    from cellwall.interfaces.supervisor.server import Conversation

_log = logging.getLogger("cellwall.supervisor")
_LOG_BYTES = 256 * 1024
_MAX_LIFE_S = 7 * 86_400.0


@dataclass(slots=True)
class _Resident:
    sandbox: AsyncSandbox
    house: House
    keep_alive_s: float
    made_s: float = field(default_factory=time.time)
    used_at: float = field(default_factory=time.monotonic)
    busy: int = 0
    calls: int = 0
    log: deque[bytes] = field(default_factory=deque)
    log_bytes: int = 0

    def note(self, data: bytes) -> None:
        """The end of what was said, as a log that turns over."""
        self.log.append(data)
        self.log_bytes += len(data)
        while self.log_bytes > _LOG_BYTES and len(self.log) > 1:
            self.log_bytes -= len(self.log.popleft())


class Residents:
    """By id. An id that is not here answers like one that never was."""

    def __init__(self, houses: Houses) -> None:
        self._houses = houses
        self._residents: dict[str, _Resident] = {}

    @property
    def count(self) -> int:
        return len(self._residents)

    def listed(self) -> list[Json]:
        now = time.monotonic()
        return [
            {
                "id": name,
                "made_s": resident.made_s,
                "idle_s": round(now - resident.used_at, 1),
                "ends_in_s": round(resident.keep_alive_s - (now - resident.used_at), 1),
                "is_busy": resident.busy > 0,
                "calls": resident.calls,
            }
            for name, resident in self._residents.items()
        ]

    async def dispatch(self, talk: Conversation, message: Mapping[str, Any], blob: bytes) -> None:
        match message.get("do"):
            case "create":
                await self._create(talk, message)
            case "attach":
                resident = self._find(message)
                resident.used_at = time.monotonic()
                await talk.send({"id": message["id"], "keep_alive_s": resident.keep_alive_s})
            case "perform":
                await self._perform(talk, message, blob)
            case "logs":
                await talk.send({"log": True}, b"".join(self._find(message).log))
            case "kill":
                self._find(message)
                await self._end(str(message["id"]))
                await talk.send({"killed": message["id"]})
            case _:
                raise BadInput("the supervisor was asked for something it does not know")

    def _find(self, message: Mapping[str, Any]) -> _Resident:
        found = self._residents.get(str(message.get("id")))
        if found is None:
            raise BadInput(
                f"no sandbox {str(message.get('id'))[:60]!r} lives in the supervisor",
                hint="It ended, timed out, or its supervisor was stopped; create a new one with "
                "keep_alive. `cellwall ps` lists those that live.",
                code="CW-NO-SANDBOX",
            )
        return found

    async def _create(self, talk: Conversation, message: Mapping[str, Any]) -> None:
        keep_alive_s = float(message["keep_alive_s"])
        if not 0 < keep_alive_s <= _MAX_LIFE_S:
            raise BadInput(
                "keep_alive is out of range", hint="Use seconds, at most seven days.",
                code="CW-BAD-KEEP-ALIVE",
            )  # fmt: skip
        options = dict(message["options"])
        shaping = {str(name): str(value) for name, value in message["shaping"].items()}
        config, profile = options.pop("config", None), options.pop("profile", None)
        house = await anyio.to_thread.run_sync(self._houses.take, config, profile, shaping)
        try:
            sandbox = await AsyncSandbox.create_in(house, **options)
        except BaseException:
            self._houses.give_back(house)
            raise
        self._residents[sandbox.id] = _Resident(sandbox, house, keep_alive_s)
        await talk.send({"id": sandbox.id})

    async def _perform(self, talk: Conversation, message: Mapping[str, Any], blob: bytes) -> None:
        resident = self._find(message)
        stdin_bytes = message["stdin"]
        stdin = None if stdin_bytes is None else blob[: int(stdin_bytes)]
        operation = decode_operation(message["operation"], blob[len(stdin or b"") :])

        async def work(tell: OutputSink) -> Outcome:
            def sink(name: Literal["stdout", "stderr"], chunk: bytes) -> None:
                resident.note(chunk)
                if message["streams"]:
                    tell(name, chunk)

            return await resident.sandbox.perform_raw(
                operation,
                timeout=message["timeout"],
                envs={str(k): str(v) for k, v in message["envs"].items()},
                stdin=stdin,
                sink=sink,
            )

        resident.busy += 1
        resident.calls += 1
        try:
            outcome = await followed(talk, work)
        finally:
            resident.busy -= 1
            resident.used_at = time.monotonic()
        if outcome is not None:
            body, data = encode_outcome(outcome, operation)
            await talk.send({"outcome": body}, data)

    async def end_overdue(self) -> None:
        now = time.monotonic()
        for name, resident in list(self._residents.items()):
            if not resident.busy and now - resident.used_at > resident.keep_alive_s:
                await self._end(name)

    async def _end(self, name: str) -> None:
        resident = self._residents.pop(name, None)
        if resident is not None:
            try:
                await resident.sandbox.kill()
            finally:
                self._houses.give_back(resident.house)

    async def close(self) -> None:
        for name in list(self._residents):
            try:
                await self._end(name)
            except Exception:  # noqa: BLE001  # the others have to end as well
                _log.exception("a sandbox could not be ended in order")
