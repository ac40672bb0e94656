"""`/ui/policy`: the rules in effect with their source, the verdict on a call, and what would change
with one more rule (POL-5)."""

from __future__ import annotations

from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Query, Request, Response

from cellwall.admin.call_explanations import call_in_sandbox, explain_call
from cellwall.admin.rule_preview import preview_rule
from cellwall.core.errors import CellwallError
from cellwall.core.types import Permission
from cellwall.interfaces.http.callers import require
from cellwall.interfaces.http.dashboard.browser import BrowserSession, CurrentBrowser
from cellwall.interfaces.http.dashboard.decision_tree import tree_of
from cellwall.interfaces.http.dashboard.pages import PageRoute, render
from cellwall.interfaces.http.policy_routes import read_rules, rule_place, service_policy
from cellwall.runtime.policies import Layer

routes = APIRouter(route_class=PageRoute)
_PAGE = 200
TOOLS = ("Bash", "Read", "Write", "WebFetch")
Subject = Annotated[str, Query(max_length=4000)]


@routes.get("/ui/policy")
async def policy_page(
    request: Request,
    browser: CurrentBrowser,
    tool: Annotated[str, Query(max_length=20)] = "Bash",
    call: Subject = "",
    rule: Annotated[str, Query(max_length=500)] = "",
    find: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Nothing here runs or changes anything; an address can be shared with its question."""
    require(browser.service, browser.caller, Permission.SANDBOX_EXECUTE)
    tried = await _try(browser, tool, call) if call else None
    preview, trouble = (None, "")
    if rule and browser.may(Permission.POLICY_WRITE) and browser.sees_all:
        preview, trouble = await _preview(browser, rule)
    rules: list[Any] = []
    if browser.may(Permission.POLICY_WRITE):
        found = (await read_rules(browser.service, browser.caller)).rules
        wanted = find.lower()
        rules = [each for each in found if wanted in f"{each.rule} {each.reason}".lower()]
    own = [each for each in rules if each.layer != "built-in"]
    return render(
        request,
        "policy.html",
        browser=browser,
        tools=TOOLS,
        tool=tool if tool in TOOLS else "Bash",
        call=call,
        tried=tried,
        rule=rule,
        preview=preview,
        trouble=trouble,
        find=find,
        own=own[:_PAGE],
        builtin=[each for each in rules if each.layer == "built-in"][:_PAGE],
        may_write=browser.may(Permission.POLICY_WRITE),
        may_preview=browser.may(Permission.POLICY_WRITE) and browser.sees_all,
    )


async def _try(browser: BrowserSession, tool: str, text: str) -> dict[str, Any] | None:
    call = call_in_sandbox(tool, text)
    if call is None:
        return None

    def judge() -> dict[str, Any]:
        found = explain_call(service_policy(browser.service), call)
        return {
            "decision": found.decision,
            "nodes": tree_of(found.decision),
            "touches": found.touches,
        }

    return await anyio.to_thread.run_sync(judge, limiter=browser.service.readers)


async def _preview(browser: BrowserSession, rule: str) -> tuple[object, str]:
    service = browser.service

    def judge() -> object:
        return preview_rule(
            rule,
            answers="",
            policy=service_policy(service),
            layer=Layer.SESSION if (place := rule_place(service)) is None else place.layer,
            home=service.app.store.home,
            keys=service.app.keys,
        )

    try:
        return await anyio.to_thread.run_sync(judge, limiter=service.readers), ""
    except CellwallError as error:
        return None, error.message
