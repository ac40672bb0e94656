"""`/healthz`, `/readyz` and the public keys: for load balancers and verifiers, without a token.

They are served below `/v1` and at the root. Ready means checked, not configured: the database
answers, and a cell was made and ended by an action that was judged and recorded.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from cellwall.interfaces.http.bodies import ERRORS
from cellwall.interfaces.http.bodies.lookups import Health, Readiness
from cellwall.interfaces.http.service import CurrentService

routes = APIRouter(tags=["health"], responses={code: ERRORS[code] for code in (400, 421, 503)})


@routes.get("/healthz")
async def healthz() -> Health:
    """The process serves requests."""
    return Health(status="ok")


@routes.get("/readyz", responses={503: {"model": Readiness, "description": "Not ready."}})
async def readyz(service: CurrentService, response: Response) -> Readiness:
    """The service can do its work: database, audit log, sandbox."""
    found = await service.readiness.check()
    response.status_code = 200 if found.status == "ready" else 503
    return found


@routes.get("/.well-known/jwks.json")
async def jwks(service: CurrentService, response: Response) -> dict[str, Any]:
    """The public keys of access tokens."""
    response.headers["Cache-Control"] = "public, max-age=60"
    return dict(await service.accounts.jwks())
