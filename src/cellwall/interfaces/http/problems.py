"""Errors as responses: `{"error": {"code", "message", "hint", "audit_id"}}`, and their status."""

from __future__ import annotations

import sys

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
    LayerMissing,
    SkillRefused,
    Unauthenticated,
    VaultError,
    WorkspaceError,
)
from cellwall.core.outcomes import ErrorInfo, Outcome, Status

# By code where one class holds several cases, else by class; the first match counts.
_BY_CODE = {
    "CW-NO-SANDBOX": 404,
    "CW-NO-RUN": 404,
    "CW-NO-QUESTION": 404,
    "CW-SANDBOX-ENDED": 404,
    "CW-FILE-MISSING": 404,
    "CW-TOO-LARGE": 413,
    "CW-PRECONDITION": 412,
    "CW-IDEMPOTENCY": 422,
    "CW-RATE": 429,
    "CW-HOST": 421,
}
_BY_CLASS: tuple[tuple[type[CellwallError], int], ...] = (
    (Unauthenticated, 401),
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
)
_RETRY_AFTER_S = "2"
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


def problem(info: ErrorInfo, status: int, *, audit_id: str = "") -> JSONResponse:
    """The response for an error."""
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="cellwall"'
    if status in {429, 503}:
        headers["Retry-After"] = _RETRY_AFTER_S
    return JSONResponse(
        {"error": {**info.to_json(), "audit_id": audit_id}}, status_code=status, headers=headers
    )


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
    async def _known(_: Request, error: CellwallError) -> JSONResponse:
        return problem(ErrorInfo.of(error), status_of(error))

    @api.exception_handler(RefusedOutcome)
    async def _refused(_: Request, refused: RefusedOutcome) -> JSONResponse:
        info = ErrorInfo.of(refused.error)
        return problem(info, status_of(refused.error), audit_id=refused.audit_id)

    @api.exception_handler(RequestValidationError)
    async def _malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        return problem(ErrorInfo("CW-BAD-INPUT", _sentence(error), "See /openapi.json."), 400)

    @api.exception_handler(HTTPException)
    async def _of_routing(_: Request, error: HTTPException) -> JSONResponse:
        texts = {404: "there is nothing at this address", 405: "this address has no such method"}
        text = texts.get(error.status_code, "the request was refused")
        return problem(ErrorInfo("CW-BAD-INPUT", text, "See /openapi.json."), error.status_code)

    @api.exception_handler(Exception)
    async def _unknown(_: Request, error: Exception) -> JSONResponse:
        if shows_traces():
            sys.excepthook(type(error), error, error.__traceback__)
        return problem(_INTERNAL, 500)


def _sentence(error: RequestValidationError) -> str:
    """The first mistake. Without the value: it may be a secret."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"][:4])
    return f"{place[:120]}: {str(first['msg'])[:200]}"
