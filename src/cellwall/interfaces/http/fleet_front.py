"""The front of a fleet: an ASGI application that decides nothing but the host of a request.

It keeps no state of its own. Who the caller is, what the caller may do and what is recorded is
decided by the host, as without a fleet. For a session whose host is lost another host is asked:
only it can tell the owner of the session from everybody else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio

from cellwall.admin.fleet import (
    AnswerBroken,
    FleetPort,
    Held,
    HostLost,
    HostState,
    Message,
    Receive,
    RequestBodies,
    Scope,
    Send,
    Wish,
    host_lost,
)
from cellwall.core.errors import BadInput, Busy, CellwallError, SignInRefused
from cellwall.core.limits import parse_size
from cellwall.interfaces.http.checked_route import check_json
from cellwall.interfaces.http.fleet_answers import BufferedResponse, merged, with_body
from cellwall.interfaces.http.fleet_passing import (
    INTERNAL_CLOSE,
    SessionOffer,
    naming,
    refuse,
    telling,
)
from cellwall.interfaces.http.fleet_routing import (
    LABELS_HEADER,
    MCP_SESSION,
    Target,
    is_id,
    labels_of,
    scraped_host,
    target_of,
    without_host,
)
from cellwall.interfaces.http.gate import MAX_UNKNOWN_BYTES

_KNOWN, _UNKNOWN = 200, 401
_WHO = frozenset({b"host", b"cookie"})


class FleetFront:
    """ASGI application over a `FleetPort`."""

    def __init__(self, fleet: FleetPort, bodies: RequestBodies, *, max_body_bytes: int) -> None:
        """`max_body_bytes`: of a body that a host parses."""
        self._fleet, self._bodies, self._max_body_bytes = fleet, bodies, max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        has_begun = False

        async def begin(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._route(scope, receive, begin)
        except AnswerBroken:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": INTERNAL_CLOSE})
                return
            raise  # uvicorn closes the connection: the client sees that the answer is not whole
        except CellwallError as error:
            if has_begun:
                raise
            await refuse(error, scope, receive, send)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        target = target_of(scope.get("method", "GET"), scope["path"], headers)
        if scraped := scraped_host(scope["path"], scope.get("query_string", b"")):
            target, scope = Target("any", scraped), {**scope, "query_string": b""}
        match target.kind:
            case "session" | "approval":
                await self._to_holder(target, scope, receive, send)
            case "new":
                await self._to_new(scope, receive, send)
            case "all":
                await self._to_all(scope, send)
            case "snapshot":
                await self._to_snapshot(target.name, scope, receive, send)
            case "mcp":
                await self._to_mcp(target.name, scope, receive, send)
            case "vault":
                keepers = [host.id for host in await self._live_hosts() if host.keeps_vault]
                chosen = keepers[0] if len(keepers) == 1 else await self._any(scope)
                await self._call(chosen, scope, receive, send)
            case "any":
                await self._call(await self._any(scope, target.name), scope, receive, send)

    async def _call(self, host_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        await self._fleet.call(host_id, scope, receive, send)

    async def _live_hosts(self) -> Sequence[HostState]:
        return [host for host in await self._fleet.list() if not host.is_lost]

    async def _any(self, scope: Scope, named: str = "") -> str:
        """The named host; else one that stays the same for a caller while the hosts stay."""
        live = await self._live_hosts()
        if named:
            if all(host.id != named for host in live):
                raise BadInput(
                    "there is no such host in the fleet",
                    hint="Leave Cellwall-Host out; `cellwall fleet status` shows the hosts.",
                    code="CW-FLEET-UNKNOWN",
                )
            return named
        if not live:
            return await self._fleet.standby()  # raises with the reason
        headers = dict(scope["headers"])
        shown = headers.get(b"authorization") or headers.get(b"x-api-key") or b""
        shown = shown or headers.get(b"cookie") or str((scope.get("client") or [""])[0]).encode()
        return max(live, key=lambda host: hashlib.sha256(host.id.encode() + shown).digest()).id

    async def _roomy(self, scope: Scope, labels: Mapping[str, str]) -> str:
        """For a session of a lost host, which may start again on the host that is asked: one with
        the labels that the session has asked for, or one that refuses."""
        try:
            return await self._fleet.place(Wish(labels=labels))
        except Busy:
            return await self._any(scope)

    async def _to_holder(self, target: Target, scope: Scope, receive: Receive, send: Send) -> None:
        kind: Held = "approval" if target.kind == "approval" else "session"
        place = await self._fleet.find(kind, target.name)
        if place is None or place.is_lost:
            other = await (self._any(scope) if place is None else self._roomy(scope, place.labels))
            lost = None if place is None else host_lost()
            await self._call(other, scope, receive, telling(lost, scope, receive, send))
            return
        await self._call(place.host_id, scope, receive, send)

    async def _to_new(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._fleet.is_claiming and not await self._is_known(scope):
            await self._call(await self._any(scope), scope, receive, send)  # refused there
            return
        headers = dict(scope["headers"])
        async with self._bodies.read(scope, receive) as body:
            wish, lost = await self._wish(scope, headers, body)
        while True:
            host_id = await self._place(wish, scope)
            answer = naming(host_id, send) if scope["path"] == "/mcp" else send
            offer = SessionOffer(telling(lost, scope, receive, answer))
            try:
                await self._call(host_id, scope, with_body(body, receive), offer.take)
            except HostLost as error:
                if error.was_sent:  # a session may be there: nothing is executed twice
                    raise
                offer.is_refused = True
            except BaseException:
                if not offer.has_begun:
                    with anyio.CancelScope(shield=True):
                        await self._fleet.release(host_id)
                raise
            if not offer.has_begun:
                await self._fleet.release(host_id)
            if not offer.is_refused:
                return
            # It has begun to drain, or is lost, and the look of the front at it is older.
            wish = replace(wish, avoided=wish.avoided | {host_id})

    async def _place(self, wish: Wish, scope: Scope) -> str:
        """The host for a new session. Why none fits is told to known callers alone: strangers could
        ask for the labels of hosts, and so for the names of tenants."""
        try:
            return await self._fleet.place(wish)
        except Busy:
            if await self._ask_about_caller(scope) == _UNKNOWN:
                raise SignInRefused(
                    "this request bears no valid access token",
                    hint="Send `Authorization: Bearer TOKEN`; POST /v1/auth/token gives a token.",
                ) from None
            raise

    async def _is_known(self, scope: Scope) -> bool:
        """Whether a host knows the caller. A sandbox is claimed and a large body is parsed for
        known callers alone: strangers could empty the pool by asking for sessions that are refused
        later, and stop the front for seconds."""
        return await self._ask_about_caller(scope) == _KNOWN

    async def _ask_about_caller(self, scope: Scope) -> int:
        """The status of the answer; others than these two tell nothing about the caller."""
        asked = _about_caller(scope, "/v1/auth/session")
        answer = BufferedResponse()
        await self._call(await self._any(asked), asked, with_body(b""), answer.take)
        return answer.status

    async def _wish(
        self, scope: Scope, headers: Mapping[bytes, bytes], body: bytes
    ) -> tuple[Wish, CellwallError | None]:
        """From the body as far as it can be read; the host refuses what is malformed. Also what its
        owner is told where the kept session that it names was on a lost host."""
        asked = await self._asked(scope, body)
        labels = labels_of(headers)
        if headers.get(LABELS_HEADER) and not labels:
            raise BadInput(
                "Cellwall-Labels has no label", hint="Write for example: region=eu, gpu=a100"
            )
        host_id, lost = await self._nearest(scope, asked)
        wish = Wish(
            memory_bytes=_size(asked.get("memory")),
            template=_text(asked.get("template") or asked.get("templateID")) or "python",
            labels=labels,
            host_id=host_id,
        )
        return wish, lost

    async def _asked(self, scope: Scope, body: bytes) -> Mapping[str, Any]:
        """The JSON of a body; empty where the host refuses the body, as one that it would not
        parse on its event loop either."""
        try:
            if len(body) > MAX_UNKNOWN_BYTES:
                if len(body) > self._max_body_bytes or not await self._is_known(scope):
                    return {}
                check_json(body)
            asked = json.loads(body or b"{}")
        except (BadInput, ValueError, RecursionError):
            return {}
        return asked if isinstance(asked, dict) else {}

    async def _nearest(
        self, scope: Scope, asked: Mapping[str, Any]
    ) -> tuple[str, CellwallError | None]:
        """The host that has the files of a kept session or a snapshot; any where none is named, or
        where it is lost: only a host can tell the owner from everybody else."""
        if is_id(resumed := _text(asked.get("resume"))):
            place = await self._fleet.find("session", resumed)
            if place is not None and place.is_lost:
                return "", host_lost()
            return "" if place is None else place.host_id, None
        snapshot = _text(asked.get("from_snapshot")) or _text(asked.get("templateID"))
        return await self._find_snapshot(snapshot, scope) if is_id(snapshot) else "", None

    async def _find_snapshot(self, name: str, scope: Scope) -> str:
        asked = _about_caller(scope, f"/v1/snapshots/{name}")
        for host_id, answer in (await self._ask_all(asked)).items():
            if answer.status == 200:
                return host_id
        return ""

    async def _to_snapshot(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        host_id = await self._find_snapshot(name, scope)
        await self._call(host_id or await self._any(scope), scope, receive, send)

    async def _to_mcp(self, host_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        """A session of a lost host is unknown to all others, and then the client begins anew."""
        live = {host.id for host in await self._live_hosts()}
        headers = [
            (name, without_host(value) if name == MCP_SESSION else value)
            for name, value in scope["headers"]
        ]
        chosen = host_id if host_id in live else await self._any(scope)
        await self._call(chosen, {**scope, "headers": headers}, receive, naming(chosen, send))

    async def _to_all(self, scope: Scope, send: Send) -> None:
        answers = await self._ask_all(scope)
        if not answers:
            await self._fleet.place(Wish())  # raises with the reason
        await merged(scope, list(answers.values())).send(send)

    async def _ask_all(self, scope: Scope) -> dict[str, BufferedResponse]:
        """The answer of each live host; one that is lost meanwhile has none."""
        found: dict[str, BufferedResponse] = {}

        async def ask(host_id: str) -> None:
            answer = BufferedResponse()
            try:
                await self._call(host_id, dict(scope), with_body(b""), answer.take)
            except (CellwallError, AnswerBroken):
                return
            found[host_id] = answer

        async with anyio.create_task_group() as tasks:
            for host in await self._live_hosts():
                tasks.start_soon(ask, host.id)
        return dict(sorted(found.items()))


def _about_caller(scope: Scope, path: str) -> Scope:
    """Another question of the same caller, who is known by a token or a cookie."""
    headers = dict(scope["headers"])
    bearer = headers.get(b"authorization") or b"Bearer " + headers.get(b"x-api-key", b"")
    shown = [(name, value) for name, value in scope["headers"] if name in _WHO]
    if bearer != b"Bearer ":
        shown.append((b"authorization", bearer))
    asked: Scope = {**scope, "method": "GET", "path": path, "headers": shown}
    asked["raw_path"], asked["query_string"] = path.encode(), b""
    return asked


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def _text(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= 100 else ""


def _size(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return 0
    try:
        return parse_size(value) if isinstance(value, str) else max(0, value)
    except (CellwallError, ValueError):
        return 0
