"""Input and output of an action: texts pass the guard, and calls of host functions are actions.

Steps 3 and 9 run on the event loop for short texts and in a thread for long ones. The output of a
running cell passes the guard before the caller sees any of it (GRD-5, GRD-11). A tool call is an
action of its own (LANG-3).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any, Literal, TypeVar

import anyio
import anyio.to_thread

from cellwall.core.errors import BadInput
from cellwall.core.outcomes import Finding, Outcome, RunResult
from cellwall.core.ports import GuardPort, ToolsPort
from cellwall.core.sandbox_ports import ToolCaller
from cellwall.core.types import Action, CallTool, Json, OutputSink, RunCode, RunCommand
from cellwall.runtime.label_scopes import context_of
from cellwall.runtime.outcomes import without_output
from cellwall.runtime.output_view import OutputView

_Name = Literal["stdout", "stderr"]
_Result = TypeVar("_Result")

_AT_ONCE_S, _AT_ONCE_S_PER_BYTE, _AT_ONCE_S_PER_CHUNK = 0.05, 2e-6, 1e-4
"""CPU time on the event loop that the chunks of one run may take; ordinary text takes a tenth of it
for each byte, and a third for each chunk. Then the output is redacted in a thread, so that other
runs do not wait."""
_MAX_TURNS = 32
"""Switches between stdout and stderr in the queue; beyond it the chunks of a stream are joined."""
_SMALL_BYTES = 4 * 1024
"""Shorter texts and chunks are scanned on the event loop: the worst of this length takes 50 ms.
Longer ones are scanned in a thread, so that other actions proceed."""
_MAX_WAITING_BYTES = 8 * 1024 * 1024
_MIN_CLEANING_S = 10.0
"""Minimum time to redact the output, however little of its wall time a run has left."""


async def screen_input(guard: GuardPort, action: Action) -> Sequence[Finding]:
    """Findings about the input of an action."""
    if _text_length(action) < _SMALL_BYTES:
        return guard.screen(action)
    return await anyio.to_thread.run_sync(guard.screen, action)


async def clean_result(guard: GuardPort, action: Action, result: RunResult) -> RunResult:
    """The result, guarded and redacted, within the run's remaining wall time. Output that could not
    be checked in that time is dropped (LIM-2, GRD-11)."""
    if _is_small(result):
        return guard.clean(action, result)
    if not isinstance(action.operation, RunCode | RunCommand):
        return await anyio.to_thread.run_sync(guard.clean, action, result)
    left_s = action.limits.wall_s - result.usage.wall_s
    with anyio.move_on_after(max(left_s, _MIN_CLEANING_S)):
        return await anyio.to_thread.run_sync(guard.clean, action, result, abandon_on_cancel=True)
    return without_output(result)


def _is_small(result: RunResult) -> bool:
    """Whether it can be redacted on the event loop; structured results count as large."""
    if result.results or result.payload is not None or isinstance(result.value, list | dict):
        return False
    texts = (result.stdout, result.stderr, result.text or "", str(result.value or ""))
    return sum(map(len, texts)) < _SMALL_BYTES


def _text_length(action: Action) -> int:
    """The length of all texts in the operation; nested values count by their `str` form."""
    operation = action.operation
    parts = [getattr(operation, name) for name in _field_names(type(operation))]
    return sum(
        len(part) if isinstance(part, str | bytes) else len(str(part))
        for part in parts
        if part is not None and not isinstance(part, int | float)
    )


_names_of: dict[type[Any], tuple[str, ...]] = {}


def _field_names(operation: type[Any]) -> tuple[str, ...]:
    names = _names_of.get(operation)
    if names is None:
        names = _names_of[operation] = tuple(each.name for each in fields(operation))
    return names


class Listener:
    """The caller's sink; keeps its exception, which is the caller's fault and not the host's."""

    def __init__(self, sink: OutputSink) -> None:
        self._sink = sink
        self.error: Exception | None = None

    def __call__(self, name: _Name, chunk: bytes) -> None:
        try:
            self._sink(name, chunk)
        except Exception as error:
            self.error = error
            raise


class CleanedOutput:
    """A sandbox's output, passed on redacted and in order.

    The sandbox calls it on the event loop, and it calls the caller's sink there as well; only
    guard work that may take long runs in a thread.
    """

    def __init__(
        self, guard: GuardPort, sink: OutputSink | None, view: OutputView | None = None
    ) -> None:
        """`view` gets what the sink gets, and becomes the output of the result."""
        self._sink, self._view = sink, view
        self._cleaned: list[tuple[_Name, bytes]] = []
        self._guarded = guard.stream(lambda name, chunk: self._cleaned.append((name, chunk)))
        self._waiting: deque[tuple[_Name, bytes]] = deque()  # bounded by `is_full`
        self._waiting_bytes = 0
        self._arrived = anyio.Event()
        self._turn = anyio.Lock()
        self._bytes = self._chunks = 0
        self._spent_s = 0.0

    def __call__(self, name: _Name, chunk: bytes) -> None:
        self._bytes += len(chunk)
        self._chunks += 1
        is_free = not self._waiting and not self._turn.locked()
        if is_free and len(chunk) <= _SMALL_BYTES and self._may_work_here():
            begun_s = time.thread_time()
            self._guarded(name, chunk)
            self._spent_s += time.thread_time() - begun_s
            self._hand_on()
        else:
            self._waiting.append((name, chunk))
            self._waiting_bytes += len(chunk)
            self._arrived.set()

    @property
    def is_full(self) -> bool:
        """The sandbox reads no more output of its program until this is false again."""
        return self._waiting_bytes > _MAX_WAITING_BYTES

    def show(self, result: RunResult) -> RunResult:
        """After the end of the output."""
        return result if self._view is None else self._view.show(result)

    async def beside(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        """Run `work` and redact meanwhile. An exception of the sink cancels `work`."""
        results: list[_Result] = []
        problems: list[Exception] = []

        async def clean() -> None:
            try:
                while True:
                    await self._arrived.wait()
                    self._arrived = anyio.Event()
                    await self._work_off()
            except Exception as error:  # noqa: BLE001  # raised below, not as a group
                problems.append(error)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(clean)
            try:
                results.append(await work())
            except Exception as error:  # noqa: BLE001  # raised after the task group
                problems.append(error)
            tasks.cancel_scope.cancel()
        if problems:
            raise problems[0]
        return results[0]

    async def end(self) -> None:
        """End of output: pass on what the guard held back."""
        await self._work_off()
        async with self._turn:
            if self._bytes <= _SMALL_BYTES and self._may_work_here():
                self._guarded.end()  # holds back no more than it was given
            else:
                await anyio.to_thread.run_sync(self._guarded.end)
            self._hand_on()

    def _may_work_here(self) -> bool:
        allowed_s = self._bytes * _AT_ONCE_S_PER_BYTE + self._chunks * _AT_ONCE_S_PER_CHUNK
        return self._spent_s <= _AT_ONCE_S + allowed_s

    async def _work_off(self) -> None:
        async with self._turn:
            while self._waiting:
                # One batch: many small chunks cost more than one large one.
                batch = list(self._waiting)
                self._waiting.clear()
                self._waiting_bytes = 0
                # Shielded: a chunk taken from the queue is delivered even if the run is cancelled.
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(self._clean, batch)
                self._hand_on()

    def _clean(self, batch: list[tuple[_Name, bytes]]) -> None:
        if sum(one[0] != other[0] for one, other in pairwise(batch)) > _MAX_TURNS:
            # The order of two pipes is a guess, and each switch costs one more guard pass.
            batch = sorted(batch, key=lambda piece: piece[0], reverse=True)
        at = 0
        while at < len(batch):
            name, end = batch[at][0], at + 1
            while end < len(batch) and batch[end][0] == name:
                end += 1
            self._guarded(name, b"".join(chunk for _, chunk in batch[at:end]))
            at = end

    def _hand_on(self) -> None:
        cleaned, self._cleaned = self._cleaned, []
        for name, chunk in cleaned:
            if self._view is not None:
                self._view.add(name, chunk)
            if self._sink is not None:
                self._sink(name, chunk)


def cleaned_output(
    guard: GuardPort, action: Action, listener: Listener | None
) -> CleanedOutput | None:
    """None if no caller wants output before the end of the run."""
    if listener is None and not action.spills_output:
        return None
    view = OutputView(action.limits.output_bytes) if action.spills_output else None
    return CleanedOutput(guard, listener, view)


_Perform = Callable[[Action], Awaitable[Outcome]]


def tool_caller(action: Action, tools: ToolsPort | None, perform: _Perform) -> ToolCaller | None:
    """The function by which code of this action calls a host tool, through all steps again."""
    if tools is None or not action.tools:
        return None

    async def call(message: Mapping[str, Json]) -> Mapping[str, Json]:
        name, args, kwargs = (message.get(key) for key in ("name", "args", "kwargs"))
        if not isinstance(name, str) or not isinstance(args, list) or not isinstance(kwargs, dict):
            return {"error": "malformed tool call"}
        if name not in action.tools:
            return {"error": "the host offers no such tool"}
        operation = CallTool(name, args, kwargs, parent=action.id)
        call_action = Action(
            principal=action.principal,
            operation=operation,
            session_id=action.session_id,
            policy=action.policy,
            context=context_of(action),
        )
        outcome = await perform(call_action)
        if outcome.error is not None:
            return {"error": f"{outcome.error.code}: {outcome.error.message}"}
        return {"value": outcome.value}

    return call


async def call_tool(tools: ToolsPort | None, operation: CallTool) -> Json:
    """Call the host's own function."""
    if tools is None:
        raise BadInput("the host offers no tools", code="CW-NO-TOOLS")
    return await tools.call(operation.name, operation.args, operation.kwargs)
