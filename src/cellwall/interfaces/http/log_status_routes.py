"""`/v1/audit/status`, `/v1/audit/verification`: how the log stands, and a verification that a
client need not wait for (AUD-2)."""

from __future__ import annotations

import anyio.to_thread
from fastapi import APIRouter

from cellwall.admin.audit_forwarding import ForwardReport
from cellwall.admin.log_status import SignedHead, log_status
from cellwall.core.types import Permission
from cellwall.interfaces.http.audit_verification import VerificationState
from cellwall.interfaces.http.bodies import ERRORS
from cellwall.interfaces.http.bodies.lookups import (
    AuditStatus,
    ForwardingBody,
    SignedHeadBody,
    VerificationBody,
)
from cellwall.interfaces.http.callers import CurrentCaller, require
from cellwall.interfaces.http.checked_route import CheckedRoute
from cellwall.interfaces.http.lookup_routes import report_body
from cellwall.interfaces.http.service import CurrentService, Service

routes = APIRouter(route_class=CheckedRoute, tags=["audit"], responses=ERRORS)


@routes.get("/audit/status")
async def audit_status(service: CurrentService, caller: CurrentCaller) -> AuditStatus:
    """The size of the log, its last signed checkpoint, forwarding, and the last verification."""
    require(service, caller, Permission.AUDIT_READ)
    app = service.app

    def read() -> AuditStatus:
        found = log_status(app.store.home, app.settings)
        return AuditStatus(
            records=found.records,
            head=None if found.head is None else _head(found.head),
            has_witness=found.witness,
            forwarding=_forwarding(service, found.forward),
            verification=_verification(service, service.verification.state),
        )

    return await anyio.to_thread.run_sync(read, limiter=service.readers)


@routes.post("/audit/verification", status_code=202)
async def begin_verification(service: CurrentService, caller: CurrentCaller) -> VerificationBody:
    """Begin to verify the whole log; one runs at a time. `GET /v1/audit/status` tells how far it
    got and what came of it."""
    require(service, caller, Permission.AUDIT_READ)
    return _verification(service, service.verification.begin(service.app.store.home))


def _head(head: SignedHead) -> SignedHeadBody:
    return SignedHeadBody(size=head.size, root=head.root, signed=head.signed_s)


def _forwarding(service: Service, report: ForwardReport) -> ForwardingBody:
    state = report.state
    return ForwardingBody(
        is_configured=report.destination is not None,
        state=state.state,
        last=state.seq,
        waiting=report.waiting,
        since=state.time_s or None,
        problem=service.paths.hide_in(report.problem),
    )


def _verification(service: Service, state: VerificationState) -> VerificationBody:
    report = None if state.report is None else report_body(state.report)
    return VerificationBody(
        is_running=state.is_running,
        verified=state.verified,
        began=state.began_s,
        ended=state.ended_s,
        report=report,
        problem=service.paths.hide_in(state.problem),
    )
