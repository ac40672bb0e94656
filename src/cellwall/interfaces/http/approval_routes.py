"""`/v1/approvals`: questions of the policy, answered by users of the service (POL-8).

A user sees the own questions and those of shared sandboxes; who may read the record sees all. To
allow needs `approvals:answer`, to write a rule `policy:write`; to deny needs neither.
"""

from __future__ import annotations

from typing import get_args

from fastapi import APIRouter

from cellwall.core.approvals import Answer, AnswerKind, Question
from cellwall.core.errors import BadInput, NotFound
from cellwall.core.types import REMOTE_INTERFACES, Permission
from cellwall.interfaces.http.bodies import ERRORS
from cellwall.interfaces.http.bodies.lookups import (
    AnswerBody,
    AnswerName,
    AnswerRequest,
    Approval,
    ApprovalList,
    ProposalBody,
)
from cellwall.interfaces.http.callers import Caller, CurrentCaller, may, require
from cellwall.interfaces.http.checked_route import CheckedRoute
from cellwall.interfaces.http.service import CurrentService, Service
from cellwall.runtime.approval_board import VIA
from cellwall.runtime.approval_queue import chosen_rule

routes = APIRouter(route_class=CheckedRoute, tags=["approvals"], responses=ERRORS)
_NAMES: tuple[AnswerName, ...] = get_args(AnswerName)


@routes.get("/approvals")
async def list_approvals(service: CurrentService, caller: CurrentCaller) -> ApprovalList:
    """The open questions that the caller can see."""
    waiting = service.board.waiting()
    shown = [_approval(each) for each in waiting if _is_shown(service, caller, each)]
    return ApprovalList(approvals=shown)


@routes.get("/approvals/{approval_id}")
async def get_approval(
    service: CurrentService, caller: CurrentCaller, approval_id: str
) -> Approval:
    """One open question."""
    return _approval(_find(service, caller, approval_id))


@routes.post("/approvals/{approval_id}")
async def answer_approval(
    service: CurrentService, caller: CurrentCaller, approval_id: str, body: AnswerRequest
) -> AnswerBody:
    """Answer a question. Of several answers, on any channel, the first counts."""
    question = _find(service, caller, approval_id)
    kind = AnswerKind(body.answer)
    if kind is not AnswerKind.DENY:
        require(service, caller, Permission.APPROVALS_ANSWER)
    if kind is AnswerKind.RULE:
        require(service, caller, Permission.POLICY_WRITE)
    if body.shown_sha256 not in {None, question.shown_sha256}:
        raise BadInput(
            "the question is not the one that was shown",
            hint="Read it again, then answer.",
            code="CW-PRECONDITION",
        )
    rule = chosen_rule(question, body.rule) if kind is AnswerKind.RULE else body.rule
    given = Answer(kind=kind, by=caller.principal, via=VIA, rule=rule)
    final = await service.board.answer(question.id, given)
    return AnswerBody(
        id=question.id,
        answer=final.kind.value,
        by=final.by.name,
        rule=final.rule,
        reason=final.reason,
    )


def _find(service: Service, caller: Caller, approval_id: str) -> Question:
    found = service.board.find(approval_id)
    if found is None or not _is_shown(service, caller, found):
        raise NotFound("there is no such approval", hint="It was answered, or nobody waits for it.")
    return found


def _is_shown(service: Service, caller: Caller, question: Question) -> bool:
    asker = question.principal
    # A user of this machine may have the name of an account; that does not make them one person.
    is_own = asker.name == caller.identity.name and asker.interface in REMOTE_INTERFACES
    is_shared = service.sandboxes.is_shared(caller.identity, question.session_id)
    return is_own or is_shared or may(service, caller, Permission.AUDIT_READ)


def _approval(question: Question) -> Approval:
    offered = [
        name
        for name in _NAMES
        if (name == "rule" and question.proposals)
        or (name != "rule" and question.takes(AnswerKind(name)))
    ]
    return Approval(
        id=question.id,
        by=question.principal.name,
        session=question.session_id,
        tool=question.tool,
        shown=question.shown,
        shown_sha256=question.shown_sha256,
        reason=question.reason,
        proposals=[
            ProposalBody(rule=each.rule, also_allows=each.also_allows)
            for each in question.proposals
        ],
        answers=offered,
        asked=question.asked_s,
        deadline=question.deadline_s,
    )
