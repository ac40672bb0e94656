"""`/v1/mcp-servers`: servers behind the gateway, and the review of what they say (SRV-7).

A decision names the digest of what was shown, and takes a person. A definition in which the guard
has found something is accepted on the machine of the service alone: an attack on the reader is part
of what is shown, and this interface is for a glance.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio.to_thread
from fastapi import APIRouter

from cellwall.admin.tool_reviews import ReviewedTool, ServerReview, waiting_in
from cellwall.admin.tool_servers import ServerEntry, ToolServerAdmin
from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.types import Permission
from cellwall.interfaces.http.bodies import ERRORS
from cellwall.interfaces.http.bodies.tool_servers import (
    DecidedDefinitions,
    DefinitionBody,
    DefinitionDecision,
    DefinitionFinding,
    ToolServerBody,
    ToolServerList,
    ToolServerReview,
)
from cellwall.interfaces.http.callers import CurrentCaller, require, require_person
from cellwall.interfaces.http.checked_route import CheckedRoute
from cellwall.interfaces.http.service import CurrentService, Service

routes = APIRouter(route_class=CheckedRoute, tags=["mcp-servers"], responses=ERRORS)
_ONE = "/mcp-servers/{name}"


@routes.get("/mcp-servers")
async def list_tool_servers(service: CurrentService, caller: CurrentCaller) -> ToolServerList:
    """The servers behind the gateway of this machine, for callers with `config:write`."""
    require(service, caller, Permission.CONFIG_WRITE)

    def read() -> ToolServerList:
        found = ToolServerAdmin(service.app).entries()
        return ToolServerList(servers=[_summary(service, each) for each in found])

    return await anyio.to_thread.run_sync(read, limiter=service.readers)


@routes.get(_ONE)
async def review_tool_server(
    service: CurrentService, caller: CurrentCaller, name: str
) -> ToolServerReview:
    """What the server said when it was last looked at, with differences and findings."""
    require(service, caller, Permission.CONFIG_WRITE)

    def read() -> ToolServerReview:
        review = ToolServerAdmin(service.app).review(name)
        hide = service.paths.hide_in
        return ToolServerReview(
            name=review.entry.name,
            place=hide(_place(review.entry)),
            seen_at=review.entry.seen_at,
            shown_sha256=review.shown_sha256,
            waits=review.waits,
            definitions=[_definition(each) for each in review.tools],
        )

    return await anyio.to_thread.run_sync(read, limiter=service.readers)


@routes.post(_ONE)
async def decide_definitions(
    service: CurrentService, caller: CurrentCaller, name: str, body: DefinitionDecision
) -> DecidedDefinitions:
    """Accept or reject definitions as they were shown."""
    require(service, caller, Permission.CONFIG_WRITE)
    require_person(caller, "decides about no MCP server")

    def decide() -> Sequence[str]:
        admin = ToolServerAdmin(service.app)
        review: ServerReview = admin.review(name)
        review.check_shown(body.shown_sha256)
        if body.decision == "accept":
            return sorted(admin.accept(review, only=body.tools, who=caller.principal))
        waiting = [each.change.name for each in review.tools if each.waits and each.change.name]
        if not (body.tools or waiting):
            raise BadInput(
                f"no tool of {name} waits for a decision",
                hint="Name the tools to reject those that were accepted before.",
                code="CW-MCP-REVIEW",
            )
        return sorted(admin.reject(review, only=body.tools or waiting, who=caller.principal))

    tools = await anyio.to_thread.run_sync(decide, limiter=service.readers)
    return DecidedDefinitions(tools=list(tools))


def _summary(service: Service, entry: ServerEntry | CellwallError) -> ToolServerBody:
    hide = service.paths.hide_in
    if isinstance(entry, CellwallError):
        trouble = hide(entry.message)
        return ToolServerBody(name="", place="", seen_at="", accepted=0, waiting=0, trouble=trouble)
    return ToolServerBody(
        name=entry.name,
        place=hide(_place(entry)),
        seen_at=entry.seen_at,
        accepted=len(entry.pins.tools),
        waiting=len(waiting_in(entry)),
        trouble="",
    )


def _place(entry: ServerEntry) -> str:
    return entry.settings.url or " ".join(entry.settings.argv)


def _definition(tool: ReviewedTool) -> DefinitionBody:
    change = tool.change
    return DefinitionBody(
        tool=change.name,
        state=change.state,
        reason=change.reason,
        diff=change.diff(),
        findings=[
            DefinitionFinding(message=each.message, where=each.where, rule=each.rule)
            for each in tool.findings
        ],
        shadows=tool.shadows,
    )
