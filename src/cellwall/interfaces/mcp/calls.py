"""Tool calls, which can outlive the request that started them, and their questions to a person.

Under protocol 2026-07-28 a question to a person ends the request: the client receives the question
as the result and sends a new request with the answer. Meanwhile the action waits, judged and
recorded once, under a token that only this client knows: it runs in a task of its own, and requests
follow it. Under older protocols the question is a request from the server, and the action runs in
the task of its request.

The question may be answered elsewhere while the client still shows it. The result is kept under the
same token for a while: if it were lost, the agent would repeat the action.
"""

from __future__ import annotations

import secrets
import sys
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import anyio
import anyio.abc
from mcp_types import CallToolResult, ElicitRequestFormParams

from cellwall.config.debugging import shows_traces
from cellwall.core.errors import Busy, CellwallError
from cellwall.core.types import Principal
from cellwall.interfaces.mcp.elicitation import Elicitation, Put
from cellwall.interfaces.mcp.results import INTERNAL, refusal, result_of, session_result
from cellwall.interfaces.mcp.sessions import ClientSandboxes
from cellwall.interfaces.mcp.tools import (
    WITHOUT_SANDBOX,
    Arguments,
    arguments_of,
    operation_of,
)

if TYPE_CHECKING:
    from cellwall.core.types import Principal
    from cellwall.interfaces.mcp.gateway import GatewayTools


MAX_CALLS = 32
_MAX_KEPT = 16
_KEPT_FOR_S = 900.0
"""How long an unclaimed result is kept."""
_GONE = "no open question has this token; the answer allowed nothing"
_SEE_FIRST = "A person may have answered elsewhere: check for effects before you call again."


class PendingQuestion:
    """A question that waits for the client's reply."""

    def __init__(self, form: ElicitRequestFormParams) -> None:
        self.form = form
        self.is_open = True
        """Until it is answered, here or elsewhere, or times out."""
        self._replied = anyio.Event()
        self._reply: object = None

    def reply(self, reply: object) -> None:
        """The first reply counts."""
        if not self._replied.is_set():
            self._reply = reply
            self._replied.set()

    async def wait_for_reply(self) -> object:
        await self._replied.wait()
        return self._reply


class Call:
    """A running call: counts its output, and queues its questions and its result."""

    def __init__(
        self,
        tool: str,
        arguments: Mapping[str, object] | None,
        request: Arguments | tuple[str, str],
    ) -> None:
        """`request` are the checked arguments, or server and tool of another server's tool."""
        self.tool = tool
        self.arguments = dict(arguments or {})
        self.request = request
        self._scope: anyio.CancelScope | None = None
        self.written_bytes = 0
        # Unbounded, since no request may follow the call for a while: few questions, one result.
        self._steps: deque[PendingQuestion | CallToolResult] = deque()
        self._came: anyio.Event | None = None
        self._is_closed = False
        self.open: PendingQuestion | None = None
        """The question that the client shows and has not answered yet."""
        self.ended_s: float | None = None

    @property
    def scope(self) -> anyio.CancelScope:
        """Of the task of its own; made when needed, since most calls have no such task."""
        if self._scope is None:
            self._scope = anyio.CancelScope()
        return self._scope

    def count(self, _name: Literal["stdout", "stderr"], chunk: bytes) -> None:
        self.written_bytes += len(chunk)

    async def ask(self, form: ElicitRequestFormParams) -> object:
        question = PendingQuestion(form)
        try:
            self._put(question)
            return await question.wait_for_reply()
        finally:
            question.is_open = False

    def end(self, result: CallToolResult) -> None:
        self.ended_s = anyio.current_time()
        self._put(result)

    async def step(self) -> PendingQuestion | CallToolResult:
        """The next open question, or the result."""
        while True:
            while self._steps:
                step = self._steps.popleft()
                if not isinstance(step, PendingQuestion) or step.is_open:
                    return step
            if self._is_closed:
                raise anyio.EndOfStream
            self._came = anyio.Event()
            await self._came.wait()

    def close(self) -> None:
        """No more steps follow."""
        self._is_closed = True
        self._wake()

    def _put(self, step: PendingQuestion | CallToolResult) -> None:
        self._steps.append(step)
        self._wake()

    def _wake(self) -> None:
        if self._came is not None:
            self._came.set()


class Calls:
    """All calls of one client, bounded in number."""

    def __init__(
        self,
        sandboxes: ClientSandboxes,
        tasks: anyio.abc.TaskGroup,
        gateway: GatewayTools | None = None,
    ) -> None:
        self._sandboxes = sandboxes
        self._gateway = gateway
        self._tasks = tasks
        self._under_way: set[Call] = set()
        self._waiting: dict[str, Call] = {}

    @property
    def are_running(self) -> bool:
        return bool(self._under_way)

    def admit(
        self,
        tool: str,
        tool_input: Mapping[str, object] | None,
        *,
        other: tuple[str, str] | None,
    ) -> Call:
        """A call that may run; raises `Busy` if there are too many, `BadInput` for wrong arguments.
        `other` is the server and tool of a name that is not Cellwall's own."""
        if len(self._under_way) >= MAX_CALLS:
            raise Busy(
                f"{MAX_CALLS} calls are already running",
                hint="Wait for some of them to end.",
                code="CW-BUSY",
            )
        request = arguments_of(tool, tool_input) if other is None else other
        call = Call(tool, tool_input, request)
        self._under_way.add(call)
        return call

    async def run(self, call: Call, put: Put | None, *, counts: bool) -> CallToolResult:
        """The result, in the task of the request. `put` asks the client of the request."""
        try:
            return await self._result(call, put, counts=counts)
        finally:
            self._under_way.discard(call)

    def begin(self, call: Call, *, can_ask: bool, counts: bool) -> None:
        """Start a call in a task of its own: a request that ends with a question leaves it."""
        self._tasks.start_soon(self._follow, call, call.ask if can_ask else None, counts)

    async def _follow(
        self,
        call: Call,
        put: Put | None,
        counts: bool,  # noqa: FBT001  # a task group passes no keywords
    ) -> None:
        try:
            with call.scope:
                call.end(await self._result(call, put, counts=counts))
        finally:
            call.close()
            self._under_way.discard(call)
            self._forget()

    async def _result(self, call: Call, put: Put | None, *, counts: bool) -> CallToolResult:
        try:
            if isinstance(call.request, Arguments):
                return await self._done(call, call.request, put, counts=counts)
            return await self._call_other(call, call.request, put)
        except CellwallError as error:
            return refusal(error)
        except Exception as error:  # noqa: BLE001  # ERR-1: no trace of any exception leaves
            return internal(error)

    async def _done(
        self, call: Call, arguments: Arguments, put: Put | None, *, counts: bool
    ) -> CallToolResult:
        operation = operation_of(call.tool, arguments)
        if operation is None:
            return await self._about_sessions(call.tool, arguments)
        needs_none = call.tool in WITHOUT_SANDBOX
        sandbox = None if needs_none else await self._sandboxes.find(arguments.session)
        outcome = await self._sandboxes.perform(
            operation,
            sandbox=sandbox,
            timeout_s=arguments.timeout_s,
            sink=call.count if counts else None,
            ask=Elicitation(self._answerer, put),
        )
        return result_of(outcome, session=None if sandbox is None else sandbox.id)

    def _answerer(self) -> Principal:
        """The principal when the answer comes: a role may be lowered while a question waits."""
        return self._sandboxes.principal

    async def _call_other(
        self, call: Call, other: tuple[str, str], put: Put | None
    ) -> CallToolResult:
        """A tool of another server."""
        assert self._gateway is not None  # noqa: S101  # which has found the tool
        ask = Elicitation(self._answerer, put)
        return await self._gateway.call(other, call.arguments, ask=ask, put=put)

    async def _about_sessions(self, tool: str, arguments: Arguments) -> CallToolResult:
        if tool == "new_session":
            made = await self._sandboxes.new()
            return session_result(f"A fresh sandbox: {made.id}.", session=made.id)
        if arguments.session is None and self._sandboxes.is_empty:
            return session_result("There is no sandbox to end.", session=None)
        ended = await self._sandboxes.find(arguments.session)
        await self._sandboxes.end(ended)
        return session_result(f"Ended: {ended.id}.", session=ended.id)

    def park(self, call: Call, question: PendingQuestion) -> str:
        """Store the call under a new token, which the client sends to resume it."""
        call.open = question
        name = secrets.token_urlsafe(24)
        self._waiting[name] = call
        return name

    def resume(self, name: str | None, tool: str, arguments: Mapping[str, object] | None) -> Call:
        """The call under this token; a token works once, for one question."""
        self._forget()
        call = self._waiting.get(name) if name is not None else None
        if call is None or name is None:
            raise _no_question(_GONE)
        # The call that the person saw is the call that runs: other arguments are another call.
        if call.tool == tool and call.arguments == dict(arguments or {}):
            return self._waiting.pop(name)
        if call.open is None or not call.open.is_open:
            raise _no_question("this question was about another call, and was answered elsewhere")
        del self._waiting[name]
        call.scope.cancel()
        message = "this question was about another call; nothing was allowed"
        raise _no_question(message, hint="Call the tool again.")

    def _forget(self) -> None:
        """Drop cancelled calls, and the oldest and expired results."""
        now = anyio.current_time()
        kept = 0
        for name, call in reversed(list(self._waiting.items())):
            if call in self._under_way:
                continue
            kept += 1
            is_old = call.ended_s is None or now - call.ended_s > _KEPT_FOR_S
            if is_old or kept > _MAX_KEPT:
                del self._waiting[name]


def internal(error: Exception) -> CallToolResult:
    """An internal error without its message (ERR-1)."""
    if shows_traces():
        sys.excepthook(type(error), error, error.__traceback__)
    return refusal(INTERNAL)


def _no_question(message: str, *, hint: str = _SEE_FIRST) -> CellwallError:
    return CellwallError(message, hint=hint, code="CW-NO-QUESTION")
