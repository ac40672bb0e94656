"""`/v1/sessions`: sandboxes of the caller, and runs in them as JSON or as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from cellwall.core.errors import BadInput
from cellwall.core.outcomes import Outcome
from cellwall.core.text import to_bytes
from cellwall.core.types import OutputSink, RunCode, RunCommand
from cellwall.interfaces.http.bodies import (
    ERRORS,
    CodeRequest,
    CommandRequest,
    NewSession,
    Session,
    SessionPage,
)
from cellwall.interfaces.http.callers import Caller, CurrentCaller
from cellwall.interfaces.http.rendering import outcome_json
from cellwall.interfaces.http.runs import Run
from cellwall.interfaces.http.sandboxes import OwnedSandbox, OwnedSandboxes
from cellwall.interfaces.sdk.commands import argv_of
from cellwall.interfaces.sdk.hosts import SandboxSpec
from cellwall.core.languages import canonical

EVENTS = "text/event-stream"
_EVENT_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

routes = APIRouter(tags=["sessions"], responses=ERRORS)


def sandboxes_of(request: Request) -> OwnedSandboxes:
    """The sandboxes of the service."""
    found: OwnedSandboxes = request.app.state.sandboxes
    return found


def describe(sandbox: OwnedSandbox) -> Session:
    return Session(
        id=sandbox.id,
        template=sandbox.template,
        created=sandbox.made_s,
        ends_in=round(sandbox.ends_in_s, 1),
        is_busy=sandbox.busy > 0,
    )


@routes.post("/sessions", status_code=201)
async def create_session(
    request: Request, response: Response, caller: CurrentCaller, body: NewSession
) -> Session:
    """Create a sandbox."""
    spec = SandboxSpec(
        workspace=None,  # a directory of the host is never a client's choice
        policy=None,  # nor is the policy
        allow_domains=body.allow_domains,
        registries=body.packages,
        secrets=body.secrets,
        envs=body.envs,
        timeout=body.timeout,
        memory=body.memory,
        limits=body.limits,
        template=body.template,
        skills=body.skills,
    )
    made = await sandboxes_of(request).create(caller, spec, body.keep_alive)
    response.headers["Location"] = f"/v1/sessions/{made.id}"
    return describe(made)


@routes.get("/sessions")
async def list_sessions(
    request: Request,
    caller: CurrentCaller,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    after: Annotated[str | None, Query(max_length=60)] = None,
) -> SessionPage:
    """The caller's live sandboxes, the oldest first."""
    found = sandboxes_of(request).of(caller)
    start = next((at + 1 for at, each in enumerate(found) if each.id == after), 0)
    page = found[start : start + limit]
    has_more = start + limit < len(found)
    return SessionPage(sessions=list(map(describe, page)), next=page[-1].id if has_more else None)


@routes.get("/sessions/{session_id}")
async def get_session(request: Request, caller: CurrentCaller, session_id: str) -> Session:
    """One sandbox."""
    return describe(sandboxes_of(request).find(caller, session_id))


@routes.delete("/sessions/{session_id}", status_code=204)
async def end_session(request: Request, caller: CurrentCaller, session_id: str) -> None:
    """End a sandbox with everything in it."""
    sandboxes = sandboxes_of(request)
    await sandboxes.end(sandboxes.find(caller, session_id))


Accept = Annotated[str, Header(max_length=1000)]
Key = Annotated[str | None, Header(alias="Idempotency-Key", max_length=200)]
_RUN: dict[str, Any] = {
    "responses": {
        200: {
            "description": "The outcome; with `Accept: text/event-stream` the events `stdout`, "
            "`stderr`, `result` and, as the last, `outcome`.",
            "content": {"application/json": {}, EVENTS: {}},
        }
    },
    "response_class": JSONResponse,
}


@routes.post("/sessions/{session_id}/code", **_RUN)
async def run_code(
    request: Request,
    caller: CurrentCaller,
    session_id: str,
    body: CodeRequest,
    accept: Accept = "*/*",
    key: Key = None,
) -> Response:
    """Run code in the live interpreter. A refusal is an outcome with the status `denied`."""
    operation = RunCode(canonical(body.language), to_bytes(body.code, what="the code"))
    sandbox = sandboxes_of(request).find(caller, session_id)
    return await _run(request, caller, sandbox, operation, body, accept=accept, key=key)


@routes.post("/sessions/{session_id}/commands", **_RUN)
async def run_command(
    request: Request,
    caller: CurrentCaller,
    session_id: str,
    body: CommandRequest,
    accept: Accept = "*/*",
    key: Key = None,
) -> Response:
    """Run a program. A refusal is an outcome with the status `denied`."""
    operation = RunCommand(argv_of(body.command), cwd=body.cwd)
    sandbox = sandboxes_of(request).find(caller, session_id)
    return await _run(request, caller, sandbox, operation, body, accept=accept, key=key)


@routes.get("/sessions/{session_id}/runs/{run_id}/events", response_class=StreamingResponse)
async def follow_run(
    request: Request,
    caller: CurrentCaller,
    session_id: str,
    run_id: str,
    last: Annotated[int, Header(alias="Last-Event-ID", ge=0)] = 0,
) -> Response:
    """The events of a run behind `Last-Event-ID`, after a lost connection."""
    run = sandboxes_of(request).find(caller, session_id).runs.find(run_id)
    return _stream(run, last)


@routes.delete("/sessions/{session_id}/runs/{run_id}", status_code=204)
async def cancel_run(request: Request, caller: CurrentCaller, session_id: str, run_id: str) -> None:
    """End a run; its sandbox lives on."""
    sandboxes_of(request).find(caller, session_id).runs.find(run_id).scope.cancel()


async def _run(
    request: Request,
    caller: Caller,
    sandbox: OwnedSandbox,
    operation: RunCode | RunCommand,
    body: CodeRequest | CommandRequest,
    *,
    accept: str,
    key: str | None,
) -> Response:
    stdin = None if body.stdin is None else to_bytes(body.stdin, what="standard input")

    async def work(sink: OutputSink) -> Outcome:
        with sandbox.in_use():
            return await sandbox.host.perform(
                operation,
                timeout=body.timeout,
                envs=body.envs,
                stdin=stdin,
                sink=sink,
                principal=caller.principal,
            )

    path = request.url.path.encode()
    run = sandbox.runs.begin(work, key=key, request=path + b"\0" + await request.body())
    if _wants_events(accept):
        return _stream(run, 0)
    outcome = await _outcome(request, run, is_joined_by_key=key is not None)
    return JSONResponse(outcome_json(outcome), headers={"Cellwall-Run": run.id})


async def _outcome(request: Request, run: Run, *, is_joined_by_key: bool) -> Outcome:
    """Wait for the end of the run. A client that is gone cancels it, unless a key can join it."""
    outcomes: list[Outcome] = []
    failures: list[Exception] = []
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            if not is_joined_by_key:
                run.scope.cancel()
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        try:
            outcomes.append(await run.wait())
        except Exception as error:  # noqa: BLE001  # raised below, not as a group
            failures.append(error)
        tasks.cancel_scope.cancel()
    if outcomes:
        return outcomes[0]
    raise failures[0] if failures else BadInput("the client is gone", code="CW-CANCELLED")


def _wants_events(accept: str) -> bool:
    return any(part.partition(";")[0].strip() == EVENTS for part in accept.split(","))


def _stream(run: Run, after: int) -> StreamingResponse:
    async def chunks() -> AsyncIterator[bytes]:
        yield f": run {run.id}\nretry: 1000\n\n".encode()
        async for event in run.events(after):
            yield event.encode()

    headers = {**_EVENT_HEADERS, "Cellwall-Run": run.id}
    return StreamingResponse(chunks(), media_type=EVENTS, headers=headers)
