"""`/v1/approvals`, `/v1/audit`, `/v1/scan`, `/v1/packages`: what people and their tools look up."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import anyio
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from cellwall.admin import audit_queries
from cellwall.admin.approvals import AnswerKind, ApprovalInbox, Question, chosen_rule
from cellwall.core.errors import BadInput
from cellwall.core.packages import parse_install
from cellwall.core.types import Json, Permission
from cellwall.interfaces.http.bodies import (
    ERRORS,
    AnswerRequest,
    InstallRequest,
    ScanRequest,
    VerifyRequest,
)
from cellwall.interfaces.http.callers import Caller, CurrentCaller
from cellwall.interfaces.http.rendering import outcome_json
from cellwall.interfaces.http.session_routes import sandboxes_of
from cellwall.runtime.wiring import App

routes = APIRouter(responses=ERRORS)


def _app(request: Request) -> App:
    found: App = request.app.state.app
    return found


def _require(request: Request, caller: Caller, permission: Permission) -> None:
    _app(request).runtime.roles.require(caller.principal, permission)


@routes.get("/approvals", tags=["approvals"])
async def list_approvals(request: Request, caller: CurrentCaller) -> dict[str, Any]:
    """The open questions: all for those who may answer, else the caller's own."""
    inbox = await anyio.to_thread.run_sync(ApprovalInbox, caller.principal)
    waiting = await anyio.to_thread.run_sync(inbox.waiting)
    may_answer = (
        Permission.APPROVALS_ANSWER
        in _app(request).runtime.roles.role_of(caller.principal).permissions
    )
    shown = [each for each in waiting if may_answer or each.principal.name == caller.owner]
    return {"approvals": [_question_json(each) for each in shown]}


@routes.post("/approvals/{question_id}", tags=["approvals"])
async def answer_approval(
    request: Request, caller: CurrentCaller, question_id: str, body: AnswerRequest
) -> dict[str, Any]:
    """Answer a question: once, for the session, by a proposed rule, or deny."""
    _require(request, caller, Permission.APPROVALS_ANSWER)

    def answer() -> dict[str, Any]:
        inbox = ApprovalInbox(caller.principal)
        question = inbox.read(question_id)
        kind = AnswerKind(body.answer)
        rule = chosen_rule(question, body.rule) if kind is AnswerKind.RULE else ""
        given = inbox.answer(question, kind, rule=rule)
        return {"id": question.id, "shown_sha256": question.shown_sha256, **given.to_json()}

    return await anyio.to_thread.run_sync(answer)


def _question_json(question: Question) -> dict[str, Json]:
    return {
        "id": question.id,
        "by": question.principal.name,
        "tool": question.tool,
        "shown": question.shown,
        "shown_sha256": question.shown_sha256,
        "reason": question.reason,
        "proposals": [
            {"rule": each.rule, "also_allows": each.also_allows} for each in question.proposals
        ],
        "asked": question.asked_s,
        "deadline": question.deadline_s,
    }


@routes.get("/audit", tags=["audit"])
async def read_audit(
    request: Request,
    caller: CurrentCaller,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    action: Annotated[str | None, Query(max_length=60)] = None,
    session: Annotated[str | None, Query(max_length=60)] = None,
    principal: Annotated[str | None, Query(max_length=200)] = None,
    since: datetime | None = None,
    until: datetime | None = None,
    text: Annotated[str | None, Query(max_length=200)] = None,
) -> dict[str, Any]:
    """The newest records that match, the newest last."""
    _require(request, caller, Permission.AUDIT_READ)
    if any(each is not None and each.tzinfo is None for each in (since, until)):
        raise BadInput("a time needs its zone", hint="Write 2026-01-31T12:00:00Z.")
    query = audit_queries.Query(
        action_id=action, session_id=session, principal=principal,
        since=since, until=until, text=text,
    )  # fmt: skip
    records = await anyio.to_thread.run_sync(audit_queries.latest, query, limit)
    return {"records": records}


@routes.get("/audit/verify", tags=["audit"])
async def verify_audit(request: Request, caller: CurrentCaller) -> dict[str, Any]:
    """Verify the whole log: hashes, signatures, and the checkpoint remembered beside its key."""
    _require(request, caller, Permission.AUDIT_READ)
    report = await anyio.to_thread.run_sync(audit_queries.check)
    return {"ok": report.ok, **report.to_json()}


@routes.post("/scan", tags=["guard"])
async def scan(request: Request, _: CurrentCaller, body: ScanRequest) -> dict[str, Any]:
    """Find attacks on a model in a text."""
    guard = _app(request).guard
    report = await anyio.to_thread.run_sync(
        lambda: guard.scanner.scan(body.text, kind=body.kind, channel=body.channel)
    )
    return dict(report.to_json())


@routes.post("/packages/install", tags=["packages"], response_class=JSONResponse)
async def install_packages(
    request: Request, caller: CurrentCaller, body: InstallRequest
) -> JSONResponse:
    """Install packages into a sandbox. A refusal is an outcome with the status `denied`."""
    sandbox = sandboxes_of(request).find(caller, body.session)
    operation = parse_install(body.ecosystem, body.packages)
    with sandbox.in_use():
        outcome = await sandbox.host.perform(
            operation, timeout=body.timeout, principal=caller.principal
        )
    return JSONResponse(outcome_json(outcome))
