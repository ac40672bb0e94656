"""The code interpreter of E2B: `/execute` and `/contexts`.

A sandbox has one live Python interpreter, whose variables live as long as the sandbox. A context
has variables of its own in this interpreter; modules and the process are shared. A context of
JavaScript or TypeScript is a process of its own. Code in other languages starts anew each time.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cellwall.core.errors import BadInput, NotFound
from cellwall.core.ids import new_id
from cellwall.core.languages import canonical
from cellwall.core.outcomes import Status
from cellwall.core.text import to_bytes
from cellwall.core.types import RunCode
from cellwall.interfaces.e2b.access import SandboxAccess, open_sandbox
from cellwall.interfaces.e2b.bodies import ExecuteRequest, NewContext, parse
from cellwall.interfaces.e2b.executions import ExecutionResponse
from cellwall.interfaces.e2b.paths import WORKSPACE
from cellwall.interfaces.e2b.problems import not_offered
from cellwall.interfaces.e2b.state import CodeContext

MAX_CONTEXTS = 32
_FIRST = CodeContext("default", WORKSPACE, "")


class _ContextCode(NamedTuple):
    """Code that changes the directory of a context, and that forgets its variables."""

    enter: str
    clear: str


_SCRIPT = _ContextCode("process.chdir({})", "process.reallyExit(0)")
_CODE = {
    "python": _ContextCode("import os\nos.chdir({})\ndel os", "globals().clear()"),
    "javascript": _SCRIPT,
    "typescript": _SCRIPT,
}
"""By the languages that have contexts. Variables of a script end with its interpreter."""


async def execute(request: Request) -> Response:
    """`POST /execute`: run code and stream its output and results, one JSON object in a line."""
    access = await open_sandbox(request)
    with ExitStack() as stack:
        # Attack: requests that stay open take all connections.
        stack.enter_context(access.service.waiting.counted(access.grant.identity.user_id))
        body = parse(ExecuteRequest, await request.body())
        context = _find(access, body.context_id or _FIRST.id)
        language = context.language if body.context_id else body.language or "python"
        operation = RunCode(
            canonical(language),
            to_bytes(body.code, what="the code"),
            context.name,
        )
        return ExecutionResponse(request, access, operation, body.env_vars, stack.pop_all())


async def list_contexts(request: Request) -> Response:
    """`GET /contexts`."""
    access = await open_sandbox(request, by_traffic_token=True)
    known = {_FIRST.id: _FIRST, **access.facts.contexts}
    return JSONResponse([_described(each) for each in known.values()])


async def create_context(request: Request) -> Response:
    """`POST /contexts`: the directory is entered by code in the new context."""
    access = await open_sandbox(request, by_traffic_token=True)
    body = parse(NewContext, await request.body())
    language = canonical(body.language or "python")
    if language not in _CODE:
        raise not_offered("contexts of this language", "its code starts anew each time")
    if len(access.facts.contexts) >= MAX_CONTEXTS:
        raise BadInput(f"a sandbox has at most {MAX_CONTEXTS} contexts", hint="Remove one.")
    context = CodeContext(new_id("ctx"), body.cwd or WORKSPACE, new_id("ctx"), language)
    # No await since the count: concurrent requests cannot exceed it.
    access.facts.contexts[context.id] = context
    try:
        await _enter(access, context)
    except BaseException:
        access.facts.contexts.pop(context.id, None)
        raise
    return JSONResponse(_described(context))


async def remove_context(request: Request) -> Response:
    """`DELETE /contexts/{id}`."""
    access = await open_sandbox(request, by_traffic_token=True)
    context = _find(access, str(request.path_params["context_id"]))
    await _clear(access, context)
    access.facts.contexts.pop(context.id, None)
    return Response(status_code=204)


async def restart_context(request: Request) -> Response:
    """`POST /contexts/{id}/restart`: without its variables; threads and modules live on."""
    access = await open_sandbox(request, by_traffic_token=True)
    context = _find(access, str(request.path_params["context_id"]))
    await _clear(access, context)
    if context.cwd != WORKSPACE:
        await _enter(access, context)
    return Response(status_code=204)


def _find(access: SandboxAccess, name: str) -> CodeContext:
    found = _FIRST if name == _FIRST.id else access.facts.contexts.get(name)
    if found is None:
        raise NotFound("there is no such context", hint="`list_code_contexts()` lists them.")
    return found


async def _enter(access: SandboxAccess, context: CodeContext) -> None:
    await _run(
        access,
        context,
        _CODE[context.language].enter.format(json.dumps(context.cwd, ensure_ascii=False)),
    )


async def _clear(access: SandboxAccess, context: CodeContext) -> None:
    await _run(access, context, _CODE[context.language].clear)


async def _run(access: SandboxAccess, context: CodeContext, code: str) -> None:
    operation = RunCode(context.language, to_bytes(code, what="the code"), context.name)
    outcome = await access.perform(operation)
    if outcome.status is not Status.OK:
        raise BadInput("the directory of the context cannot be entered")


def _described(context: CodeContext) -> dict[str, str]:
    return {"id": context.id, "language": context.language, "cwd": context.cwd}
