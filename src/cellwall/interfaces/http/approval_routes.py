"""`/v1/approvals`: questions of the policy, answered by users of the service (POL-8).

A user sees the own questions and those of shared sandboxes; who may read the record sees all. To
allow needs `approvals:answer`, to write a rule `policy:write`; to deny needs neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, get_args

from fastapi import APIRouter, Query

from cellwall.core.accounts import ApprovalRecord, Viewer
from cellwall.core.approvals import CONNECT, Answer, AnswerKind, Question
from cellwall.core.errors import BadInput, Denied, NotFound
from cellwall.core.labels import RULE_OF_TWO
from cellwall.core.types import Permission
from cellwall.interfaces.http.approval_records import Unanswered
from cellwall.interfaces.http.bodies import ERRORS
from cellwall.interfaces.http.bodies.lookups import (
    AnswerBody,
    AnswerName,
    AnswerRequest,
    Approval,
    ApprovalList,
    EndedApproval,
    EndedApprovalList,
    ProposalBody,
)
from cellwall.interfaces.http.callers import Caller, CurrentCaller, may, require
from cellwall.interfaces.http.checked_route import CheckedRoute
from cellwall.interfaces.http.policy_routes import rule_place
from cellwall.interfaces.http.presence import elsewhere
from cellwall.interfaces.http.service import CurrentService, Service
from cellwall.interfaces.http.shown_questions import is_shown, shown_questions
from cellwall.runtime.approval_board import VIA
from cellwall.runtime.approval_queue import chosen_rule

routes = APIRouter(route_class=CheckedRoute, tags=["approvals"], responses=ERRORS)
_NAMES: tuple[AnswerName, ...] = get_args(AnswerName)
_REASONS: Mapping[str, str] = {
    Unanswered.UNANSWERED: "no answer in time; denied",
    Unanswered.INTERRUPTED: "the caller did not wait for the answer; denied",
    Unanswered.RESTARTED: "the service restarted; denied",
}


@routes.get("/approvals")
async def list_approvals(
    service: CurrentService,
    caller: CurrentCaller,
    state: Literal["open", "ended"] = "open",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[str, Query(max_length=40)] = "",
) -> ApprovalList | EndedApprovalList:
    """The open questions that the caller can see, or with `state=ended` those that have ended."""
    if state == "ended":
        return await _ended_page(service, _viewer(service, caller), before=before, limit=limit)
    found = shown_questions(service, caller)
    return ApprovalList(approvals=[approval_body(each) for each in found])


@routes.get("/approvals/{approval_id}")
async def get_approval(
    service: CurrentService, caller: CurrentCaller, approval_id: str
) -> Approval | EndedApproval:
    """One question, open or ended."""
    found = service.board.find(approval_id)
    if found is not None and is_shown(service, caller, found):
        return approval_body(found)
    record = await _find_record(service, caller, approval_id)
    return _ended(record, await _names(service, [record]))


@routes.post("/approvals/{approval_id}")
async def answer_approval(
    service: CurrentService, caller: CurrentCaller, approval_id: str, body: AnswerRequest
) -> AnswerBody:
    """Answer a question. Of several answers, on any channel, the first counts."""
    question = await find_question(service, caller, approval_id)
    kind = AnswerKind(body.answer)
    if kind is not AnswerKind.DENY:
        require(service, caller, Permission.APPROVALS_ANSWER)
        _refuse_asker(caller, question)
    if kind is AnswerKind.RULE:
        require(service, caller, Permission.POLICY_WRITE)
        if rule_place(service) is None:
            raise BadInput(
                "the policy that is shipped with the service gets no rules",
                hint="Allow it once or for the session, or write a policy: cellwall policy init",
                code="CW-NO-EFFECT",
            )
    if body.shown_sha256 not in {None, question.shown_sha256}:
        raise BadInput(
            "the question is not the one that was shown",
            hint="Read it again, then answer.",
            code="CW-PRECONDITION",
        )
    rule = chosen_rule(question, body.rule) if kind is AnswerKind.RULE else body.rule
    given = Answer(kind=kind, by=caller.principal, via=VIA, rule=rule)
    final = await service.board.answer(question.id, given)
    await service.approvals.save()  # before the answer is acknowledged
    return AnswerBody(
        id=question.id,
        answer=final.kind.value,
        by=final.by.name,
        rule=final.rule,
        reason=final.reason,
    )


def _refuse_asker(caller: Caller, question: Question) -> None:
    """Attack: an agent that consents with its own token that the three labels meet (POL-9), or that
    its code reaches a destination which no rule names (NET-9). A person at the dashboard has the
    same sign-in, and a page in front."""
    asker = question.principal.account
    is_same = asker is not None and asker.credential == caller.identity.account.credential
    needs_another = question.rule == RULE_OF_TWO or question.tool == CONNECT
    if is_same and needs_another and not caller.is_by_cookie:
        raise Denied(
            "the credential that asks cannot consent to this question",
            hint="Answer on the dashboard, with another token, or on the service's machine: "
            "cellwall approvals.",
            code="CW-OWN-QUESTION",
        )


async def find_question(service: Service, caller: Caller, approval_id: str) -> Question:
    """An open question that the caller can see; an unknown and a foreign one raise alike."""
    found = service.board.find(approval_id)
    if found is None or not is_shown(service, caller, found):
        await _find_record(service, caller, approval_id)
        raise _unknown()
    return found


async def _find_record(service: Service, caller: Caller, approval_id: str) -> ApprovalRecord:
    """A question that has ended. The text of an open one is with the process that waits."""
    found = await service.approvals.find(approval_id, _viewer(service, caller))
    if found is None:
        raise _unknown()
    if found.answered_s is None:
        raise elsewhere("question")
    return found


def _unknown() -> NotFound:
    return NotFound("there is no such approval", hint="It was answered, or nobody waits for it.")


def _viewer(service: Service, caller: Caller) -> Viewer:
    who = caller.identity
    return Viewer(
        user_id=who.user_id,
        teams=frozenset(who.teams),
        sees_all=may(service, caller, Permission.AUDIT_READ),
    )


async def _ended_page(
    service: Service, viewer: Viewer, *, before: str, limit: int
) -> EndedApprovalList:
    found = await service.approvals.list(viewer, before=before, limit=limit + 1)
    page = found[:limit]
    names = await _names(service, page)
    return EndedApprovalList(
        approvals=[_ended(each, names) for each in page],
        next=page[-1].id if len(found) > limit else None,
    )


async def _names(service: Service, records: Sequence[ApprovalRecord]) -> dict[str, str]:
    ids = {each.answered_by for each in records if each.answered_by is not None}
    return await service.approvals.names(ids)


def _ended(record: ApprovalRecord, names: Mapping[str, str]) -> EndedApproval:
    given = next((name for name in _NAMES if name == record.answer), None)
    by = record.answered_by
    return EndedApproval(
        id=record.id,
        by=str(record.question.get("by", "")),
        session=record.session_id,
        tool=str(record.question.get("tool", "")),
        rule=str(record.question.get("rule", "")),
        asked=record.asked_s,
        ended=record.answered_s or record.asked_s,
        verdict="deny" if given in {None, "deny"} else "allow",
        answer=given,
        answered_by=None if by is None else names.get(by),
        reason="" if given is not None else _REASONS.get(record.answer or "", ""),
    )


def approval_body(question: Question) -> Approval:
    """An open question, for a client."""
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
