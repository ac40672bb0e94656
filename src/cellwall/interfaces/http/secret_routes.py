"""`/v1/secrets`: the caller's own secrets. A value goes in and never out (SEC-2, RBAC-3)."""

from __future__ import annotations

from functools import partial

import anyio
from fastapi import APIRouter

from cellwall.admin.owned_secrets import SecretInfo, WantedGrant
from cellwall.admin.vault import wipe
from cellwall.core.errors import BadInput
from cellwall.core.network import Binding
from cellwall.core.text import to_bytes
from cellwall.interfaces.http.bodies import ERRORS
from cellwall.interfaces.http.bodies.secrets import (
    GrantBody,
    GrantRequest,
    SecretBody,
    SecretList,
    SecretRequest,
)
from cellwall.interfaces.http.callers import CurrentCaller
from cellwall.interfaces.http.checked_route import CheckedRoute
from cellwall.interfaces.http.service import CurrentService

routes = APIRouter(route_class=CheckedRoute, tags=["secrets"], responses=ERRORS)


@routes.get("/secrets")
async def list_secrets(service: CurrentService, caller: CurrentCaller) -> SecretList:
    """The caller's secrets, without their values."""
    found = await anyio.to_thread.run_sync(service.secrets.read_all, caller.principal)
    return SecretList(secrets=[_body(each) for each in found])


@routes.get("/secrets/{name}")
async def get_secret(service: CurrentService, caller: CurrentCaller, name: str) -> SecretBody:
    """What is known about a secret; never its value."""
    return _body(await anyio.to_thread.run_sync(service.secrets.read, name, caller.principal))


@routes.put("/secrets/{name}")
async def put_secret(
    service: CurrentService, caller: CurrentCaller, name: str, body: SecretRequest
) -> SecretBody:
    """Store a value, or say where it may be sent. Without a grant a secret cannot be used."""
    if body.value is None and body.grants is None:
        raise BadInput("there is neither a value nor a list of grants")
    value = None
    if body.value is not None:
        value = bytearray(to_bytes(body.value.get_secret_value(), what="the value"))
    grants = None if body.grants is None else [_grant(each) for each in body.grants]
    put = partial(service.secrets.put, name, caller.principal, value=value, grants=grants)
    try:
        return _body(await anyio.to_thread.run_sync(put))
    finally:
        if value is not None:
            wipe(value)


@routes.delete("/secrets/{name}", status_code=204)
async def remove_secret(service: CurrentService, caller: CurrentCaller, name: str) -> None:
    """Remove a secret with its grants; leases of it end at once."""
    await anyio.to_thread.run_sync(service.secrets.drop, name, caller.principal)


def _grant(wanted: GrantRequest) -> WantedGrant:
    binding = Binding(
        host=wanted.host,
        ports=tuple(wanted.ports),
        methods=tuple(wanted.methods),
        path=wanted.path,
        place=wanted.place,
        name=wanted.name,
    )
    return WantedGrant(binding=binding, until_s=wanted.until)


def _body(info: SecretInfo) -> SecretBody:
    return SecretBody(
        name=info.name,
        version=info.version,
        created=info.made_s,
        changed=info.changed_s,
        grants=[
            GrantBody(
                id=each.id,
                host=each.binding.host,
                ports=list(each.binding.ports),
                methods=list(each.binding.methods),
                path=each.binding.path,
                place=each.binding.place,
                name=each.binding.name,
                until=each.until_s,
            )
            for each in info.grants
        ],
    )
