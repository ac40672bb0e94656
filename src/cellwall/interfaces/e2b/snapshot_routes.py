"""Snapshots and forks as E2B's SDKs have them: files and plain variables, no memory (FS-9)."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cellwall.admin import snapshots as admin
from cellwall.core.snapshots import WorkspaceSnapshot
from cellwall.core.types import Permission
from cellwall.interfaces.e2b.access import caller_by_key
from cellwall.interfaces.e2b.bodies import NewFork, TakenSnapshot, parse
from cellwall.interfaces.e2b.control_routes import SNAPSHOT_PREFIX, find_sandbox, opened, page_size
from cellwall.interfaces.e2b.problems import not_offered
from cellwall.interfaces.e2b.state import extend_lifetime, state_of
from cellwall.interfaces.http.callers import require
from cellwall.interfaces.http.service import service_of
from cellwall.interfaces.http.snapshots import fork_sandbox, snapshot_sandbox


async def create_snapshot(request: Request) -> Response:
    """`POST /sandboxes/{id}/snapshots`."""
    caller = await caller_by_key(request)
    body = parse(TakenSnapshot, await request.body())
    if body.memory:
        raise not_offered(
            "a snapshot of memory", "files and plain variables are kept; use mode='filesystem'"
        )
    sandbox, _facts = await find_sandbox(request, caller)
    taken = await snapshot_sandbox(
        sandbox, caller.principal, name=body.name, state=body.memory is None
    )
    return JSONResponse(_info(taken), status_code=201)


async def list_snapshots(request: Request) -> Response:
    """`GET /snapshots`: those of the caller, by id."""
    service, caller = service_of(request), await caller_by_key(request)
    query = request.query_params
    read = partial(admin.list_snapshots, service.app, owner=caller.id)
    found = await anyio.to_thread.run_sync(read, limiter=service.readers)
    session = state_of(request).session_id(query["sandboxID"]) if "sandboxID" in query else None
    name, after = query.get("name"), query.get("nextToken", "")
    chosen = [
        each
        for each in sorted(found, key=lambda each: each.id)
        if session in (None, each.session) and name in (None, each.name) and each.id > after
    ]
    limit = page_size(query.get("limit", ""))
    headers = {"X-Next-Token": chosen[limit - 1].id} if len(chosen) > limit else {}
    return JSONResponse([_info(each) for each in chosen[:limit]], headers=headers)


async def delete_snapshot(request: Request) -> Response:
    """`DELETE /templates/{id}`, by which the SDKs delete a snapshot."""
    service, caller = service_of(request), await caller_by_key(request)
    name = str(request.path_params["template_id"])
    if not name.startswith(SNAPSHOT_PREFIX):
        raise not_offered("templates", "templates are made by `cellwall template`")
    delete = partial(
        admin.delete_snapshot, service.app, name, principal=caller.principal, owner=caller.id
    )
    await anyio.to_thread.run_sync(delete)
    return Response(status_code=204)


async def fork_live(request: Request) -> Response:
    """`POST /sandboxes/{id}/fork`: all of them or none."""
    service, caller, state = service_of(request), await caller_by_key(request), state_of(request)
    body = parse(NewFork, await request.body())
    require(service, caller, Permission.SANDBOX_EXECUTE)
    sandbox, facts = await find_sandbox(request, caller)
    made, _taken = await fork_sandbox(
        service,
        caller.identity,
        caller.principal,
        sandbox,
        count=body.count,
        state=True,
        end_processes=False,
    )
    results: list[dict[str, Any]] = []
    for each in made:
        extend_lifetime(each, body.timeout)
        added = state.add(
            each,
            public_id=each.id,
            template=facts.template,
            metadata=facts.metadata,
            spec=facts.spec,
        )
        results.append({"sandbox": opened(request, caller, added)})
    return JSONResponse(results, status_code=201)


def _info(taken: WorkspaceSnapshot) -> dict[str, Any]:
    return {"snapshotID": taken.id, "names": [taken.name] if taken.name else []}
