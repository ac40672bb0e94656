"""`/v1/alerts`: alerts from the audit log, and silences. Receivers and rules are configured on the
host: a client that could change them could send the record elsewhere."""

from __future__ import annotations

from functools import partial

import anyio
from fastapi import APIRouter, Response

from cellwall.admin.alerts import AlertAdmin, alert_report
from cellwall.core.text import plain
from cellwall.core.types import Permission
from cellwall.interfaces.http.bodies import ERRORS
from cellwall.interfaces.http.bodies.alerts import AlertsPage, SilenceBody, SilenceRequest
from cellwall.interfaces.http.callers import CurrentCaller, require, require_person
from cellwall.interfaces.http.checked_route import CheckedRoute
from cellwall.interfaces.http.service import CurrentService, Service

routes = APIRouter(route_class=CheckedRoute, prefix="/alerts", tags=["alerts"], responses=ERRORS)


@routes.get("")
async def read_alerts(service: CurrentService, caller: CurrentCaller) -> AlertsPage:
    """What is pending, firing and resolved, silences, and delivery to receivers."""
    require(service, caller, Permission.AUDIT_READ)
    read = partial(alert_report, service.app.store.home, service.app.settings)
    report = await anyio.to_thread.run_sync(read, limiter=service.readers)
    return AlertsPage.model_validate(plain(report.to_json()))


@routes.post("/silences", status_code=201)
async def add_silence(
    service: CurrentService, caller: CurrentCaller, body: SilenceRequest
) -> SilenceBody:
    """Hold messages about a rule back. Recorded with who, why and until when."""
    require(service, caller, Permission.POLICY_WRITE)
    require_person(caller, "does not silence alerts")  # an agent may hold one
    silence = partial(
        _admin(service).silence,
        body.rule,
        group=str(plain(body.group)),
        for_s=body.for_s,
        reason=str(plain(body.reason)),
        by=caller.principal,
        is_remote=True,
    )
    made = await anyio.to_thread.run_sync(silence, limiter=service.readers)
    return SilenceBody.model_validate(made.to_json())


@routes.delete("/silences/{silence_id}", status_code=204)
async def end_silence(service: CurrentService, caller: CurrentCaller, silence_id: str) -> Response:
    """End a silence before its time."""
    require(service, caller, Permission.POLICY_WRITE)
    require_person(caller, "does not end silences")
    end = partial(_admin(service).unsilence, silence_id, by=caller.principal, is_remote=True)
    await anyio.to_thread.run_sync(end, limiter=service.readers)
    return Response(status_code=204)


def _admin(service: Service) -> AlertAdmin:
    return AlertAdmin(service.app.store.home, service.app.settings)
