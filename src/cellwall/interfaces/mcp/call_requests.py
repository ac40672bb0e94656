"""Requests of a client around the SDK's own handling: calls of tools, and the handshake.

The SDK validates a request twice and its result once more, by the schema of the protocol's version,
and on standard input and output a task of its own passes each message on. Nearly all requests call
a tool, so these are validated once, and their results are written in the form of the protocol. A
test compares that form with the SDK's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from mcp.server.runner import serve_loop
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_REQUEST,
    PROTOCOL_VERSION_META_KEY,
    CallToolRequestParams,
    CallToolResult,
    ContentBlock,
    InputRequiredResult,
    JSONRPCRequest,
    TextContent,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from mcp.server.lowlevel.server import Server

    from cellwall.parsing.message_streams import MessageReader, MessageWriter

VERSIONS = frozenset({"2025-06-18", "2025-11-25"})
"""With the same form of results. Older versions have fewer fields, newer ones an envelope."""
_WRONG_ERA = (
    "this connection serves the handshake protocol era; "
    "requests carrying the 2026-07-28 envelope are not accepted on it"
)

AnswerCall = Callable[
    ["ServerRequestContext[Any]", CallToolRequestParams],
    Awaitable[CallToolResult | InputRequiredResult],
]


class CallRequests:
    """Implements the SDK's `ServerMiddleware`."""

    def __init__(self, answer: AnswerCall) -> None:
        self._answer = answer

    async def __call__(
        self, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        if ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS and _has_envelope(ctx.params):
            raise MCPError(code=INVALID_REQUEST, message=_WRONG_ERA)
        is_ready = ctx.session.client_params is not None
        if ctx.method != "tools/call" or ctx.protocol_version not in VERSIONS or not is_ready:
            return await call_next(ctx)
        params = CallToolRequestParams.model_validate(ctx.params or {}, by_name=False)
        return wire_form(await self._answer(ctx, params))


def wire_form(result: CallToolResult | InputRequiredResult) -> dict[str, Any]:
    """The result as these versions have it."""
    if isinstance(result, CallToolResult) and result.meta is None:
        # As the SDK's model dumps it, without a walk through all values.
        written: dict[str, Any] = {"content": [_written(block) for block in result.content]}
        if result.structured_content is not None:
            written["structuredContent"] = result.structured_content
        if result.is_error is not None:
            written["isError"] = result.is_error
        return written
    dumped = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    dumped.pop("resultType", None)
    return dumped


def _written(block: ContentBlock) -> dict[str, Any]:
    if isinstance(block, TextContent) and block.annotations is None and block.meta is None:
        return {"type": block.type, "text": block.text}
    return block.model_dump(by_alias=True, mode="json", exclude_none=True)


def _has_envelope(params: Any) -> bool:  # noqa: ANN401  # of any request
    meta = (params or {}).get("_meta")
    return isinstance(meta, dict) and PROTOCOL_VERSION_META_KEY in meta


async def serve_streams(
    server: Server[Any], incoming: MessageReader, outgoing: MessageWriter
) -> None:
    """Serve one client until it disconnects: `Server.run`, without its queue between the reader and
    the handlers where the client begins with the handshake, as nearly all do."""
    options = server.create_initialization_options()
    first = await incoming.peek()
    opening = None if first is None else first.message
    if not isinstance(opening, JSONRPCRequest) or opening.method != "initialize":
        await server.run(incoming, outgoing, options)
        return
    async with server.lifespan(server) as state:
        await serve_loop(server, incoming, outgoing, lifespan_state=state, init_options=options)
