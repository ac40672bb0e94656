"""The policy of all hosts: published on the first host, applied by each host, or refused.

A host reads the newest version as often as it renews its lease:
  (1) it must be signed by the fleet's authority;
  (2) it must not be older than the one that this host has;
  (3) it must be a valid policy;
  (4) then it is written into the state folder, where it is read as one of the administrator's.
Where a step fails, the host refuses all requests until it has a policy that passes: an old policy
may allow what the new one forbids.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os

import anyio
import anyio.to_thread

from cellwall.admin.configured_fleet import ConfiguredFleet
from cellwall.admin.fleet import open_trust
from cellwall.core.errors import BadInput, Busy, CellwallError
from cellwall.core.host_trust import ReleasesPort, SignedRelease
from cellwall.core.outcomes import EventKind
from cellwall.core.types import Permission, Principal
from cellwall.fleet.certificates import open_authority
from cellwall.fleet.identity import CA_FILE, fleet_folder, replace_private_file
from cellwall.fleet.releases import (
    MAX_CONTENT_BYTES,
    POLICY,
    ReleaseRefused,
    check_release,
    check_successor,
    sign_release,
)
from cellwall.policy.policy_file import parse_policy
from cellwall.policy.rules import Layer
from cellwall.runtime.agent_processes import refuse_agents
from cellwall.runtime.judging import require
from cellwall.runtime.policy_places import FLEET_POLICY_NAME
from cellwall.runtime.recording import AdminChange

__all__ = ["FleetPublisher", "HostReleases", "open_releases"]
_FILE = "policy.toml"
_NOTE = "policy.release"
_log = logging.getLogger("cellwall.fleet")


class FleetPublisher(ConfiguredFleet):
    """Signs new versions, on the first host."""

    def publish(self, path: str, principal: Principal) -> int:
        """The policy of this file for all hosts; returns its version."""
        refuse_agents("a policy for all hosts")
        require(self._settings, principal, Permission.POLICY_WRITE)
        content = _read(path)
        check_policy(content)
        authority = open_authority(self._home, creates=False)
        own = HostReleases(self._home, authority.pem).kept()

        async def add() -> SignedRelease:
            async with open_trust(self._home, self._settings) as store:
                newest = await store.newest_release(POLICY)
                known = [each.version for each in (newest, own) if each is not None]
                made = sign_release(
                    authority, kind=POLICY, version=max(known, default=0) + 1, content=content
                )
                if not await store.add_release(made):
                    raise Busy(
                        "somebody else has published at the same time",
                        hint="Look at that policy, then publish again.",
                        code="CW-FLEET-PUBLISH",
                    )
                return made

        change = AdminChange(EventKind.CONFIG, "fleet publish", POLICY, {"bytes": len(content)})
        with change.recorded_in(self._home, self._settings, principal):
            return anyio.run(add).version


class HostReleases:
    """The policy of the fleet on one host."""

    def __init__(self, home: str, authority: str) -> None:
        self._folder, self._authority = fleet_folder(home), authority
        self.problem: CellwallError | None = None
        """Why this host refuses requests."""
        self.version = 0
        """Of the policy that this host applies; 0: none was published."""

    async def follow(self, store: ReleasesPort, *, every_s: float) -> None:
        """Until cancelled. Without the database the lease ends, and the host refuses for that."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.look(store)
            except (CellwallError, OSError) as error:
                _log.warning("the policy of the fleet was not read: %s", type(error).__name__)

    async def look(self, store: ReleasesPort) -> None:
        """Apply the newest version, or set `problem`."""
        newest = await store.newest_release(POLICY)
        try:
            await anyio.to_thread.run_sync(self._take, newest)
        except CellwallError as error:
            if self.problem is None or self.problem.code != error.code:
                _log.error("this host refuses requests: %s (%s)", error.message, error.code)
            self.problem = error
        else:
            self.problem = None

    def _take(self, newest: SignedRelease | None) -> None:
        if newest is not None:
            check_release(newest, self._authority, kind=POLICY)  # (1)
        is_new = check_successor(newest, self.kept())  # (2)
        if newest is None or not is_new:
            self.version = 0 if newest is None else newest.version
            return
        check_policy(newest.content)  # (3)
        note = json.dumps({"version": newest.version, "note": newest.note})
        # (4): after a crash in between, the note does not fit the policy, and both are written
        # again before the host serves.
        replace_private_file(os.path.join(self._folder, _FILE), newest.content)
        replace_private_file(os.path.join(self._folder, _NOTE), note.encode())
        self.version = newest.version
        _log.info("the policy of the fleet is version %d", newest.version)

    def kept(self) -> SignedRelease | None:
        """What this host has; None before the first one, and where files were changed by hand:
        then the newest one is written again."""
        try:
            fields = json.loads(_read(os.path.join(self._folder, _NOTE)))
            found = SignedRelease(
                kind=POLICY,
                version=int(fields["version"]),
                note=str(fields["note"]),
                content=_read(os.path.join(self._folder, _FILE)),
            )
            check_release(found, self._authority, kind=POLICY)
        except (BadInput, ReleaseRefused, ValueError, KeyError, TypeError):
            return None
        return found


def open_releases(home: str) -> HostReleases | None:
    """Of the host of this state folder; None where it has no certificate of the fleet."""
    try:
        return HostReleases(home, _read(os.path.join(fleet_folder(home), CA_FILE)).decode("ascii"))
    except BadInput:
        return None


def check_policy(content: bytes) -> None:
    """Raises where it is no valid policy."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput("the policy is not UTF-8 text", code="CW-POLICY") from None
    parse_policy(text, file=FLEET_POLICY_NAME, name=_FILE, layer=Layer.ADMINISTRATOR, folder="/")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_CONTENT_BYTES + 1)
    except OSError as error:
        raise BadInput(
            "the file cannot be read", hint="Check its path.", detail=str(error)
        ) from None
    if len(content) > MAX_CONTENT_BYTES:
        raise BadInput("the file is larger than 1 MiB")
    return content
