"""What a front changes in the answers of hosts that it passes on, and its own refusals."""

from __future__ import annotations

import json

from cellwall.admin.fleet import Message, Receive, Scope, Send
from cellwall.core.errors import CellwallError
from cellwall.core.outcomes import ErrorInfo
from cellwall.interfaces.http.fleet_answers import BufferedResponse
from cellwall.interfaces.http.fleet_routing import MCP_SESSION, UNSERVED_HEADER, with_host
from cellwall.interfaces.http.problems import problem, status_of

_ELSEWHERE = 421
INTERNAL_CLOSE = 1011
_UNSERVED = UNSERVED_HEADER.encode()


class SessionOffer:
    """The answer of a host to a new session, passed on unless the host does not take it."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_refused = self.has_begun = False

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.is_refused = any(name == _UNSERVED for name, _ in message["headers"])
            self.has_begun = message["status"] < 300
        if not self.is_refused:
            await self._send(message)


def telling(lost: CellwallError | None, scope: Scope, receive: Receive, send: Send) -> Send:
    """Pass the answer of another host on; `CW-ELSEWHERE` of the owner becomes `lost`. Others have
    the same status: a request with a wrong Host is refused before its caller is known."""
    if lost is None:
        return send
    held = BufferedResponse()

    async def tell(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == _ELSEWHERE:
            await held.take(message)
        elif not held.status:
            await send(message)
        else:
            await held.take(message)
            if message.get("more_body", False):
                return
            if _code_of(held) == "CW-ELSEWHERE":
                await refuse(lost, scope, receive, send)
            else:
                await held.send(send)

    return tell


def _code_of(answer: BufferedResponse) -> str:
    try:
        return str(json.loads(answer.body)["error"]["code"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""


def naming(host_id: str, send: Send) -> Send:
    """The id of an MCP session names its host from here on."""

    async def name(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [
                (key, with_host(value, host_id) if key == MCP_SESSION else value)
                for key, value in message["headers"]
            ]
        await send(message)

    return name


async def refuse(error: CellwallError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request that no host answers."""
    if scope["type"] == "websocket":  # a call may have received its beginning
        await send({"type": "websocket.close", "code": INTERNAL_CLOSE})
        return
    await problem(ErrorInfo.of(error), status_of(error))(scope, receive, send)
