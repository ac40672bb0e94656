"""`/v1/audit`, `/v1/scan`, `/v1/packages`: the record, texts and packages."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import anyio
from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from cellwall.admin import audit_queries
from cellwall.admin import packages as administration
from cellwall.core.errors import BadInput, NotFound
from cellwall.core.outcomes import EventKind
from cellwall.core.packages import parse_install
from cellwall.core.text import plain
from cellwall.core.types import REMOTE_INTERFACES, Permission
from cellwall.core.verdict import Verdict
from cellwall.interfaces.http.bodies import ERRORS
from cellwall.interfaces.http.bodies.lookups import (
    AuditPage,
    AuditReport,
    InstallRequest,
    PackageVerdictBody,
    PackageVerdicts,
    ScanReport,
    ScanRequest,
    VerifyRequest,
)
from cellwall.interfaces.http.bodies.sessions import OutcomeBody
from cellwall.interfaces.http.callers import Caller, CurrentCaller, may, require
from cellwall.interfaces.http.checked_route import CheckedRoute
from cellwall.interfaces.http.rendering import outcome_json
from cellwall.interfaces.http.service import CurrentService, Service
from cellwall.runtime.guarding import LazyGuard

routes = APIRouter(route_class=CheckedRoute, responses=ERRORS)
_MAX_SEEN = 100_000
_WITHIN_S = 2.0
"""Records that one request looks at, and for how long. A page may so have few records or none, and
`next` all the same: the search goes on there."""


@routes.get("/audit", tags=["audit"])
async def read_audit(
    service: CurrentService,
    caller: CurrentCaller,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[int | None, Query(ge=1, description="a record's number")] = None,
    action: Annotated[str | None, Query(max_length=60)] = None,
    session: Annotated[str | None, Query(max_length=60)] = None,
    principal: Annotated[str | None, Query(max_length=200)] = None,
    since: datetime | None = None,
    until: datetime | None = None,
    text: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
    kind: EventKind | None = None,
    verdict: Literal["allow", "ask", "deny"] | None = None,
    record: Annotated[str | None, Query(max_length=60, description="the id of one")] = None,
) -> AuditPage:
    """Records that match, the newest first: the caller's own, or with `audit:read` all."""
    if any(each is not None and each.tzinfo is None for each in (since, until)):
        raise BadInput("a time needs its zone", hint="Write 2026-01-31T12:00:00Z.")
    sees_all = may(service, caller, Permission.AUDIT_READ)
    name = caller.identity.name
    if not sees_all:
        created = await _created(service, caller)
        since = created if since is None else max(since, created)
    query = audit_queries.Query(
        id=record,
        action_id=action,
        session_id=session,
        principal=principal if sees_all else name,
        since=since,
        until=until,
        text=text,
        kind=kind,
        verdict=None if verdict is None else Verdict[verdict.upper()],
        before=before,
    )
    paths = service.paths

    def show(each: dict[str, Any]) -> dict[str, Any] | None:
        # A user of this machine may have the name of an account.
        if not sees_all and each["interface"] not in REMOTE_INTERFACES:
            return None
        shown = paths.hide(each)
        # Attack: searches for longer and longer beginnings of what is hidden would spell it out.
        return shown if text is None or audit_queries.has_text(shown, text) else None

    def read() -> AuditPage:
        found: list[dict[str, Any]] = []
        following: int | None = None
        deadline = time.monotonic() + _WITHIN_S
        app = service.app
        seen = audit_queries.newest_with_progress(query, home=app.store.home, keys=app.keys)
        for count, (seq, each) in enumerate(seen):
            shown = None if each is None else show(each)
            if shown is not None:
                if len(found) == limit:
                    following = found[-1]["seq"]
                    break
                found.append(shown)
            if count >= _MAX_SEEN or time.monotonic() > deadline:
                following = seq
                break
        return AuditPage(records=found, next=following)

    if not sees_all and principal not in {None, name}:
        return AuditPage(records=[], next=None)  # as for a name that has no records
    return await anyio.to_thread.run_sync(read, limiter=service.readers)


async def _created(service: Service, caller: Caller) -> datetime:
    """When the account was created. Earlier records under its name are those of an account that was
    removed: another person's, who may have had the name before."""
    user = await service.store.find_user(caller.id)
    if user is None:
        raise NotFound("there is no such user", hint="Sign in again.")
    return datetime.fromtimestamp(user.created_s, UTC)


@routes.get("/audit/verify", tags=["audit"])
async def verify_audit(service: CurrentService, caller: CurrentCaller) -> AuditReport:
    """Verify the whole log: hashes, signatures, and the checkpoint remembered beside its key."""
    require(service, caller, Permission.AUDIT_READ)

    def check() -> AuditReport:
        found = audit_queries.check(home=service.app.store.home)
        service.verification.note(found)
        return report_body(found)

    return await anyio.to_thread.run_sync(check, limiter=service.readers)


def report_body(report: audit_queries.VerifyReport) -> AuditReport:
    """The result of a verification, for a client."""
    return AuditReport(
        ok=report.ok,
        records=report.records,
        first_bad=report.first_bad,
        reason=report.reason,
        signed=report.signed,
        checkpoints=report.checkpoints,
        deleted=report.deleted,
    )


@routes.post("/scan", tags=["guard"])
async def scan(service: CurrentService, _: CurrentCaller, body: ScanRequest) -> ScanReport:
    """Find attacks on a model in a text."""
    guard = service.app.runtime.guard
    assert isinstance(guard, LazyGuard)  # noqa: S101  # by `open_app`

    def look() -> dict[str, Any]:
        text = str(plain(body.text))
        return guard.guard.scanner.scan(text, kind=body.kind, channel=body.channel).to_json()

    found: Any = plain(await anyio.to_thread.run_sync(look, limiter=service.readers))
    return ScanReport(**found)


@routes.post("/packages/verify", tags=["packages"])
async def verify_packages(
    service: CurrentService, caller: CurrentCaller, body: VerifyRequest
) -> PackageVerdicts:
    """The verdict on each name, as an installation would have it."""
    require(service, caller, Permission.SANDBOX_EXECUTE)
    verdicts = await administration.verify(
        service.app,
        administration.Ecosystem(body.ecosystem),
        body.packages,
        is_offline=body.offline,
    )
    return PackageVerdicts(packages=[_verdict_body(each) for each in verdicts])


def _verdict_body(verdict: administration.PackageVerdict) -> PackageVerdictBody:
    risk = administration.risk_of(verdict)
    return PackageVerdictBody(
        name=verdict.name,
        verdict=verdict.verdict.word,
        reasons=[reason.text for reason in verdict.reasons],
        suggestion=verdict.suggestion,
        version=verdict.version,
        risk=risk.points,
        risk_causes=list(risk.causes),
    )


@routes.post(
    "/packages/install",
    tags=["packages"],
    response_class=JSONResponse,
    responses={200: {"model": OutcomeBody, "description": "The outcome."}},
)
async def install_packages(
    service: CurrentService, caller: CurrentCaller, body: InstallRequest
) -> JSONResponse:
    """Install packages into a sandbox. A refusal is an outcome with the status `denied`."""
    sandbox = await service.sandboxes.find(caller.identity, body.session)
    operation = parse_install(body.ecosystem, body.packages)
    outcome = await sandbox.perform(caller.principal, operation, timeout=body.timeout)
    return JSONResponse(outcome_json(outcome))
