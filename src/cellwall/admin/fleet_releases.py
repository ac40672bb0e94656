"""What all hosts share: the policy and the feed of advisories, published on the first host."""

from __future__ import annotations

import anyio

from cellwall.admin.configured_fleet import ConfiguredFleet
from cellwall.admin.fleet import open_trust
from cellwall.admin.host_releases import (
    HostFeeds,
    HostReleases,
    check_policy,
    pack_feed,
    read_bounded,
)
from cellwall.core.errors import Busy
from cellwall.core.host_trust import SignedRelease
from cellwall.core.outcomes import EventKind
from cellwall.core.types import Permission, Principal
from cellwall.fleet.certificates import open_authority
from cellwall.fleet.releases import MAX_CONTENT_BYTES, POLICY, sign_release
from cellwall.runtime.agent_processes import refuse_agents
from cellwall.runtime.judging import require
from cellwall.runtime.recording import AdminChange

__all__ = ["FleetPublisher"]


class FleetPublisher(ConfiguredFleet):
    """Signs new versions, on the first host."""

    def publish(self, path: str, principal: Principal) -> int:
        """The policy of this file for all hosts; returns its version."""
        refuse_agents("a policy for all hosts")
        require(self._settings, principal, Permission.POLICY_WRITE)
        content = read_bounded(path, MAX_CONTENT_BYTES[POLICY])
        check_policy(content)
        return self._sign(HostReleases, content, principal)

    def publish_feed(self, principal: Principal) -> int:
        """The advisories about packages of this machine for all hosts; returns their version."""
        refuse_agents("a feed for all hosts")
        require(self._settings, principal, Permission.PACKAGES_INSTALL)
        return self._sign(HostFeeds, pack_feed(self._home), principal)

    def _sign(self, kept_by: type[HostReleases], content: bytes, principal: Principal) -> int:
        authority, kind = open_authority(self._home, creates=False), kept_by.kind
        own = kept_by(self._home, authority.pem).kept()

        async def add() -> SignedRelease:
            async with open_trust(self._home, self._settings) as store:
                newest = await store.newest_release_note(kind)
                version = max(newest[0] if newest else 0, own.version if own else 0) + 1
                made = sign_release(authority, kind=kind, version=version, content=content)
                if not await store.add_release(made):
                    raise Busy(
                        "somebody else has published at the same time",
                        hint="Look at what they have published, then publish again.",
                        code="CW-FLEET-PUBLISH",
                    )
                return made

        change = AdminChange(EventKind.CONFIG, "fleet publish", kind, {"bytes": len(content)})
        with change.recorded_in(self._home, self._settings, principal):
            return anyio.run(add).version
