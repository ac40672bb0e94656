"""The tools of other MCP servers for one client, beside Cellwall's own (SRV-7).

A tool is shown by the definition that a person has accepted, never by what its server says now. Its
call is an action, and its result is shown as the runtime has cleaned it. No transport is known
here: whatever serves Cellwall's own tools serves these as well.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from mcp_types import CallToolResult, ElicitRequestFormParams, ElicitResult, Tool

from cellwall.core.errors import BadInput
from cellwall.core.ids import new_id
from cellwall.core.outcomes import Status
from cellwall.core.showing import block, fit
from cellwall.core.tool_servers import CallServerTool, check_server_name
from cellwall.core.types import Action, Json, Permission, Principal
from cellwall.interfaces.mcp.results import result_of
from cellwall.interfaces.mcp.tools import SHORT_OUTPUT_SCHEMA
from cellwall.runtime.app import App
from cellwall.runtime.offered_tools import OfferedTool
from cellwall.runtime.tool_servers import ToolServers

if TYPE_CHECKING:
    from cellwall.core.ports import ApproverPort

_MAX_QUESTION, _COLUMNS = 2000, 72
_INDENT = "    "

Put = Callable[[ElicitRequestFormParams], Awaitable[object]]
"""Shows a form to the person at the client and returns the reply."""


class GatewayTools:
    """The accepted tools of all configured servers, for one client."""

    def __init__(
        self,
        app: App,
        servers: ToolServers,
        *,
        who: Callable[[], Principal],
        policy: tuple[str, ...],
        context: str,
    ) -> None:
        """`who` makes the calls: over HTTP, the role of a user may change between two of them."""
        self._app = app
        self._servers = servers
        self._who = who
        self._policy = policy
        self._context = context

    @property
    def _may_call(self) -> bool:
        role = self._app.runtime.roles.role_of(self._who())
        return Permission.TOOLS_CALL in role.permissions

    def tools(self) -> list[Tool]:
        """All tools that are offered now; none to a caller who may call none."""
        if not self._may_call:
            return []
        offered = self._servers.offered().tools
        gone = self._servers.withheld_now()
        return [_shown(tool) for key, tool in sorted(offered.items()) if key not in gone]

    async def find(self, name: str) -> tuple[str, str] | None:
        """Server and tool of a name; None for a name that cannot be one of these.

        A tool that is not offered is found as well: its call is judged, refused and recorded.
        """
        if not self._may_call:  # guesses must not tell which servers there are
            return None
        offered = (await self._servers.offered_now()).by_name.get(name)
        if offered is not None:
            return offered.server, offered.tool
        server, hyphen, tool = name.partition("-")
        try:
            known = check_server_name(server) in self._servers.names()
        except BadInput:
            return None
        return (server, tool) if hyphen and tool and known else None

    async def call(
        self,
        found: tuple[str, str],
        arguments: Mapping[str, object] | None,
        *,
        ask: ApproverPort,
        put: Put | None,
    ) -> CallToolResult:
        """One call, as an action, of what `find` found."""
        server, tool = found
        elicit = None if put is None else _Questions(server, put)
        operation = CallServerTool(server, tool, _checked(arguments), elicit)
        action = Action(
            id=new_id("act"),
            principal=self._who(),
            operation=operation,
            session_id=await self._servers.session_for(operation),
            policy=self._policy,
            audience="model",
            context=self._context,
        )
        outcome = await self._app.runtime.perform(action, servers=self._servers, ask=ask)
        result = result_of(outcome, session=None)
        result.is_error = outcome.status is not Status.OK
        return result


def _checked(arguments: Mapping[str, object] | None) -> Mapping[str, Json]:
    """Parsed from JSON by the SDK; bounded by the runtime."""
    found: dict[str, Any] = dict(arguments or {})
    return found


def _shown(offered: OfferedTool) -> Tool:
    """Only fields that a model needs; the result has Cellwall's own form.

    No annotations: a client may skip a question for a tool that calls itself harmless.
    """
    fields = offered.definition.fields
    schema = fields.get("inputSchema")
    return Tool(
        name=offered.name,
        title=str(fields["title"]) if "title" in fields else None,
        description=str(fields.get("description", "")),
        input_schema=dict(schema) if isinstance(schema, Mapping) else {"type": "object"},
        output_schema=dict(SHORT_OUTPUT_SCHEMA),
    )


class _Questions:
    """Passes a question of a server to the person, marked with the name of the server."""

    def __init__(self, server: str, put: Put) -> None:
        self._server = server
        self._put = put

    async def __call__(self, message: str, schema: Mapping[str, Json]) -> Mapping[str, Json] | None:
        quoted = fit(block(message[:_MAX_QUESTION]), _COLUMNS)
        shown = "\n".join(_INDENT + line for line in quoted.splitlines())
        text = (
            f"The MCP server {self._server} asks you. Cellwall has not written this question and "
            f"does not vouch for it; your answer goes to that server. Do not enter a password or "
            f"key.\n\n{shown}"
        )
        form: dict[str, Any] = {
            "type": "object",
            "properties": schema.get("properties", {}),
            "required": schema.get("required", []),
        }
        reply = await self._put(ElicitRequestFormParams(message=text, requested_schema=form))
        if not isinstance(reply, ElicitResult) or reply.action != "accept":
            return None
        content: dict[str, Any] = dict(reply.content or {})
        return content
