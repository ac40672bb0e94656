"""`/v1/host`: the checks of the host and the blast radius of the configuration, for operators."""

from __future__ import annotations

from dataclasses import replace

import anyio
from fastapi import APIRouter

from cellwall.admin.blast_radius import BlastRadius, blast_radius
from cellwall.core.text import plain
from cellwall.core.types import Permission
from cellwall.interfaces.http.bodies import ERRORS
from cellwall.interfaces.http.bodies.host import BlastRadiusBody, HostCheckBody, HostReportBody
from cellwall.interfaces.http.callers import Caller, CurrentCaller, require
from cellwall.interfaces.http.checked_route import CheckedRoute
from cellwall.interfaces.http.host_examination import HostExamination
from cellwall.interfaces.http.policy_routes import service_policy
from cellwall.interfaces.http.service import CurrentService, Service

routes = APIRouter(route_class=CheckedRoute, prefix="/host", tags=["host"], responses=ERRORS)


@routes.get("/checks")
async def read_checks(service: CurrentService, caller: CurrentCaller) -> HostReportBody:
    """The last checks of the host; without any, none ran since the start."""
    require(service, caller, Permission.AUDIT_READ)
    return _report(service, service.examiner.last)


@routes.post("/checks")
async def run_checks(service: CurrentService, caller: CurrentCaller) -> HostReportBody:
    """Check the host as `cellwall doctor --production` does; takes seconds. A result counts for 30
    seconds."""
    require(service, caller, Permission.CONFIG_WRITE)
    return _report(service, await service.examiner.examine())


@routes.get("/blast-radius")
async def read_blast_radius(service: CurrentService, caller: CurrentCaller) -> BlastRadiusBody:
    """What code can read, write, execute, reach, spend and keep under the configuration."""
    found = await compute_blast_radius(service, caller)
    hide = service.paths.hide_in
    shown = [
        replace(each, bound=hide(each.bound), members=tuple(map(hide, each.members)))
        for each in found.abilities
    ]
    radius = replace(found, abilities=tuple(shown))
    return BlastRadiusBody.model_validate(plain(radius.to_json()))


async def compute_blast_radius(service: Service, caller: Caller) -> BlastRadius:
    """The same for a page."""
    require(service, caller, Permission.AUDIT_READ)

    def compute() -> BlastRadius:
        return blast_radius(service.app.settings, service_policy(service))

    return await anyio.to_thread.run_sync(compute, limiter=service.readers)


def _report(service: Service, found: HostExamination | None) -> HostReportBody:
    if found is None:
        return HostReportBody(at=None, is_usable=None, checks=[])
    hide = service.paths.hide_in
    return HostReportBody(
        at=found.at_s,
        is_usable=found.report.usable,
        checks=[
            HostCheckBody(
                name=each.name,
                status=each.status,
                found=hide(str(plain(each.found))),
                why=each.why,
                hint=hide(str(plain(each.hint))),
                is_required=each.required,
            )
            for each in found.report.checks
        ],
    )
