"""`/v1/sessions/{id}/terminal`: a program on a terminal of the sandbox, over a WebSocket.

    client  {"token": "…", "rows": 24, "columns": 80}      the first message; the token is never in
                                                           the address, which logs keep
    client  bytes: typed        {"rows": 40, "columns": 120}: a new size
    server  bytes: output       {"exit_code": 0} or {"error": {…}}, then it closes

Every message of the client is an action of its own: judged and recorded. The token is verified for
each of them and for each read, so that a revoked one ends the terminal. The handshake has passed
the checks of Host and Origin; a page with cookies sends its CSRF token in place of a token.
"""

from __future__ import annotations

import hmac
import json
import logging
import signal
import time
from contextlib import suppress
from typing import Any

import anyio
from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from cellwall.admin.accounts import Identity
from cellwall.core.errors import BadInput, CellwallError, SignInRefused
from cellwall.core.outcomes import ErrorInfo, Outcome
from cellwall.core.types import TERMINAL_SHELL, ProcessInfo, ProcessOperation, RunCommand
from cellwall.core.users_inside import parse_user
from cellwall.interfaces.cli.interactive import ScreenFilter
from cellwall.interfaces.http.callers import (
    INTERFACE,
    address_of,
    authenticate,
    csrf_token,
)
from cellwall.interfaces.http.cookies import ACCESS_COOKIE
from cellwall.interfaces.http.owned_sandbox import OwnedSandbox
from cellwall.interfaces.http.service import Service, service_of
from cellwall.interfaces.sdk.commands import COLUMNS, ROWS
from cellwall.interfaces.sdk.execution import argv_of
from cellwall.interfaces.supervisor.codec import Operation

routes = APIRouter()
_log = logging.getLogger("cellwall.http")
_FIRST_WITHIN_S = 10.0
_FOLLOW_S = 5.0
_MAX_MESSAGE = 65_536
MAX_FRAME_BYTES = 2 * _MAX_MESSAGE
"""What the server reads at all; between both, a client gets a reason."""
_MAX_SIDE = 1000
_POLICY_VIOLATION, _INTERNAL_ERROR = 1008, 1011
_FAILED = ErrorInfo("CW-INTERNAL", "the service failed on this terminal", "Try again.")


@routes.websocket("/sessions/{session_id}/terminal")
async def terminal(socket: WebSocket, session_id: str) -> None:
    """Serve one terminal until its program or its client ends."""
    await socket.accept()
    info, code = _FAILED, _INTERNAL_ERROR
    try:
        await _TerminalSocket(socket, service_of(socket)).serve(session_id)
    except WebSocketDisconnect:
        return
    except CellwallError as error:
        info, code = ErrorInfo.of(error), _POLICY_VIOLATION
    except Exception as error:  # noqa: BLE001  # a client gets no trace (ERR-1)
        _log.error("a terminal failed: %s", type(error).__name__)
    else:
        with suppress(RuntimeError):  # closed by the client meanwhile
            await socket.close()
        return
    with suppress(RuntimeError, WebSocketDisconnect):
        await socket.send_text(json.dumps({"error": {**info.to_json(), "audit_id": ""}}))
        await socket.close(code)


class _TerminalSocket:
    def __init__(self, socket: WebSocket, service: Service) -> None:
        self._socket = socket
        self._service = service
        self._screen = ScreenFilter()
        self._token = ""
        self._sandbox: OwnedSandbox
        self._who: Identity
        self._process = 0
        self._active_at = time.monotonic()

    async def serve(self, session_id: str) -> None:
        with anyio.move_on_after(_FIRST_WITHIN_S):
            start = _parsed(await self._receive())
            self._token = self._token_of(start)
        if not self._token:
            raise SignInRefused(
                "the first message bears no token",
                hint='Send {"token": "…"} within 10 seconds.',
                code="CW-SIGN-IN-MISSING",
            )
        identity = await self._identity()
        with self._service.waiting.counted(identity.user_id):
            await self._run(identity, session_id, start)

    async def _run(self, identity: Identity, session_id: str, start: dict[str, Any]) -> None:
        self._sandbox = await self._service.sandboxes.find(identity, session_id)
        command = argv_of(start.get("command", TERMINAL_SHELL))
        if not all(isinstance(word, str) for word in command):
            raise BadInput("a command is a text or a list of texts")
        size = _size(start) or (ROWS, COLUMNS)
        user = start.get("user")
        operation = RunCommand(command, background=True, terminal=size, user=parse_user(user))
        outcome = await self._perform(operation, envs={"TERM": "xterm-256color"})
        assert isinstance(outcome.payload, ProcessInfo)  # noqa: S101  # of a background program
        self._process = outcome.payload.id
        try:
            await self._until_end()
        finally:
            with anyio.CancelScope(shield=True), suppress(CellwallError):
                await self._end()

    def _token_of(self, start: dict[str, Any]) -> str:
        token, csrf = start.get("token", ""), start.get("csrf_token", "")
        if isinstance(token, str) and token:
            return token
        cookie = ACCESS_COOKIE.read(self._socket, self._service)
        is_right = isinstance(csrf, str) and hmac.compare_digest(
            csrf.encode("utf-8", "replace"), csrf_token(cookie).encode()
        )
        return cookie if cookie and is_right else ""

    async def _until_end(self) -> None:
        failures: list[Exception] = []
        async with anyio.create_task_group() as tasks:

            async def only(work: Any) -> None:  # noqa: ANN401  # one of two methods
                """The first task that ends or fails ends both."""
                try:
                    await work()
                except Exception as error:  # noqa: BLE001  # raised below, not as a group
                    failures.append(error)
                tasks.cancel_scope.cancel()

            tasks.start_soon(only, self._show)
            tasks.start_soon(only, self._forward)
        if failures:
            raise failures[0]

    async def _show(self) -> None:
        while True:
            outcome = await self._perform(
                ProcessOperation("follow", self._process), timeout=_FOLLOW_S
            )
            await self._send(outcome.stdout_bytes)
            info = outcome.payload
            if not isinstance(info, ProcessInfo) or not info.is_running:
                rest = await self._perform(ProcessOperation("read", self._process))
                await self._send(rest.stdout_bytes)
                code = info.exit_code if isinstance(info, ProcessInfo) else None
                await self._socket.send_text(json.dumps({"exit_code": code}))
                return
            if time.monotonic() - self._active_at > self._sandbox.keep_alive_s:
                raise BadInput("nothing was typed or shown for too long", code="CW-TERMINAL-IDLE")

    async def _forward(self) -> None:
        while True:
            message = await self._receive()
            self._active_at = time.monotonic()
            if isinstance(message, bytes):
                await self._type(message)
                continue
            size = _size(_parsed(message))
            if size is None:
                raise BadInput("a text is a JSON object with rows and columns")
            await self._perform(ProcessOperation("resize", self._process, size=size))

    async def _type(self, data: bytes) -> None:
        try:
            await self._perform(ProcessOperation("write", self._process, data))
        except CellwallError as error:
            if error.code == "CW-NO-STDIN":  # the program has ended; `_show` shows the rest
                await anyio.sleep_forever()
            if error.code != "CW-STDIN-SLOW":
                raise
            await self._socket.send_bytes(b"\a")  # the input inside is full, as on a real terminal

    async def _receive(self) -> bytes | str:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        data: bytes | str = message.get("bytes") or message.get("text") or b""
        if len(data) > _MAX_MESSAGE:
            raise BadInput(f"a message has at most {_MAX_MESSAGE} bytes", code="CW-TOO-LARGE")
        return data

    async def _send(self, data: bytes) -> None:
        if shown := self._screen.feed(data):
            self._active_at = time.monotonic()
            await self._socket.send_bytes(shown)

    async def _perform(
        self,
        operation: Operation,
        *,
        timeout: float | None = None,
        envs: dict[str, str] | None = None,
    ) -> Outcome:
        self._who = await self._identity()
        outcome = await self._sandbox.perform(
            self._who.principal(INTERFACE), operation, timeout=timeout, envs=envs
        )
        if outcome.error is not None:
            raise outcome.error.to_exception()
        return outcome

    async def _identity(self) -> Identity:
        return await authenticate(self._service, self._token, address=address_of(self._socket))

    async def _end(self) -> None:
        """The terminal is gone, and its program ends; also where the token does not count now."""
        operation = ProcessOperation("signal", self._process, number=signal.SIGKILL)
        await self._sandbox.perform(self._who.principal(INTERFACE), operation)


def _parsed(message: bytes | str) -> dict[str, Any]:
    try:
        found = json.loads(message)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BadInput("a text is a JSON object")
    return found


def _size(message: dict[str, Any]) -> tuple[int, int] | None:
    rows, columns = message.get("rows"), message.get("columns")
    sides = (rows, columns)
    if not all(type(side) is int and 0 < side <= _MAX_SIDE for side in sides):
        return None
    return int(str(rows)), int(str(columns))
