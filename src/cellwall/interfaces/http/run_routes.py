"""Runs in the sandboxes of `/v1/sessions`, as JSON or as server-sent events."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from cellwall.admin.accounts import Identity, require_own
from cellwall.admin.fleet import host_lost
from cellwall.core.errors import BadInput, NotFound
from cellwall.core.languages import canonical
from cellwall.core.outcomes import Outcome
from cellwall.core.text import to_bytes
from cellwall.core.types import OutputSink, Permission, RunCode, RunCommand
from cellwall.core.users_inside import parse_user
from cellwall.interfaces.http.bodies import ERRORS
from cellwall.interfaces.http.bodies.sessions import CodeRequest, CommandRequest, OutcomeBody
from cellwall.interfaces.http.callers import Caller, CurrentCaller, require
from cellwall.interfaces.http.checked_route import CheckedRoute
from cellwall.interfaces.http.owned_sandbox import OwnedSandbox
from cellwall.interfaces.http.runs import Run
from cellwall.interfaces.http.service import CurrentService, Service, service_of
from cellwall.interfaces.http.waiting import CountedStream
from cellwall.interfaces.output_files import run_into_file
from cellwall.interfaces.sdk.execution import argv_of

EVENTS = "text/event-stream"
_LOOK_EVERY_S = 0.05
"""For a revocation, while a run is followed."""
_UNWATCHED_S = 0.05
"""A client that is gone is noticed after this time at the earliest."""
_EVENT_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

routes = APIRouter(route_class=CheckedRoute, tags=["sessions"], responses=ERRORS)
_ONE = "/sessions/{session_id}"

Accept = Annotated[str, Header(max_length=1000)]
Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=200)]
_RUN: dict[str, Any] = {
    "responses": {
        200: {
            "model": OutcomeBody,
            "description": "The outcome; with `Accept: text/event-stream` the events `stdout`, "
            "`stderr`, `result` and, as the last, `outcome`, or `error` for a run without one.",
            "headers": {"Cellwall-Run": {"schema": {"type": "string"}}},
            "content": {
                EVENTS: {
                    "schema": {"type": "string"},
                    "example": 'id: 1\nevent: stdout\ndata: {"text":"42\\n"}\n\n',
                }
            },
        }
    },
    "response_class": JSONResponse,
}


@routes.post(f"{_ONE}/code", **_RUN)
async def run_code(
    request: Request,
    caller: CurrentCaller,
    session_id: str,
    body: CodeRequest,
    accept: Accept = "*/*",
    key: Key = None,
) -> Response:
    """Run code in the live interpreter. A refusal is an outcome with the status `denied`."""
    sandbox = await service_of(request).sandboxes.find(caller.identity, session_id)
    operation = RunCode(canonical(body.language), to_bytes(body.code, what="the code"))
    return await _run(request, caller, sandbox, operation, body, accept=accept, key=key)


@routes.post(f"{_ONE}/commands", **_RUN)
async def run_command(
    request: Request,
    caller: CurrentCaller,
    session_id: str,
    body: CommandRequest,
    accept: Accept = "*/*",
    key: Key = None,
) -> Response:
    """Run a program. A refusal is an outcome with the status `denied`."""
    sandbox = await service_of(request).sandboxes.find(caller.identity, session_id)
    operation = RunCommand(argv_of(body.command), cwd=body.cwd, user=parse_user(body.user))
    return await _run(request, caller, sandbox, operation, body, accept=accept, key=key)


@routes.get(
    f"{_ONE}/runs/{{run_id}}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {EVENTS: {"schema": {"type": "string"}}}}},
)
async def follow_run(
    service: CurrentService,
    caller: CurrentCaller,
    session_id: str,
    run_id: str,
    last: Annotated[int, Header(alias="Last-Event-ID", ge=0)] = 0,
) -> Response:
    """The events of a run behind `Last-Event-ID`, after a lost connection."""
    sandbox = await service.sandboxes.find(caller.identity, session_id)
    run = sandbox.runs.find(run_id)
    with ExitStack() as stack:
        stack.enter_context(service.waiting.counted(caller.id))
        return _stream(_Follower(service, caller.identity, sandbox), run, last, stack.pop_all())


@routes.delete(f"{_ONE}/runs/{{run_id}}", status_code=204)
async def cancel_run(
    service: CurrentService, caller: CurrentCaller, session_id: str, run_id: str
) -> None:
    """End a run; its sandbox lives on."""
    require(service, caller, Permission.SANDBOX_EXECUTE)
    sandbox = await service.sandboxes.find(caller.identity, session_id)
    sandbox.runs.find(run_id).scope.cancel()


@asynccontextmanager
async def _keyed(service: Service, sandbox: OwnedSandbox, key: str | None) -> AsyncIterator[None]:
    """Refuse a run that a lost host may have executed: its key is in the database, and not here."""
    if key is None or sandbox.copy_snapshot is None:
        yield
        return
    async with sandbox.keying:  # of two requests with one key, the second joins the first
        if not sandbox.runs.knows(key):
            digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
            is_new = await service.store.add_run_key(sandbox.id, digest)
            if not is_new and sandbox.restarted_s is not None:
                raise host_lost(was_sent=True)
        yield


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

    # Without events or a key no client learns the id of the run before its end, so no client can
    # follow its output: streaming it would cost each run a third more.
    is_followed = _wants_events(accept) or key is not None

    perform = partial(
        sandbox.perform,
        caller.principal,
        operation,
        timeout=body.timeout,
        envs=body.envs,
        stdin=stdin,
    )
    output_file = body.output_file if isinstance(body, CommandRequest) else None

    async def work(sink: OutputSink) -> Outcome:
        if output_file is None:
            return await perform(sink=sink if is_followed else None)
        with service.spools.spool() as spool:
            return await run_into_file(
                partial(sandbox.perform, caller.principal),
                lambda keep: perform(sink=keep, spills=True),
                path=output_file,
                spool=spool,
            )

    path = request.url.path.encode("utf-8", "replace")
    own_key = None if key is None else f"{caller.id} {key}"
    content, service = await request.body(), service_of(request)
    with ExitStack() as stack:
        stack.enter_context(service.waiting.counted(caller.id))
        async with _keyed(service, sandbox, own_key):
            run = sandbox.runs.begin(work, key=own_key, request=path + b"\0" + content)
        if _wants_events(accept):
            follower = _Follower(service, caller.identity, sandbox)
            return _stream(follower, run, 0, stack.pop_all())
        outcome = await _outcome(request, run, is_joined_by_key=key is not None)
    return Response(outcome, media_type="application/json", headers={"Cellwall-Run": run.id})


async def _outcome(request: Request, run: Run, *, is_joined_by_key: bool) -> str:
    """Wait for the end of the run. A client that is gone cancels it, unless a key can join it."""
    # Most runs end before it is worth a task to watch the client.
    with anyio.move_on_after(_UNWATCHED_S):
        return await run.wait()
    outcomes: list[str] = []
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
    return any(part.partition(";")[0].strip().lower() == EVENTS for part in accept.split(","))


@dataclass(slots=True)
class _Follower:
    """Who reads the events of a run: a revocation ends the stream, as the end of a membership."""

    service: Service
    who: Identity
    sandbox: OwnedSandbox
    _revision: int = -1
    _looked_at: float = 0.0

    async def may_read(self) -> bool:
        if time.monotonic() - self._looked_at < _LOOK_EVERY_S:
            return True
        revision = await self.service.accounts.revision()
        if revision != self._revision:
            who = await self.service.accounts.renewed(self.who)
            if who is None or not _is_own(self.sandbox, who):
                return False
            self._revision = revision
        self._looked_at = time.monotonic()
        return True


def _is_own(sandbox: OwnedSandbox, who: Identity) -> bool:
    try:
        return require_own(sandbox, who, what="session") is sandbox
    except NotFound:
        return False


def _stream(follower: _Follower, run: Run, after: int, counted: ExitStack) -> CountedStream:
    async def chunks() -> AsyncIterator[bytes]:
        yield f": run {run.id}\nretry: 1000\n\n".encode()
        async for batch in run.events.stream(after):
            if not await follower.may_read():
                return
            yield batch

    headers = {**_EVENT_HEADERS, "Cellwall-Run": run.id}
    return CountedStream(chunks(), counted, media_type=EVENTS, headers=headers)
