"""An open connection to a port ends with the sign-in, the link or the membership behind it."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable

import anyio

from cellwall.admin.accounts import Identity
from cellwall.core.errors import CellwallError, SignInRefused
from cellwall.core.port_connections import PortTraffic
from cellwall.interfaces.http.service import Service

_LOOK_EVERY_S = 1.0


async def hold_until_revoked(
    service: Service,
    who: Identity,
    session_id: str,
    hold: Callable[[], Awaitable[PortTraffic]],
    *,
    ends_s: float = math.inf,
) -> PortTraffic:
    """What `hold` returns; raises `SignInRefused` where the connection was ended."""
    found: PortTraffic | None = None
    failure: Exception | None = None

    async def watch() -> None:
        revision = await service.accounts.revision()
        while time.time() < ends_s:
            await anyio.sleep(_LOOK_EVERY_S)
            known, revision = revision, await service.accounts.revision()
            if known != revision and not await _may_go_on(service, who, session_id):
                break
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        try:
            found = await hold()
        except Exception as error:  # noqa: BLE001  # raised below, not in a group
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if found is None:
        raise SignInRefused(
            "the sign-in behind this connection does not count any more",
            hint="Sign in again, or ask for a new link.",
            code="CW-SIGN-IN-TOKEN",
        )
    return found


async def _may_go_on(service: Service, who: Identity, session_id: str) -> bool:
    renewed = await service.accounts.renewed(who)
    if renewed is None:
        return False
    try:
        await service.sandboxes.find(renewed, session_id)
    except CellwallError:
        return False
    return True
