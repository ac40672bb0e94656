"""`/v1/sessions`: the sandboxes of the caller."""

from __future__ import annotations

import functools
from contextlib import suppress
from typing import Annotated, Any, Literal

import anyio
import anyio.from_thread
from fastapi import APIRouter, Query, Request, Response

from cellwall.admin import session_data
from cellwall.admin.accounts import Identity
from cellwall.admin.kept_workspaces import KeptWorkspace
from cellwall.core.accounts import SessionRecord
from cellwall.core.errors import BadInput, NotFound
from cellwall.core.types import Permission
from cellwall.interfaces.http.bodies import ERRORS
from cellwall.interfaces.http.bodies.sessions import Kept, NewSession, Session, SessionPage
from cellwall.interfaces.http.callers import Caller, CurrentCaller, require
from cellwall.interfaces.http.checked_route import CheckedRoute
from cellwall.interfaces.http.fleet_routing import labels_of
from cellwall.interfaces.http.owned_sandbox import OwnedSandbox, about
from cellwall.interfaces.http.service import CurrentService, Service
from cellwall.interfaces.sdk.hosts import SandboxSpec

routes = APIRouter(route_class=CheckedRoute, tags=["sessions"], responses=ERRORS)
_ONE = "/sessions/{session_id}"


@routes.post("/sessions", status_code=201)
async def create_session(
    service: CurrentService,
    request: Request,
    response: Response,
    caller: CurrentCaller,
    body: NewSession,
) -> Session:
    """Create a sandbox. Limits above those of the service are lowered to them."""
    require(service, caller, Permission.SANDBOX_EXECUTE)
    if body.team is not None and body.team not in caller.identity.teams:
        raise NotFound("there is no such team", hint="Check the id, and who owns it.")
    if body.team is not None and body.secrets:
        raise BadInput(
            "a shared sandbox has no secrets",
            hint="Code of every member could use them: create it without a team.",
        )
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
        from_snapshot=body.from_snapshot,
        second_user=body.second_user,
    )
    if body.resume and body.from_snapshot:
        raise BadInput("a sandbox has the files of a session or of a snapshot, not of both")
    resumed = body.resume and (await service.kept.find(caller.identity, body.resume)).id
    made = await service.sandboxes.create(
        caller.identity,
        spec,
        keep_alive_s=body.keep_alive,
        team_id=body.team,
        resumed_id=resumed,
        restarts=body.restart_from_snapshot,
        labels=labels_of(dict(request.scope["headers"])),
    )
    response.headers["Location"] = f"/v1/sessions/{made.id}"
    return describe_live(made)


@routes.get("/sessions")
async def list_sessions(
    service: CurrentService,
    caller: CurrentCaller,
    state: Literal["live", "kept", "all"] = "live",
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    after: Annotated[str, Query(max_length=60)] = "",
) -> SessionPage:
    """The sandboxes of the caller and of the caller's teams, by id; ended ones with `state=all`,
    and with `state=kept` those whose files the caller keeps."""
    who = caller.identity
    if state == "live":
        live = [each for each in service.sandboxes.of(who) if each.id > after]
        found = [describe_live(each) for each in live[: limit + 1]]
    elif state == "kept":
        pairs = await service.kept.of(who, after=after, limit=limit + 1)
        found = [_describe(service, who, record, kept) for record, kept in pairs]
    else:
        records = await service.store.list_sessions(
            user_id=who.user_id, teams=who.teams, after=after, limit=limit + 1
        )
        stored = await service.kept.among([record.id for record in records])
        found = [_describe(service, who, each, stored.get(each.id)) for each in records]
    page = found[:limit]
    return SessionPage(sessions=page, next=page[-1].id if len(found) > limit else None)


@routes.get(_ONE)
async def get_session(service: CurrentService, caller: CurrentCaller, session_id: str) -> Session:
    """One sandbox, also after its end."""
    who = caller.identity
    # A live one is known without the database, whose two queries take 3 ms.
    with suppress(NotFound):
        return describe_live(service.sandboxes.look(who, session_id))
    record = await service.store.find_session(session_id, user_id=who.user_id, teams=who.teams)
    if record is None:
        raise NotFound("there is no such session", hint="Check the id, and who owns it.")
    return _describe(service, who, record, (await service.kept.among([record.id])).get(record.id))


@routes.delete(_ONE, status_code=204)
async def end_session(
    service: CurrentService,
    caller: CurrentCaller,
    session_id: str,
    *,
    erase: Annotated[
        bool, Query(description="also destroy its keys: records and files can never be read again")
    ] = False,
    keep: Annotated[
        bool, Query(description="keep its files, encrypted, for a new session with `resume`")
    ] = False,
) -> None:
    """End a sandbox with everything in it; of one that has ended, destroy the files that were kept.
    With `erase`, also the records of one that has ended before."""
    if erase and keep:
        raise BadInput("a session is either kept or erased", hint="Use one of `erase` and `keep`.")
    if keep:
        await service.kept.keep(caller.identity, session_id)
        return
    if erase:
        await _erase(service, caller, session_id)
        return
    try:
        sandbox = await service.sandboxes.find(caller.identity, session_id)
    except NotFound:
        await service.kept.discard(caller.identity, caller.principal, session_id)
        return
    if sandbox.owner_id != caller.id:  # shared by a team
        require(service, caller, Permission.SANDBOX_EXECUTE)
    await service.sandboxes.end(sandbox)


async def _erase(service: Service, caller: Caller, session_id: str) -> None:
    """Only the owner: a member of a team must not remove what another one has done."""
    who = caller.identity
    await service.kept.own_record(who, session_id)
    require(service, caller, Permission.FILES_WRITE)

    async def end_live() -> None:
        with suppress(NotFound):  # ended meanwhile
            await service.sandboxes.end(service.sandboxes.look(who, session_id))

    erase = functools.partial(
        session_data.erase,
        service.app,
        session_id,
        principal=caller.principal,
        end=functools.partial(anyio.from_thread.run, end_live),
    )
    await anyio.to_thread.run_sync(erase, limiter=service.readers)


def describe_live(sandbox: OwnedSandbox) -> Session:
    """A live sandbox, as its owner sees it."""
    known: Any = about(sandbox)
    return Session(
        id=sandbox.id,
        state="live",
        template=known["template"],
        limits=known["limits"],
        team=sandbox.team_id,
        created=sandbox.made_s,
        ended=None,
        ends_in=round(sandbox.ends_in_s, 1),
        is_busy=sandbox.busy > 0,
        kept=None,
        restarted=sandbox.restarted_s,
    )


def _describe(
    service: Service, who: Identity, record: SessionRecord, kept: KeptWorkspace | None
) -> Session:
    try:
        return describe_live(service.sandboxes.look(who, record.id))
    except NotFound:
        pass
    known: Any = record.about
    return Session(
        id=record.id,
        # A sandbox of an MCP client is live without being one of the API's.
        state="live" if record.ended_s is None else "ended",
        template=str(known.get("template", "")),
        limits=known.get("limits", {}),
        team=record.team_id,
        created=record.created_s,
        ended=record.ended_s,
        ends_in=None,
        is_busy=False,
        kept=None
        if kept is None or kept.keeper != who.user_id
        else Kept(bytes=kept.size_bytes, expires=kept.expires_s),
        restarted=None,
    )
