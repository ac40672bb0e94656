"""One run of code as a stream of JSON lines, as the code interpreter SDK reads them.

The response begins with the first output or with the end of the run, so that a refusal is an error
response and not a stream. A client that leaves ends its run.
"""

from __future__ import annotations

import codecs
import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal

import anyio
from starlette.requests import Request
from starlette.responses import Response

from cellwall.core.outcomes import Outcome, Status
from cellwall.core.text import plain
from cellwall.core.types import RunCode
from cellwall.interfaces.e2b.access import SandboxAccess
from cellwall.interfaces.e2b.problems import problem_of

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_FORMS = (
    *("html", "markdown", "svg", "png", "jpeg", "pdf", "latex", "json", "javascript", "chart"),
)
_HEADERS = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store")]
_UNWATCHED_S = 0.05
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class ExecutionResponse(Response):
    """Runs the code while it is sent."""

    def __init__(
        self,
        request: Request,
        access: SandboxAccess,
        operation: RunCode,
        envs: Mapping[str, str] | None,
        counted: ExitStack,
    ) -> None:
        super().__init__()
        self._request, self._access, self._operation = request, access, operation
        self._envs, self._counted = envs, counted
        self._lines: list[bytes] = []
        self._news = anyio.Event()
        self._failure: Exception | None = None
        self._is_over = False
        self._has_output = False
        make = codecs.getincrementaldecoder("utf-8")
        self._decoders = {"stdout": make("replace"), "stderr": make("replace")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._counted:
            async with anyio.create_task_group() as tasks:

                async def leave_with_client() -> None:
                    while (await receive())["type"] != "http.disconnect":
                        pass
                    tasks.cancel_scope.cancel()

                tasks.start_soon(self._run)
                # Most code ends before it is worth a task to watch the client.
                with anyio.move_on_after(_UNWATCHED_S):
                    await self._news.wait()
                if not self._is_over:
                    tasks.start_soon(leave_with_client)
                await self._send(scope, receive, send)
                tasks.cancel_scope.cancel()

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_begun = False
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            if self._failure is not None and not is_begun:
                problem = await problem_of(self._request, self._failure)
                await problem.response()(scope, receive, send)
                return
            if not is_begun:
                start = {"type": "http.response.start", "status": 200, "headers": [*_HEADERS]}
                await send(start)
                is_begun = True
            if self._failure is not None:
                problem = await problem_of(self._request, self._failure)
                self._add({"type": "error", "name": "CellwallError", "value": problem.message,
                           "traceback": ""})  # fmt: skip
            chunk, is_over = b"".join(self._lines), self._is_over
            self._lines.clear()
            await send({"type": "http.response.body", "body": chunk, "more_body": not is_over})
            if is_over:
                return

    async def _run(self) -> None:
        access = self._access
        access.facts.executions += 1
        count = access.facts.executions
        try:
            self._end(await access.perform(self._operation, envs=self._envs, sink=self._write))
            self._add({"type": "number_of_executions", "execution_count": count})
        except Exception as error:  # noqa: BLE001  # sent to the client that waits
            self._failure = error
        self._is_over = True
        self._news.set()

    def _write(self, name: Literal["stdout", "stderr"], chunk: bytes) -> None:
        """Implements `OutputSink`."""
        self._has_output = True
        if text := self._decoders[name].decode(chunk):
            self._add({"type": name, "text": text, "timestamp": time.time_ns()})

    def _end(self, outcome: Outcome) -> None:
        if not self._has_output:
            self._write("stdout", outcome.stdout.encode("utf-8", "replace"))
            self._write("stderr", outcome.stderr.encode("utf-8", "replace"))
        for name, decoder in self._decoders.items():
            if text := decoder.decode(b"", final=True):
                self._add({"type": name, "text": text, "timestamp": time.time_ns()})
        for result in results_of(outcome):
            self._add({"type": "result", **result})
        error = error_of(outcome)
        if error is not None:
            self._add({"type": "error", **error})

    def _add(self, line: dict[str, Any]) -> None:
        self._lines.append(_encode(plain(line)).encode("utf-8", "replace") + b"\n")
        self._news.set()


def results_of(outcome: Outcome) -> list[dict[str, Any]]:
    """Shown objects and figures, and the value of the last expression as the main result."""
    found: list[dict[str, Any]] = []
    has_main = outcome.text is None
    for result in outcome.results:
        if not isinstance(result, Mapping):
            continue
        forms: dict[str, Any] = {name: result[name] for name in _FORMS if name in result}
        # The last expression is shown in its forms, and its text is the same.
        is_main = not has_main and bool(forms) and result.get("text") == outcome.text
        has_main |= is_main
        data = {"data": {"records": result["records"]}} if "records" in result else {}
        text = {"text": result.get("text")}
        found.append({**text, **forms, **data, "is_main_result": is_main})
    if not has_main:
        found.append({"text": outcome.text, "is_main_result": True})
    return found


def error_of(outcome: Outcome) -> dict[str, Any] | None:
    """The exception of the code, the limit that ended the run, or a bad exit code."""
    error = outcome.code_error
    if isinstance(error, Mapping):
        return {
            "name": error.get("type", "Error"),
            "value": error.get("message", ""),
            "traceback": error.get("traceback", ""),
        }
    if outcome.status is Status.LIMIT:
        value = f"the run was ended by its {outcome.limit} limit"
        return {"name": "LimitReached", "value": value, "traceback": ""}
    if outcome.status is Status.FAILED:
        return {"name": "SystemExit", "value": str(outcome.exit_code), "traceback": ""}
    return None
