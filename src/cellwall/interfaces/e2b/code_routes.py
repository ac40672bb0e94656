"""The code interpreter of E2B: `/execute` and `/contexts`.

A sandbox has one live Python interpreter, whose variables live as long as the sandbox: this is the
default context. Code in other languages starts anew each time.
"""

from __future__ import annotations

from contextlib import ExitStack

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cellwall.core.errors import NotFound
from cellwall.core.languages import canonical
from cellwall.core.text import to_bytes
from cellwall.core.types import RunCode
from cellwall.interfaces.e2b.access import open_sandbox
from cellwall.interfaces.e2b.bodies import ExecuteRequest, parse
from cellwall.interfaces.e2b.executions import ExecutionResponse
from cellwall.interfaces.e2b.paths import WORKSPACE
from cellwall.interfaces.e2b.problems import not_offered

DEFAULT_CONTEXT = "default"
_ONE_INTERPRETER = "a sandbox has one interpreter; create another sandbox"


async def execute(request: Request) -> Response:
    """`POST /execute`: run code and stream its output and results, one JSON object in a line."""
    access = await open_sandbox(request)
    with ExitStack() as stack:
        # Attack: requests that stay open take all connections.
        stack.enter_context(access.service.waiting.counted(access.grant.identity.user_id))
        body = parse(ExecuteRequest, await request.body())
        if body.context_id not in {None, DEFAULT_CONTEXT}:
            raise NotFound("there is no such context", hint="Leave the context out.")
        operation = RunCode(
            canonical(body.language or "python"), to_bytes(body.code, what="the code")
        )
        return ExecutionResponse(request, access, operation, body.env_vars, stack.pop_all())


async def list_contexts(request: Request) -> Response:
    """`GET /contexts`."""
    await open_sandbox(request, by_traffic_token=True)
    known = {"id": DEFAULT_CONTEXT, "language": "python", "cwd": WORKSPACE}
    return JSONResponse([known])


async def create_context(request: Request) -> Response:
    """`POST /contexts`."""
    await open_sandbox(request, by_traffic_token=True)
    raise not_offered("further contexts", _ONE_INTERPRETER)


async def change_context(request: Request) -> Response:
    """`DELETE /contexts/{id}` and `POST /contexts/{id}/restart`."""
    await open_sandbox(request, by_traffic_token=True)
    if request.path_params["context_id"] != DEFAULT_CONTEXT:
        raise NotFound("there is no such context")
    raise not_offered("restarts of the interpreter", _ONE_INTERPRETER)
