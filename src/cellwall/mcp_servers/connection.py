"""The protocol with one server, over the pipes of its cell.

The server is hostile until proven otherwise: messages are bounded in size, values and rate, every
wait has a deadline, and a server that breaks a bound is ended. It can ask for nothing: sampling and
roots are not declared and are refused, a question to the person is passed on only where the user
has allowed it for this server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
from mcp.client.session import ClientRequestContext, ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    PROTOCOL_VERSION_META_KEY,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    Implementation,
    ListToolsRequest,
    ListToolsResult,
    PaginatedRequestParams,
    ToolListChangedNotification,
)

from cellwall.core.errors import ServerFailed
from cellwall.core.outcomes import RunResult
from cellwall.core.tool_servers import Elicit, ServerPipe
from cellwall.core.types import Json
from cellwall.mcp_servers.definitions import (
    MAX_TOOLS,
    BadDefinition,
    ToolSet,
    tool_set,
)
from cellwall.mcp_servers.forms import is_plain_form
from cellwall.mcp_servers.results import error_result, result_of
from cellwall.mcp_servers.server_messages import OutputMeter, message_of, without_content
from cellwall.mcp_servers.tool_calls import ToolCalls
from cellwall.parsing.jsonrpc import Lines
from cellwall.parsing.message_streams import MessageReader, Messages, MessageWriter

_OUR_NAME = "cellwall"
MAX_LINE_BYTES = 8 * 1024 * 1024
_MAX_PAGES = 32
_WRITE_WITHIN_S = 30.0
_MAX_UNREAD = 16
"""Messages that a server leaves unread before its requests are answered without their content."""
_MAX_QUESTIONS = 8
_MODERN_LIST_S = 60.0
"""Under protocol 2026-07-28 a server announces changes only to subscribers, so they are polled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Deadlines and permissions of one server."""

    start_timeout_s: float
    """For the handshake and each list of tools."""
    call_timeout_s: float
    may_elicit: bool = False
    version: str = ""
    """Cellwall's own, which the server is told."""


class ServerConnection:
    """One server from its handshake to its end; many calls at once."""

    def __init__(self, server: str, settings: ConnectionSettings) -> None:
        self.server = server
        self._settings = settings
        self._session: ClientSession | None = None
        self._calls: ToolCalls
        self._call_meta: Mapping[str, Json] = {}
        self._failure: ServerFailed | None = None
        self._askers: list[_Asker] = []
        self._listed_s = 0.0
        self.is_stale = True
        """Whether the list of tools must be read again before the next call."""
        self.on_change: Callable[[], None] = lambda: None
        """Called at once when the server announces other tools."""
        self.ended = anyio.Event()

    async def serve(self, pipe: ServerPipe, work: Callable[[], Awaitable[None]]) -> None:
        """Speak over the pipe until `work` returns. Any exception is that of `work`."""
        outgoing = MessageWriter(pipe.send_now, partial(_send, pipe), self._note_silence)
        self._calls = ToolCalls(outgoing)
        problem: Exception | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(outgoing.run)
                incoming = MessageReader(self._messages(pipe, outgoing))
                async with self._open_session(incoming, outgoing) as session:
                    self._session = session
                    try:
                        await work()
                    except Exception as error:  # noqa: BLE001  # raised below, not as a group
                        problem = error
                tasks.cancel_scope.cancel()
        finally:
            self._end()
            outgoing.close()
        if problem is not None:
            raise problem

    def _end(self) -> None:
        self.ended.set()
        self._calls.close()

    def _open_session(self, incoming: MessageReader, outgoing: MessageWriter) -> ClientSession:
        return ClientSession(
            incoming,
            outgoing,
            # Only a callback that is set is declared as a capability.
            elicitation_callback=self._elicit if self._settings.may_elicit else None,
            message_handler=self._notice,
            client_info=Implementation(name=_OUR_NAME, version=self._settings.version),
        )

    async def start(self) -> ToolSet:
        """The handshake, and the first list of tools."""
        with self._mapped("did not start"), anyio.fail_after(self._settings.start_timeout_s):
            session = self._open()
            try:
                await session.initialize()
            except MCPError as error:
                if error.code == CONNECTION_CLOSED:
                    raise
                await session.discover()  # a server of protocol 2026-07-28 alone
            self._call_meta = self._envelope(session)
        return await self.list_tools()

    async def list_tools(self) -> ToolSet:
        """The tools as the server lists them now."""
        listed: list[Mapping[str, Json]] = []
        with self._mapped("did not list its tools"):
            with anyio.fail_after(self._settings.start_timeout_s):
                # Before the request: a change announced meanwhile must not be lost.
                self.is_stale = False
                cursor: str | None = None
                for _ in range(_MAX_PAGES):
                    params = PaginatedRequestParams(cursor=cursor)
                    page = await self._open().send_request(
                        ListToolsRequest(params=params), ListToolsResult
                    )
                    listed += [_plain(tool) for tool in page.tools[: MAX_TOOLS + 1]]
                    if len(listed) > MAX_TOOLS:
                        break  # `tool_set` refuses them
                    cursor = page.next_cursor
                    if cursor is None:
                        break
                else:
                    raise BadDefinition(f"its tools have more than {_MAX_PAGES} pages")
            self._listed_s = anyio.current_time()
            return tool_set(self._identity(), listed)

    def _envelope(self, session: ClientSession) -> Mapping[str, Json]:
        """What each request of protocol 2026-07-28 states; older ones state it once."""
        if session.discover_result is None or session.protocol_version is None:
            return {}
        return {
            PROTOCOL_VERSION_META_KEY: session.protocol_version,
            CLIENT_INFO_META_KEY: {"name": _OUR_NAME, "version": self._settings.version},
            # Under this protocol a question is a result, which is not passed on.
            CLIENT_CAPABILITIES_META_KEY: {},
        }

    def _identity(self) -> dict[str, Json]:
        session = self._open()
        info = session.server_info
        described = {} if info is None else _plain(info)
        return {**described, "instructions": session.instructions}

    @property
    def must_list(self) -> bool:
        """Whether the tools may have changed since they were listed."""
        if self._open().discover_result is None:
            return self.is_stale
        return self.is_stale or anyio.current_time() - self._listed_s > _MODERN_LIST_S

    async def call(
        self, tool: str, arguments: Mapping[str, Json], *, elicit: Elicit | None
    ) -> RunResult:
        """Call a tool; an error that the server reports is a failed result."""
        if elicit is None:
            return await self._call(tool, arguments)
        with self._asking(elicit):
            return await self._call(tool, arguments)

    async def _call(self, tool: str, arguments: Mapping[str, Json]) -> RunResult:
        with self._mapped("did not answer"):
            is_modern = self._open().discover_result is not None
            try:
                # As `anyio.fail_after`, in a third of the calls.
                async with asyncio.timeout(self._settings.call_timeout_s):
                    # Not validated by the server's own schema, as `session.call_tool` does:
                    # a pattern in it could take for ever.
                    answer = await self._calls.call(tool, arguments, self._call_meta)
            except MCPError as error:
                if error.code == CONNECTION_CLOSED:
                    raise
                return error_result(error.message)
        if is_modern and answer.result_type != "complete":
            raise self._broken("wants input in a form that the gateway does not pass on")
        return result_of(answer)

    # --- what the server sends

    async def _messages(self, pipe: ServerPipe, outgoing: MessageWriter) -> Messages:
        """Until the server ends, closes its output or breaks a bound."""
        lines, meter = Lines(MAX_LINE_BYTES), OutputMeter()
        try:
            while chunk := await pipe.receive():
                found = lines.feed(chunk)
                if not meter.has_room(len(chunk), len(found)):
                    self._failure = self._broken("floods its output", code="CW-MCP-FLOOD")
                    return
                for number, line in enumerate(found):
                    if number:
                        # Attack: many messages at once would keep the event loop from other tasks.
                        await anyio.lowlevel.checkpoint()
                    message = message_of(line)
                    if message is not None and not self._calls.take(message):
                        # Attack: each request stays in memory until its answer can be written.
                        is_unread = outgoing.waiting_count >= _MAX_UNREAD
                        yield without_content(message) if is_unread else message
        except OSError:
            pass  # the pipe has ended
        finally:
            self._end()

    def _note_silence(self, error: OSError) -> None:
        """The server can be told nothing more."""
        if isinstance(error, TimeoutError):
            self._failure = self._broken("does not read its input", code="CW-MCP-TIMEOUT")
        self._end()

    async def _notice(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self.is_stale = True
            self.on_change()

    async def _elicit(
        self,
        context: ClientRequestContext,  # noqa: ARG002  # the SDK's signature
        params: ElicitRequestParams,
    ) -> ElicitResult | ErrorData:
        """A question of the server to the person. The answer goes to the server alone."""
        refused = ErrorData(code=INVALID_REQUEST, message="the question was refused")
        # With two calls under way it would be unclear which of them asks.
        if len(self._askers) != 1 or not isinstance(params, ElicitRequestFormParams):
            return refused
        (asker,) = self._askers
        if asker.questions >= _MAX_QUESTIONS or not is_plain_form(params.requested_schema):
            return refused
        asker.questions += 1
        content: Any = await asker.elicit(params.message, params.requested_schema)
        if content is None:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content=dict(content))

    @contextmanager
    def _asking(self, elicit: Elicit) -> Iterator[None]:
        asker = _Asker(elicit)
        self._askers.append(asker)
        try:
            yield
        finally:
            self._askers.remove(asker)

    # --- failures

    def _open(self) -> ClientSession:
        if self._session is None or self.ended.is_set():
            raise self._failure or self._broken("has ended")
        return self._session

    @contextmanager
    def _mapped(self, what: str) -> Iterator[None]:
        """Errors of the SDK and of the server as one error of ours; no text of the server."""
        try:
            yield
        except TimeoutError:
            raise self._broken(f"{what} in time", code="CW-MCP-TIMEOUT") from None
        except BadDefinition as problem:
            raise self._broken(f"cannot be used: {problem}") from None
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise self._failure or self._broken("ended, or closed its output") from None
            raise self._broken(f"{what}: it answered with an error ({error.code})") from None
        except (ValueError, RuntimeError, KeyError, TypeError, anyio.ClosedResourceError):
            raise self._failure or self._broken("broke the protocol") from None

    def _broken(self, what: str, *, code: str = "CW-MCP-FAILED") -> ServerFailed:
        return ServerFailed(
            f"the MCP server {self.server} {what}",
            hint="`cellwall mcp gateway review` starts it and shows what it says.",
            code=code,
        )


@dataclass(slots=True)
class _Asker:
    """A call under way whose client can ask a person."""

    elicit: Elicit
    questions: int = 0


async def _send(pipe: ServerPipe, data: bytes) -> None:
    with anyio.fail_after(_WRITE_WITHIN_S):
        await pipe.send(data)


def _plain(model: Any) -> dict[str, Json]:  # noqa: ANN401  # any model of the SDK
    dumped: dict[str, Json] = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dumped
