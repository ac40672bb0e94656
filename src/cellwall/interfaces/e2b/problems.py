"""Errors in the three forms that the SDKs turn into their exceptions.

    REST    {"code": 404, "message": "…"} with the same status
    RPC     {"code": "not_found", "message": "…"}, see `connect_rpc`
    code    as REST; the code interpreter shows the text

A sandbox that is gone is 404 to the control plane, and to envd 502 with `was not found`: only that
text becomes `SandboxNotRunningException`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from cellwall.core.errors import AuditFailed, BadInput, CellwallError, LimitExceeded
from cellwall.interfaces.http.problems import RefusedOutcome, record_denial, status_of
from cellwall.interfaces.http.service import service_of

_STATUS = {
    "CW-KEY-REUSED": 409,
    "CW-NOT-OFFERED": 501,
    "CW-SANDBOX-ENDED": 502,
    "CW-WORKSPACE-FULL": 507,
    "CW-DISK-FULL": 507,
}
_CONNECT_CODES = {
    400: "invalid_argument",
    401: "unauthenticated",
    403: "permission_denied",
    404: "not_found",
    409: "failed_precondition",
    413: "invalid_argument",
    421: "unavailable",
    429: "resource_exhausted",
    501: "unimplemented",
    502: "unavailable",
    503: "unavailable",
    507: "failed_precondition",
}
_log = logging.getLogger("cellwall.http")
Handler = Callable[[Request], Awaitable[Response]]


class DeadlinePassed(Exception):
    """The time that the client gave its call is over."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as a client may see it."""

    status: int
    message: str
    connect_code: str
    retry_after_s: int | None = None

    def response(self) -> Response:
        headers = {}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(self.retry_after_s)
        elif self.status in {429, 503}:
            headers["Should-Retry"] = "false"  # the SDK would repeat the request four times
        body = {"code": self.status, "message": self.message}
        return JSONResponse(body, status_code=self.status, headers=headers)


def not_offered(what: str, reason: str) -> BadInput:
    """For a feature of E2B that the service does not have."""
    return BadInput(
        f"Cellwall does not offer {what}: {reason}",
        hint="The guide to E2B lists what is offered.",
        code="CW-NOT-OFFERED",
    )


def sandbox_gone() -> BadInput:
    """For requests to envd; the SDK looks for `was not found` in the text."""
    return BadInput("the sandbox was not found", hint="Create a new one.", code="CW-SANDBOX-ENDED")


async def problem_of(request: Request, error: Exception) -> Problem:
    """What to tell the client. A denial is recorded as with every other interface (AUD-1)."""
    match error:
        case RefusedOutcome(error=known):
            pass  # recorded by the runtime
        case CellwallError() as known:
            try:
                await record_denial(request, known)
            except AuditFailed as failure:
                known = failure
        case HTTPException(status_code=413):
            known = BadInput("the body is too large", hint="Send less.", code="CW-TOO-LARGE")
        case DeadlinePassed():
            return Problem(504, "the time of the call is over", "deadline_exceeded")
        case ClientDisconnect():
            known = BadInput("the client left before the end of its request")
        case _:
            _log.error("a request to /e2b failed: %s", type(error).__name__)  # no trace (ERR-1)
            return Problem(500, "the service failed on this request", "internal")
    status = _STATUS.get(known.code) or status_of(known)
    text = f"{known.message.rstrip('.')}. {known.hint}" if known.hint else known.message
    is_there = known.code in {"CW-ALREADY-EXISTS", "CW-NOT-EMPTY"}
    code = "already_exists" if is_there else _CONNECT_CODES.get(status, "internal")
    wait_s = math.ceil(known.retry_after_s) if isinstance(known, LimitExceeded) else None
    return Problem(status, service_of(request).paths.hide_in(text), code, wait_s)


def guarded(handler: Handler) -> Handler:
    """The handler, with every exception as a response of the REST form."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except Exception as error:  # noqa: BLE001  # a client gets no trace (ERR-1)
            return (await problem_of(request, error)).response()

    return handle
