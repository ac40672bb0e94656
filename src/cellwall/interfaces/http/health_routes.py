"""`/healthz`, `/readyz` and the public keys: for load balancers and verifiers, without a token.

They are served below `/v1` and at the root. Ready means checked, not configured: the database
answers, and a cell was made and ended by an action that was judged and recorded.
"""

from __future__ import annotations

import time
from typing import Any, Literal

import anyio
from fastapi import APIRouter, Response

from cellwall.core.errors import StorageError
from cellwall.core.outcomes import Status
from cellwall.core.types import Action, Principal, RunCommand
from cellwall.interfaces.http.bodies import ERRORS
from cellwall.interfaces.http.bodies.lookups import Health, Readiness
from cellwall.interfaces.http.sandboxes import default_policy
from cellwall.interfaces.http.service import CurrentService, Service

routes = APIRouter(tags=["health"], responses={code: ERRORS[code] for code in (400, 421, 503)})
_KEPT_S = 60.0
_WITHIN_S = 30.0
_WHO = Principal("readiness", "http", "user")


@routes.get("/healthz")
async def healthz() -> Health:
    """The process serves requests."""
    return Health(status="ok")


@routes.get("/readyz", responses={503: {"model": Readiness, "description": "Not ready."}})
async def readyz(service: CurrentService, response: Response) -> Readiness:
    """The service can do its work: database, audit log, sandbox."""
    found = await service.readiness.check(service)
    response.status_code = 200 if found.status == "ready" else 503
    return found


@routes.get("/.well-known/jwks.json")
async def jwks(service: CurrentService, response: Response) -> dict[str, Any]:
    """The public keys of access tokens."""
    response.headers["Cache-Control"] = "public, max-age=60"
    return dict(await service.accounts.jwks())


class ReadinessProbe:
    """Remembers its last result for a while, so that probes cannot load the host."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._cell: tuple[float, bool, bool] | None = None

    async def check(self, service: Service) -> Readiness:
        database = await _can_read(service)
        async with self._lock:
            if self._cell is None or time.monotonic() - self._cell[0] > _KEPT_S:
                audit, cell = await _can_run(service)
                # A failure is looked at again by the next probe.
                self._cell = (time.monotonic() if audit and cell else -_KEPT_S, audit, cell)
            _, audit, cell = self._cell
        is_open = not service.sandboxes.is_closed
        status: Literal["ready", "not ready"] = "not ready"
        if database and audit and cell and is_open:
            status = "ready"
        return Readiness(
            status=status, database=database, audit=audit, sandbox=cell, is_stopping=not is_open
        )


async def _can_read(service: Service) -> bool:
    try:
        with anyio.fail_after(_WITHIN_S):
            await service.store.find_session("", user_id="", teams=frozenset())
    except (StorageError, TimeoutError):
        return False
    return True


async def _can_run(service: Service) -> tuple[bool, bool]:
    """Whether the audit log takes records, and whether a cell can be made."""
    policy = default_policy(service.app)
    action = Action(
        principal=_WHO,
        operation=RunCommand(("true",)),
        limits=service.app.limits,
        policy=() if policy is None else (policy,),
    )
    with anyio.move_on_after(_WITHIN_S):
        outcome = await service.app.runtime.perform(action)
        code = outcome.error.code if outcome.error is not None else ""
        return code != "CW-AUDIT-FAILED", outcome.status is Status.OK
    return False, False
