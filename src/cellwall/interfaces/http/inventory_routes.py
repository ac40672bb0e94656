"""`/v1/packages/sbom`, `/v1/packages/lock`: the packages that a session got (PKG-1, PKG-5).

The owner of the session and the owner's team get them, and who may read the record, from which they
are made.
"""

from __future__ import annotations

from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Query, Response

from cellwall.admin.package_inventory import (
    InstalledPackage,
    installed_packages,
    render_requirements,
    render_sbom,
)
from cellwall.core.errors import BadInput, NotFound
from cellwall.core.ids import check_id
from cellwall.core.types import Permission
from cellwall.interfaces.http.bodies import ERRORS
from cellwall.interfaces.http.callers import Caller, CurrentCaller, may
from cellwall.interfaces.http.checked_route import CheckedRoute
from cellwall.interfaces.http.service import CurrentService, Service

routes = APIRouter(route_class=CheckedRoute, tags=["packages"], responses=ERRORS)
_SBOM = "application/vnd.cyclonedx+json"
_LOCK = "text/plain; charset=utf-8"
SessionId = Annotated[str, Query(max_length=60, pattern=r"^[^\x00]*$", description="a session")]


def _file(media_type: str) -> dict[str, Any]:
    return {"content": {media_type.partition(";")[0]: {"schema": {"type": "string"}}}}


@routes.get("/packages/sbom", response_class=Response, responses={200: _file(_SBOM)})
async def get_sbom(service: CurrentService, caller: CurrentCaller, session: SessionId) -> Response:
    """The packages of a session as CycloneDX 1.6, each with the action and the record that say
    so."""

    def render() -> bytes:
        return render_sbom(_installed(service, session), subject=session)

    await _check_visible(service, caller, session)
    content = await anyio.to_thread.run_sync(render, limiter=service.readers)
    return _download(content, f"{session}.cdx.json", _SBOM)


@routes.get("/packages/lock", response_class=Response, responses={200: _file(_LOCK)})
async def get_lock(service: CurrentService, caller: CurrentCaller, session: SessionId) -> Response:
    """The packages of PyPI that a session got as `requirements.txt` with hashes."""

    def render() -> bytes:
        return render_requirements(_installed(service, session))

    await _check_visible(service, caller, session)
    content = await anyio.to_thread.run_sync(render, limiter=service.readers)
    return _download(content, "requirements.txt", _LOCK)


async def _check_visible(service: Service, caller: Caller, session: str) -> None:
    check_id(session)
    if may(service, caller, Permission.AUDIT_READ):
        return
    who = caller.identity
    if await service.store.find_session(session, user_id=who.user_id, teams=who.teams) is None:
        raise _unknown()


def _installed(service: Service, session: str) -> list[InstalledPackage]:
    app = service.app
    try:
        return installed_packages(session, home=app.store.home, keys=app.keys)
    except BadInput as error:
        if error.code != "CW-NO-RECORD":
            raise
        raise _unknown() from None


def _unknown() -> NotFound:
    return NotFound("there is no such session", hint="Check the id, and who owns it.")


def _download(content: bytes, name: str, media_type: str) -> Response:
    """The name is that of a checked id: it has no quotes."""
    disposition = f'attachment; filename="{name}"'
    return Response(content, media_type=media_type, headers={"Content-Disposition": disposition})
