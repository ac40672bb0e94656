"""`/v1/stop`: the emergency stop, for administrators (OBS-3).

A service token with the scope may stop, for a monitor that sees an attack; to continue and to lift
takes a person.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

import anyio
from fastapi import APIRouter, Query

from cellwall.admin.emergency_stop import EmergencyStop
from cellwall.core.errors import CellwallError
from cellwall.core.types import Permission
from cellwall.interfaces.http.bodies import ERRORS
from cellwall.interfaces.http.bodies.stops import (
    Lifted,
    Reason,
    StopRequest,
    StopResult,
    StopStatusBody,
    Thawed,
)
from cellwall.interfaces.http.callers import Caller, CurrentCaller, require, require_person
from cellwall.interfaces.http.checked_route import CheckedRoute
from cellwall.interfaces.http.service import CurrentService, Service

Result = TypeVar("Result")
routes = APIRouter(route_class=CheckedRoute, prefix="/stop", tags=["stop"], responses=ERRORS)


@routes.get("")
async def read_stop(service: CurrentService, caller: CurrentCaller) -> StopStatusBody:
    """Whether a stop is in effect."""
    status = await _in_thread(_switch(service, caller).status)
    return StopStatusBody(
        is_stopped=status.is_stopped,
        by=status.by,
        reason=status.reason,
        since=status.since_s,
        cells=status.cells,
        frozen=status.frozen,
    )


@routes.post("")
async def stop_everything(
    service: CurrentService, caller: CurrentCaller, body: StopRequest
) -> StopResult:
    """End every sandbox of all users at once, and refuse new runs until the stop is lifted."""
    switch = _switch(service, caller)
    if body.revoke_tokens:  # refused as a whole, rather than done by half
        require(service, caller, Permission.USERS_MANAGE)
    report = await _in_thread(lambda: switch.stop(reason=body.reason, freeze=body.freeze))
    problems = list(report.problems)
    if body.revoke_tokens:
        try:
            await service.accounts.directory.revoke_everybody(by=caller.principal)
        except CellwallError as error:  # the sandboxes have ended; this must not hide it
            problems.append(f"the tokens were not revoked: {error.message}")
    return StopResult(
        cells=len(report.cells),
        processes=report.processes,
        left=list(report.left),
        took_s=report.took_s,
        problems=problems,
    )


@routes.post("/thaw")
async def thaw(service: CurrentService, caller: CurrentCaller) -> Thawed:
    """Continue suspended sandboxes; new runs stay refused."""
    switch = _switch(service, caller)
    require_person(caller, "does not continue suspended sandboxes")
    return Thawed(cells=len(await _in_thread(switch.thaw)))


@routes.delete("")
async def lift_stop(
    service: CurrentService, caller: CurrentCaller, reason: Annotated[Reason, Query()] = ""
) -> Lifted:
    """Accept new runs again."""
    switch = _switch(service, caller)
    require_person(caller, "does not lift a stop")
    return Lifted(lifted=await _in_thread(lambda: switch.lift(reason=reason)))


async def _in_thread(work: Callable[[], Result]) -> Result:
    """In a thread of its own: those for other work may all wait for suspended sandboxes."""
    return await anyio.to_thread.run_sync(work, limiter=anyio.CapacityLimiter(1))


def _switch(service: Service, caller: Caller) -> EmergencyStop:
    require(service, caller, Permission.SANDBOX_STOP)
    app = service.app
    return EmergencyStop(app.store.home, lambda: app.settings, caller.principal, audit=app.audit)
