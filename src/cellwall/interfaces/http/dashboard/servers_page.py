"""`/ui/servers`: MCP servers behind the gateway, their pinned tools, and what waits for a review.

A decision goes through the function of the API: it names the digest of what the page showed. The
page offers to accept only a definition that it shows whole and in which the guard found nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from cellwall.core.errors import BadInput
from cellwall.interfaces.http.bodies.base import body_of
from cellwall.interfaces.http.bodies.tool_servers import (
    DefinitionBody,
    DefinitionDecision,
    ToolServerReview,
)
from cellwall.interfaces.http.dashboard.browser import BrowserSession, CurrentBrowser, CurrentForm
from cellwall.interfaces.http.dashboard.pages import PageRoute, render
from cellwall.interfaces.http.dashboard.templating import MAX_BLOCK, MAX_LINES, with_query
from cellwall.interfaces.http.tool_server_routes import (
    decide_definitions,
    list_tool_servers,
    review_tool_server,
)

routes = APIRouter(route_class=PageRoute)
_LIST = "/ui/servers"
_ONE = _LIST + "/{name}"
_PAGE = 100
_MAX_SHOWN = 200_000
"""Characters of all differences on one page; a later definition is decided about elsewhere."""
_WAITING = frozenset({"new", "changed"})


@routes.get(_LIST)
async def servers_page(
    request: Request,
    browser: CurrentBrowser,
    show: Literal["all", "waiting"] = "all",
    page: Annotated[int, Query(ge=1, le=10_000)] = 1,
) -> Response:
    """Each server in one row."""
    found = (await list_tool_servers(browser.service, browser.caller)).servers
    listed = [each for each in found if show == "all" or each.waiting]
    first = (page - 1) * _PAGE
    is_more = len(listed) > first + _PAGE
    return render(
        request,
        "servers.html",
        browser=browser,
        servers=listed[first : first + _PAGE],
        is_empty=not found,
        show=show,
        next=with_query(_LIST, show=show, page=page + 1) if is_more else "",
    )


@routes.get(_ONE)
async def server_page(
    request: Request,
    browser: CurrentBrowser,
    name: str,
    done: Literal["", "accept", "reject"] = "",
) -> Response:
    """One server: each definition with its difference, and what speaks against it."""
    trouble, review = "", None
    try:
        review = await review_tool_server(browser.service, browser.caller, name)
    except BadInput as error:
        if error.code != "CW-MCP-REVIEW":  # not looked at yet
            raise
        trouble = error.message
    rows = [] if review is None else _rows(review)
    return render(
        request,
        "server.html",
        browser=browser,
        name=name,
        review=review,
        trouble=trouble,
        rows=rows,
        undecided=[row for row in rows if row["waits"]],
        blocked=_blocked(rows),
        done=done,
    )


@routes.post(_ONE)
async def decide_page(browser: CurrentBrowser, name: str, form: CurrentForm) -> Response:
    """Accept or reject what was shown."""
    word, _, tool = form.text("decision").partition(" ")
    tools = [tool] if tool else list(form.all("tool"))
    wanted = {"decision": word, "shown_sha256": form.text("shown"), "tools": tools}
    body = body_of(DefinitionDecision, wanted)
    if body.decision == "accept":
        await _check_shown_whole(browser, name, body)
    await decide_definitions(browser.service, browser.caller, name, body)
    address = with_query(f"{_LIST}/{name}", done=body.decision)
    return RedirectResponse(address, status_code=303)


async def _check_shown_whole(browser: BrowserSession, name: str, body: DefinitionDecision) -> None:
    """Attack: harm in the middle of a long definition, which a page leaves out."""
    review = await review_tool_server(browser.service, browser.caller, name)
    rows = _rows(review)
    chosen = [row for row in rows if row["tool"] in body.tools or (not body.tools and row["waits"])]
    if not all(row["is_whole"] for row in (*chosen, *(row for row in rows if not row["tool"]))):
        raise BadInput(
            "the page does not show the whole definition",
            hint=f"On the machine of the service: cellwall mcp gateway review {name}",
            code="CW-PRECONDITION",
        )


def _rows(review: ToolServerReview) -> list[dict[str, Any]]:
    left, rows = _MAX_SHOWN, []
    for each in review.definitions:
        left -= len(each.diff)
        rows.append(
            {
                **each.model_dump(),
                "diff": each.diff if left >= 0 else "",
                "waits": each.state in _WAITING,
                "is_whole": left >= 0 and _is_shown_whole(each),
                "is_acceptable": not each.findings and not each.shadows,
            }
        )
    return rows


def _is_shown_whole(definition: DefinitionBody) -> bool:
    diff = definition.diff
    return len(diff) <= MAX_BLOCK and diff.count("\n") < MAX_LINES


def _blocked(rows: list[dict[str, Any]]) -> str:
    """Why nothing can be accepted here: each acceptance includes the server itself."""
    itself = next((row for row in rows if not row["tool"]), None)
    if itself is None or (itself["is_whole"] and itself["is_acceptable"]):
        return ""
    if not itself["is_whole"]:
        return "The description of the server is too long to be shown whole."
    return "The guard has found something in the description of the server itself."
