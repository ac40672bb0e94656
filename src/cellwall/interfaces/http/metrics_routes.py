"""`/metrics` for Prometheus, and the middleware that watches every request (OBS-1)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import anyio
from fastapi import APIRouter, Response

from cellwall.core.telemetry import TelemetryPort
from cellwall.core.types import Permission
from cellwall.interfaces.http.bodies import ERRORS
from cellwall.interfaces.http.callers import CurrentCaller, require
from cellwall.interfaces.http.checked_route import CheckedRoute
from cellwall.interfaces.http.service import CurrentService
from cellwall.runtime.observing import metrics_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

routes = APIRouter(
    route_class=CheckedRoute,
    tags=["health"],
    responses={code: ERRORS[code] for code in (400, 401, 403, 421, 429, 503)},
)

_TEXT: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The metrics.",
        "content": {
            "text/plain": {
                "schema": {"type": "string"},
                "example": "# TYPE cellwall_actions_running gauge\ncellwall_actions_running 1.0\n",
            }
        },
    }
}


@routes.get("/metrics", response_class=Response, responses=_TEXT)
async def read_metrics(service: CurrentService, caller: CurrentCaller) -> Response:
    """All metrics in the Prometheus text format, for callers with `metrics:read`.

    A scraper needs a service token with this scope and no other.
    """
    require(service, caller, Permission.METRICS_READ)
    # In a thread: a scrape asks the pool, which may hold its lock while a cell is made.
    text, kind = await anyio.to_thread.run_sync(metrics_text, limiter=service.readers)
    return Response(text, media_type=kind)


class ObservedRequests:
    """ASGI middleware: counts and times requests, and continues the trace of their headers.

    The outermost one, so that requests refused by the others are counted, too. Paths are no labels:
    they hold ids and names that clients choose.
    """

    def __init__(self, app: ASGIApp, *, telemetry: TelemetryPort) -> None:
        self._app, self._telemetry = app, telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        with self._telemetry.request(_traceparent(scope["headers"])):
            if scope["type"] == "websocket":
                await self._app(scope, receive, send)
            else:
                await self._measure(scope, receive, send)

    async def _measure(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        status = 500  # of a request that ends without an answer

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note_status)
        finally:
            self._telemetry.note_http(scope["method"], status, time.perf_counter() - started)


def _traceparent(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The W3C header; empty if it is missing or came twice."""
    found = [value for name, value in headers if name == b"traceparent"]
    return found[0].decode("latin-1") if len(found) == 1 else ""
