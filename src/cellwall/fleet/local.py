"""The fleet of one host: the application of this process, called directly."""

from __future__ import annotations

from cellwall.core.errors import BadInput
from cellwall.core.hosts import Held
from cellwall.fleet.engine import Application, HostState, Place, Receive, Scope, Send, Wish


class LocalFleet:
    """Implements `FleetPort`."""

    is_claiming = False

    def __init__(self, application: Application, host_id: str) -> None:
        self._application, self._id = application, host_id

    async def place(self, wish: Wish) -> str:  # noqa: ARG002  # there is no choice
        return self._id

    async def standby(self) -> str:
        return self._id

    async def release(self, host_id: str) -> None:
        pass

    async def find(self, kind: Held, name: str) -> Place | None:  # noqa: ARG002  # there is no choice
        return Place(self._id, is_lost=False)

    async def call(self, host_id: str, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # as above
        await self._application(scope, receive, send)

    async def list(self) -> tuple[HostState, ...]:
        return (HostState(id=self._id, incarnation=""),)

    async def lost(self) -> tuple[str, ...]:
        return ()

    async def drain(self, host_id: str, *, is_draining: bool = True) -> None:  # noqa: ARG002  # refused
        raise _single()

    async def remove(self, host_id: str) -> None:  # noqa: ARG002  # refused
        raise _single()


def _single() -> BadInput:
    return BadInput(
        "this service has one host",
        hint="Stop it by its signal; `cellwall fleet up` starts a service of several hosts.",
        code="CW-FLEET-SINGLE",
    )
