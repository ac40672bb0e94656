"""`/v1/snapshots` and forks: files of the caller's sandboxes, kept and multiplied (FS-9)."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import anyio
import anyio.to_thread
from fastapi import APIRouter, Query, Response

from cellwall.admin import snapshots as admin
from cellwall.core.snapshots import WorkspaceSnapshot
from cellwall.core.types import Permission
from cellwall.interfaces.http.bodies import ERRORS
from cellwall.interfaces.http.bodies.snapshots import (
    ForkRequest,
    ForksBody,
    NewSnapshot,
    NotCarriedBody,
    SnapshotBody,
    SnapshotPage,
)
from cellwall.interfaces.http.callers import CurrentCaller, require
from cellwall.interfaces.http.checked_route import CheckedRoute
from cellwall.interfaces.http.owned_sandbox import OwnedSandbox
from cellwall.interfaces.http.service import CurrentService
from cellwall.interfaces.http.session_routes import describe_live
from cellwall.interfaces.http.snapshots import fork_sandbox, snapshot_sandbox

routes = APIRouter(route_class=CheckedRoute, tags=["snapshots"], responses=ERRORS)
_ONE = "/snapshots/{snapshot_id}"


@routes.post("/sessions/{session_id}/snapshots", status_code=201)
async def take_snapshot(
    service: CurrentService,
    response: Response,
    caller: CurrentCaller,
    session_id: str,
    body: NewSnapshot,
) -> SnapshotBody:
    """Keep the files of a sandbox as they are now; its programs go on."""
    sandbox = await service.sandboxes.find(caller.identity, session_id)
    taken = await snapshot_sandbox(
        sandbox,
        caller.principal,
        name=body.name,
        ttl=body.ttl,
        state=body.state,
        end_processes=body.end_processes,
    )
    response.headers["Location"] = f"/v1/snapshots/{taken.id}"
    return _rendered(taken)


@routes.post("/sessions/{session_id}/fork", status_code=201)
async def fork_session(
    service: CurrentService, caller: CurrentCaller, session_id: str, body: ForkRequest
) -> ForksBody:
    """New sandboxes of the caller with the files and options of this one; all of them or none."""
    require(service, caller, Permission.SANDBOX_EXECUTE)
    sandbox = await service.sandboxes.find(caller.identity, session_id)
    made: list[OwnedSandbox]
    made, taken = await fork_sandbox(
        service,
        caller.identity,
        caller.principal,
        sandbox,
        count=body.count,
        state=body.state,
        end_processes=body.end_processes,
    )
    return ForksBody(
        sessions=[describe_live(each) for each in made],
        not_carried=[
            NotCarriedBody(name=each.name, reason=each.reason) for each in taken.not_carried
        ],
    )


@routes.get("/snapshots")
async def list_snapshots(
    service: CurrentService,
    caller: CurrentCaller,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    after: Annotated[str, Query(max_length=60)] = "",
) -> SnapshotPage:
    """The caller's snapshots on this service, by id."""
    read = partial(admin.list_snapshots, service.app, owner=caller.id)
    found = sorted(
        await anyio.to_thread.run_sync(read, limiter=service.readers), key=lambda each: each.id
    )
    left = [each for each in found if each.id > after]
    page = [_rendered(each) for each in left[:limit]]
    return SnapshotPage(snapshots=page, next=page[-1].id if len(left) > limit else None)


@routes.get(_ONE)
async def get_snapshot(
    service: CurrentService, caller: CurrentCaller, snapshot_id: str
) -> SnapshotBody:
    """One of the caller's snapshots."""
    find = partial(admin.find_snapshot, service.app, snapshot_id, owner=caller.id)
    return _rendered(await anyio.to_thread.run_sync(find, limiter=service.readers))


@routes.delete(_ONE, status_code=204)
async def delete_snapshot(service: CurrentService, caller: CurrentCaller, snapshot_id: str) -> None:
    """Delete a snapshot; sandboxes that were made from it are not affected."""
    delete = partial(
        admin.delete_snapshot,
        service.app,
        snapshot_id,
        principal=caller.principal,
        owner=caller.id,
    )
    await anyio.to_thread.run_sync(delete)


def _rendered(snapshot: WorkspaceSnapshot) -> SnapshotBody:
    return SnapshotBody.model_validate(snapshot.to_json())
