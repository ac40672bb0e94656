"""The hosts of a fleet, for the person who runs it: list, drain, remove.

All of it is in the database: neither a front nor the engine has to run. A host learns with its next
renewal that it drains or was removed.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from functools import partial

import anyio

from cellwall.admin.configured_fleet import ConfiguredFleet
from cellwall.admin.fleet import host_states, open_hosts, open_trust
from cellwall.core.errors import BadInput, Busy
from cellwall.core.outcomes import EventKind
from cellwall.core.types import Permission, Principal
from cellwall.fleet.engine import HostState
from cellwall.runtime.agent_processes import refuse_agents
from cellwall.runtime.judging import require
from cellwall.runtime.recording import AdminChange

__all__ = ["FleetAdmin", "HostState"]
_LOOK_EVERY_S = 0.5


class FleetAdmin(ConfiguredFleet):
    """The fleet of one database."""

    def status(self, principal: Principal) -> tuple[HostState, ...]:
        """All hosts by id; one without a valid lease counts as lost."""
        require(self._settings, principal, Permission.CONFIG_WRITE)
        return anyio.run(self._list)

    def drain(self, host_id: str, principal: Principal, *, is_draining: bool = True) -> None:
        """Place no new session there, or do so again."""
        what = "fleet drain" if is_draining else "fleet resume"

        with self._changing(what, host_id, principal):
            if not anyio.run(partial(self._set_draining, host_id, is_draining=is_draining)):
                raise _unknown(host_id)

    def wait_until_empty(self, host_id: str, *, timeout_s: float) -> None:
        """Until the host has no session; raises `Busy` after the time."""
        deadline = time.monotonic() + timeout_s
        while True:
            live = [each for each in anyio.run(self._list) if each.id == host_id]
            if not any(each.sessions for each in live if not each.is_lost):
                return
            if time.monotonic() > deadline:
                raise Busy(
                    f"the host still has {live[0].sessions} sessions",
                    hint="Wait longer with --wait, or remove the host, which ends them.",
                    code="CW-FLEET-SESSIONS",
                )
            time.sleep(_LOOK_EVERY_S)

    def remove(self, host_id: str, principal: Principal, *, revokes: bool = False) -> None:
        """End a host with its sessions, or forget one that is lost. `revokes`: its name never joins
        again."""
        refuse_agents("the removal of a host")

        with self._changing("fleet revoke" if revokes else "fleet remove", host_id, principal):
            if not anyio.run(partial(self._remove, host_id, revokes=revokes)):
                raise _unknown(host_id)

    async def _list(self) -> tuple[HostState, ...]:
        async with open_hosts(self._home, self._settings) as hosts:
            return await host_states(hosts, self._settings)

    async def _set_draining(self, host_id: str, *, is_draining: bool) -> bool:
        async with open_hosts(self._home, self._settings) as hosts:
            return await hosts.set_draining(host_id, is_draining=is_draining)

    async def _remove(self, host_id: str, *, revokes: bool) -> bool:
        is_revoked = False
        if revokes:  # first: the host cannot renew in between
            async with open_trust(self._home, self._settings) as trust:
                is_revoked = await trust.revoke_certificate(host_id)
        async with open_hosts(self._home, self._settings) as hosts:
            return await hosts.remove_host(host_id) or is_revoked

    def _changing(
        self, what: str, host_id: str, principal: Principal
    ) -> AbstractContextManager[object]:
        require(self._settings, principal, Permission.CONFIG_WRITE)
        change = AdminChange(EventKind.CONFIG, what, host_id, {})
        return change.recorded_in(self._home, self._settings, principal)


def _unknown(host_id: str) -> BadInput:
    return BadInput(
        f"there is no host {host_id[:60]!r} in the fleet",
        hint="`cellwall fleet status` shows the hosts.",
        code="CW-FLEET-UNKNOWN",
    )
