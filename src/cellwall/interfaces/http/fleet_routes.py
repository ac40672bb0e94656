"""`/v1/fleet/hosts`: the hosts behind this address with their load, as `cellwall fleet status`."""

from __future__ import annotations

from fastapi import APIRouter

from cellwall.admin.fleet import HostState, host_states, state_of_load
from cellwall.core.types import Permission
from cellwall.interfaces.http.bodies import ERRORS
from cellwall.interfaces.http.bodies.fleet import FleetBody, FleetHostBody
from cellwall.interfaces.http.callers import CurrentCaller, require
from cellwall.interfaces.http.checked_route import CheckedRoute
from cellwall.interfaces.http.host_load import host_load
from cellwall.interfaces.http.service import CurrentService

routes = APIRouter(route_class=CheckedRoute, prefix="/fleet", tags=["fleet"], responses=ERRORS)


@routes.get("/hosts")
async def list_hosts(service: CurrentService, caller: CurrentCaller) -> FleetBody:
    """The hosts of the fleet: state, load, labels and versions; of a service without a fleet, the
    service itself."""
    require(service, caller, Permission.AUDIT_READ)
    own_id = service.store.service_id
    states = await host_states(service.store, service.app.settings)
    is_fleet = bool(states)
    if not is_fleet:
        states = (state_of_load(own_id, host_load(service.app, service.sandboxes)),)
    return FleetBody(is_fleet=is_fleet, hosts=[_host(each, own_id) for each in states])


def _host(state: HostState, own_id: str) -> FleetHostBody:
    return FleetHostBody(
        id=state.id,
        state="lost" if state.is_lost else "drains" if state.is_draining else "serves",
        is_this=state.id == own_id,
        version=state.version,
        policy_version=state.policy_version or None,
        problem=state.problem,
        address=state.address,
        labels=dict(state.labels),
        memory_free_bytes=state.memory_free_bytes,
        memory_bytes=state.memory_bytes,
        sessions=state.sessions,
        busy=state.busy,
        templates=sorted(state.templates),
        unseen_s=round(state.unseen_s, 3),
    )
