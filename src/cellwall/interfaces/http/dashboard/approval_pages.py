"""`/ui/approvals`: questions of the policy, with what a person needs to answer them (POL-8).

Answers go through the function of the API, with its checks: of two people who answer at once, one
is told that the other was first.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Any, Literal

import anyio.to_thread
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from cellwall.admin import audit_queries
from cellwall.admin.call_explanations import CallExplanation, call_in_sandbox, explain_call
from cellwall.admin.event_lines import EventLine, event_lines
from cellwall.admin.rule_preview import RulePreview, preview_rule
from cellwall.core.approvals import AnswerKind, Question
from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.showing import warnings
from cellwall.core.types import Permission
from cellwall.interfaces.http.approval_routes import (
    answer_approval,
    approval_body,
    find_question,
    list_approvals,
)
from cellwall.interfaces.http.bodies.lookups import AnswerName, AnswerRequest, EndedApprovalList
from cellwall.interfaces.http.dashboard.browser import (
    BrowserSession,
    CurrentBrowser,
    CurrentForm,
)
from cellwall.interfaces.http.dashboard.decision_tree import tree_of
from cellwall.interfaces.http.dashboard.pages import PageRoute, render
from cellwall.interfaces.http.dashboard.templating import with_query
from cellwall.interfaces.http.policy_routes import rule_place, service_policy
from cellwall.interfaces.http.shown_questions import shown_questions
from cellwall.runtime.policies import Layer, Policy
from cellwall.runtime.questions import is_text_whole

routes = APIRouter(route_class=PageRoute)
_LIST = "/ui/approvals"
_ONE = _LIST + "/{approval_id}"
_BEFORE = 8
_MAX_BATCH = 100
_MAX_LISTED = 200
"""Characters of a call in the list."""
_FILE_TOOLS = frozenset({"Read", "Write"})


@routes.get(_LIST)
async def approvals_page(
    request: Request,
    browser: CurrentBrowser,
    state: Literal["open", "ended"] = "open",
    before: Annotated[str, Query(max_length=40)] = "",
) -> Response:
    """The questions that wait, or those that have ended."""
    ended: list[object] = []
    following = ""
    if state == "ended":
        page = await list_approvals(
            browser.service, browser.caller, state="ended", limit=50, before=before
        )
        assert isinstance(page, EndedApprovalList)  # noqa: S101  # by its state
        ended = list(page.approvals)
        following = with_query(_LIST, state="ended", before=page.next) if page.next else ""
    now = time.time()
    questions = [
        {
            **approval_body(each).model_dump(),
            "text": browser.hide(each.text),
            "reason": browser.hide(each.reason),
            "details": browser.hide("; ".join(each.details)),
            "is_whole": _is_whole_in_list(each),
            "left_s": max(0.0, each.deadline_s - now),
        }
        for each in shown_questions(browser.service, browser.caller)
    ]
    return render(
        request,
        "approvals.html",
        browser=browser,
        state=state,
        questions=questions,
        ended=ended,
        next=following,
        may_answer=browser.may(Permission.APPROVALS_ANSWER),
        max_text=_MAX_LISTED,
    )


@routes.post(_LIST)
async def answer_several(browser: CurrentBrowser, form: CurrentForm) -> Response:
    """Answer one question of the list, or all that are chosen. Each is answered by itself: one that
    another person has answered meanwhile does not stop the others."""
    one = form.text("one").split(" ")
    if len(one) == 3:
        await _answer_in_list(browser, one[1], _plain_answer(_kind(one[0]), one[2]))
        return RedirectResponse(_LIST, status_code=303)
    kind, chosen = _kind(form.text("all")), form.all("question")[:_MAX_BATCH]
    if not chosen:
        raise BadInput("no question was chosen", hint="Choose some, then answer.")
    failures: list[CellwallError] = []
    for each in chosen:
        name, _, shown = each.partition(" ")
        try:
            await _answer_in_list(browser, name, _plain_answer(kind, shown))
        except CellwallError as error:
            failures.append(error)
    if failures:
        first = failures[0]
        raise BadInput(
            f"{len(failures)} of {len(chosen)} questions were not answered: {first.message}",
            hint=first.hint,
            code=first.code,
        )
    return RedirectResponse(_LIST, status_code=303)


@routes.get(_ONE)
async def approval_page(request: Request, browser: CurrentBrowser, approval_id: str) -> Response:
    """One question: the exact call as its syntax tree, what it would touch, the steps before it,
    and what each proposed rule would have allowed."""
    service = browser.service
    question = await find_question(service, browser.caller, approval_id)
    may_write = browser.may(Permission.POLICY_WRITE)

    def read() -> dict[str, Any]:
        policy, place = service_policy(service), rule_place(service)
        explained = _explain(policy, question)
        return {
            "nodes": [] if explained is None else tree_of(explained.decision),
            "touches": () if explained is None else explained.touches,
            "before": _steps_before(browser, question),
            "rules": [
                {
                    "rule": each.rule,
                    "also_allows": each.also_allows,
                    "preview": _preview(browser, policy, place.layer, each.rule, question),
                }
                for each in question.proposals
                if place is not None
            ],
        }

    found = await anyio.to_thread.run_sync(read, limiter=service.readers)
    return render(
        request,
        "approval.html",
        browser=browser,
        question=question,
        left_s=max(0.0, question.deadline_s - time.time()),
        warnings=warnings(question.text),
        offers_session=question.takes(AnswerKind.SESSION),
        may_answer=browser.may(Permission.APPROVALS_ANSWER),
        may_write=may_write and browser.may(Permission.APPROVALS_ANSWER),
        **found,
    )


@routes.post(_ONE)
async def answer_one(browser: CurrentBrowser, approval_id: str, form: CurrentForm) -> Response:
    """Answer one question."""
    body = AnswerRequest(
        answer=_kind(form.text("answer")),
        rule=form.text("rule")[:500],
        shown_sha256=form.text("shown")[:64],
    )
    await _answer(browser, approval_id, body)
    return RedirectResponse(_LIST, status_code=303)


def _plain_answer(kind: AnswerName, shown_sha256: str) -> AnswerRequest:
    return AnswerRequest(answer=kind, rule="", shown_sha256=shown_sha256[:64])


def _kind(text: str) -> AnswerName:
    match text:
        case "once" | "session" | "rule" | "deny":
            return text
    raise BadInput("this is not an answer", hint="Choose allow or deny.")


async def _answer(browser: BrowserSession, approval_id: str, body: AnswerRequest) -> None:
    await answer_approval(browser.service, browser.caller, approval_id, body)


async def _answer_in_list(browser: BrowserSession, approval_id: str, body: AnswerRequest) -> None:
    """Attack: harm in the middle of a command, which the list leaves out of a long one."""
    question = await find_question(browser.service, browser.caller, approval_id)
    if body.answer != "deny" and not _is_whole_in_list(question):
        raise BadInput(
            "the list does not show the whole call",
            hint="Open the question, read it, then allow it there.",
            code="CW-PRECONDITION",
        )
    await _answer(browser, approval_id, body)


def _is_whole_in_list(question: Question) -> bool:
    return max(len(question.text), len("; ".join(question.details))) <= _MAX_LISTED


def _explain(policy: Policy, question: Question) -> CallExplanation | None:
    """None where the text of the question does not spell the call."""
    text = question.text
    if not is_text_whole(question):
        return None
    if question.tool in _FILE_TOOLS:  # `write notes.txt`
        text = text.partition(" ")[2]
        if " -> " in text:  # `move a -> b`: of two paths, or of one that looks like two
            return None
    call = call_in_sandbox(question.tool, text)
    return None if call is None else explain_call(policy, call)


def _steps_before(browser: BrowserSession, question: Question) -> list[EventLine]:
    if not question.session_id:
        return []
    query = audit_queries.Query(session_id=question.session_id)
    service = browser.service
    found: list[dict[str, Any]] = []
    records = audit_queries.newest(query, home=service.app.store.home, keys=service.app.keys)
    for record in records:
        if record["action_id"] != question.action_id:
            found.append(record)
        if len(found) >= _BEFORE:
            break
    return event_lines(found)


def _preview(
    browser: BrowserSession, policy: Policy, layer: Layer, rule: str, question: Question
) -> RulePreview | None:
    """None for who may not read the record."""
    if not browser.sees_all:
        return None
    app = browser.service.app
    judge = partial(preview_rule, layer=layer, home=app.store.home, keys=app.keys)
    return judge(rule, answers=question.rule, policy=policy)
