"""Calls that code inside makes of functions outside: each is an action of its own (LANG-3)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from cellwall.core.errors import BadInput
from cellwall.core.outcomes import Outcome
from cellwall.core.ports import ToolCaller, ToolsPort
from cellwall.core.types import Action, CallTool, Json

Perform = Callable[[Action], Awaitable[Outcome]]


def tool_caller(action: Action, tools: ToolsPort | None, perform: Perform) -> ToolCaller | None:
    """How code of this action reaches a tool: through all the steps again."""
    if tools is None or not action.tools:
        return None

    async def call(message: Mapping[str, Json]) -> Mapping[str, Json]:
        name, args, kwargs = (message.get(key) for key in ("name", "args", "kwargs"))
        if not isinstance(name, str) or not isinstance(args, list) or not isinstance(kwargs, dict):
            return {"error": "this is not how a tool is called"}
        if name not in action.tools:
            return {"error": "the host offers no such tool"}
        operation = CallTool(name, args, kwargs, parent=action.id)
        asked = Action(
            principal=action.principal,
            operation=operation,
            session_id=action.session_id,
            policy=action.policy,
        )
        outcome = await perform(asked)
        if outcome.error is not None:
            return {"error": f"{outcome.error.code}: {outcome.error.message}"}
        return {"value": outcome.value}

    return call


async def called(tools: ToolsPort | None, operation: CallTool) -> Json:
    """What the host's own function answers."""
    if tools is None:
        raise BadInput("the host offers no tools", code="CW-NO-TOOLS")
    return await tools.call(operation.name, operation.args, operation.kwargs)
