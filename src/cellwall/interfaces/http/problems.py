"""Errors as responses: `{"error": {"code", "message", "hint", "audit_id"}}`, and their status."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from cellwall.config.debugging import shows_traces
from cellwall.core.errors import (
    AuditFailed,
    BadInput,
    Busy,
    CellwallError,
    ConfigError,
    Denied,
    EgressRefused,
    KeyFailed,
    LayerMissing,
    LimitExceeded,
    NotFound,
    SignInRefused,
    SkillRefused,
    StorageError,
    VaultError,
    WorkspaceError,
)
from cellwall.core.outcomes import ErrorInfo, Event, EventKind, Outcome, Status
from cellwall.core.text import plain
from cellwall.interfaces.http.service import service_of

# By code where one class holds several cases, else by class; the first match counts.
_BY_CODE = {
    "CW-NOT-FOUND": 404,
    "CW-NO-QUESTION": 404,
    "CW-NO-PROCESS": 404,
    "CW-SANDBOX-ENDED": 404,
    "CW-ALREADY-EXISTS": 409,
    "CW-NOT-EMPTY": 409,
    "CW-IN-USE": 409,
    "CW-NO-EFFECT": 409,
    "CW-MCP-REVIEW": 409,
    "CW-MCP-DAMAGED": 409,
    "CW-MCP-UNKNOWN": 404,
    "CW-WORKSPACE-FULL": 409,
    "CW-WORKSPACE-BUSY": 409,
    "CW-WORKSPACE-UNSEALED": 503,
    "CW-DISK-FULL": 409,
    "CW-FILE-TOO-LARGE": 413,
    "CW-APPROVAL-TAKEN": 409,
    "CW-APPROVAL-LATE": 409,
    "CW-ACCOUNT-NAME-TAKEN": 409,
    "CW-CANCELLED": 409,
    "CW-PRECONDITION": 412,
    "CW-TOO-LARGE": 413,
    "CW-HOST-LOST": 410,  # never 503, which clients repeat by themselves
    "CW-SESSION-RESTARTED": 409,  # likewise
    "CW-FLEET-UNKNOWN": 404,
    "CW-HOST": 421,
    "CW-ELSEWHERE": 421,
    "CW-IDEMPOTENCY": 422,
    "CW-RATE": 429,
    "CW-TOO-MANY-SESSIONS": 429,
    "CW-TOO-MANY-WAITING": 429,
    "CW-SIGN-IN-SLOW": 429,
}
_BY_CLASS: tuple[tuple[type[CellwallError], int], ...] = (
    (SignInRefused, 401),
    (NotFound, 404),
    (LimitExceeded, 429),
    (Denied, 403),
    (EgressRefused, 403),
    (SkillRefused, 403),
    (BadInput, 400),
    (WorkspaceError, 400),
    (VaultError, 409),
    (Busy, 503),
    (AuditFailed, 503),
    (LayerMissing, 503),
    (ConfigError, 503),
    (StorageError, 503),
    (KeyFailed, 503),
)
_RETRY_AFTER_S = 2
_OF_ROUTING = {
    404: ErrorInfo("CW-NOT-FOUND", "there is nothing at this address", "See /openapi.json."),
    405: ErrorInfo("CW-BAD-INPUT", "this address has no such method", "See /openapi.json."),
    413: ErrorInfo("CW-TOO-LARGE", "the body is too large", "Send less at once."),
}
_MALFORMED = ErrorInfo("CW-BAD-INPUT", "the request is malformed", "See /openapi.json.")
_INTERNAL = ErrorInfo(
    "CW-INTERNAL",
    "the service failed on this request",
    "Try again; the log of the service tells why.",
)


def status_of(error: CellwallError) -> int:
    """The status code of an error."""
    found = _BY_CODE.get(error.code)
    if found is not None:
        return found
    return next((status for kind, status in _BY_CLASS if isinstance(error, kind)), 500)


def problem(
    info: ErrorInfo, status: int, *, audit_id: str = "", retry_after_s: int = _RETRY_AFTER_S
) -> JSONResponse:
    """The response for an error."""
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="cellwall"'
    if status in {429, 503}:
        headers["Retry-After"] = str(retry_after_s)
    body = plain({**info.to_json(), "audit_id": audit_id})
    return JSONResponse({"error": body}, status_code=status, headers=headers)


def raise_for_refusal(outcome: Outcome) -> Outcome:
    """For operations whose result is not an outcome: a refusal becomes an error response."""
    if outcome.status in {Status.DENIED, Status.ERROR}:
        try:
            outcome.raise_for_status()
        except CellwallError as error:
            raise RefusedOutcome(outcome, error) from None
    return outcome


class RefusedOutcome(Exception):
    """A refused action, with the id of its audit record."""

    def __init__(self, outcome: Outcome, error: CellwallError) -> None:
        super().__init__(error.message)
        self.audit_id = outcome.audit_id
        self.error = error


def install_handlers(api: FastAPI) -> None:
    """Every exception becomes a response of the one form; none shows a trace (ERR-1)."""

    @api.exception_handler(CellwallError)
    async def _known(request: Request, error: CellwallError) -> JSONResponse:
        try:
            audit_id = await record_denial(request, error)
        except AuditFailed as failure:
            error, audit_id = failure, ""
        retry_after_s = math.ceil(getattr(error, "retry_after_s", _RETRY_AFTER_S))
        return problem(
            _info(request, error), status_of(error), audit_id=audit_id, retry_after_s=retry_after_s
        )

    @api.exception_handler(RefusedOutcome)
    async def _refused(request: Request, refused: RefusedOutcome) -> JSONResponse:
        info = _info(request, refused.error)
        retry_after_s = math.ceil(info.retry_after_s or _RETRY_AFTER_S)
        return problem(
            info, status_of(refused.error), audit_id=refused.audit_id, retry_after_s=retry_after_s
        )

    @api.exception_handler(RequestValidationError)
    async def _malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        return problem(ErrorInfo("CW-BAD-INPUT", _sentence(error), "See /openapi.json."), 400)

    @api.exception_handler(HTTPException)
    async def _of_routing(_: Request, error: HTTPException) -> JSONResponse:
        return problem(_OF_ROUTING.get(error.status_code, _MALFORMED), error.status_code)

    @api.exception_handler(Exception)
    async def _unknown(_: Request, error: Exception) -> JSONResponse:
        if shows_traces():
            sys.excepthook(type(error), error, error.__traceback__)
        return problem(_INTERNAL, 500)


def _info(request: Request, error: CellwallError) -> ErrorInfo:
    """For a person at a terminal some messages name a file; a client must not see its path."""
    hide = service_of(request).paths.hide_in
    info = ErrorInfo.of(error)
    return replace(info, message=hide(info.message), hint=hide(info.hint))


async def record_denial(request: Request, error: CellwallError) -> str:
    """Every denial of a caller is an event (AUD-1); those of actions are recorded by the runtime.
    Without a caller it is not recorded: a flood of such requests would fill the record."""
    caller = getattr(request.state, "caller", None)
    if not isinstance(error, Denied) or caller is None:
        return ""
    route = request.scope.get("route")
    body = {
        "verdict": "deny",
        "method": request.method,
        "route": getattr(route, "path", ""),
        "code": error.code,
        "error_code": error.code,
        "message": error.message,
    }
    event = Event(EventKind.DENIAL, "", caller.principal.name, "http", dict(body))
    return await service_of(request).app.audit.record(event)


def _sentence(error: RequestValidationError) -> str:
    """The first mistake. Without the value: it may be a secret."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"][:4])
    return f"{place[:120]}: {str(first['msg'])[:200]}"
