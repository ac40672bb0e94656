"""Standing grants of one state folder: which the approver has signed, and which wait (POL-13).

Grants wait that were made before `approvals.key` was configured, or under another key; a process of
the user may have written them as well, so each is shown as exactly what a signature would allow.

(1) find what each part keeps without a signature;
(2) ask for the passphrase;
(3) write the intent; a failed write refuses (AUD-1);
(4) sign exactly what was shown: the digests of (1); (5) write the outcome.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cellwall.admin.policy_trust import Offered, PolicyTrust
from cellwall.admin.vault import VaultAdmin
from cellwall.config.load import load_settings
from cellwall.core.errors import BadInput, CellwallError, VaultError
from cellwall.core.outcomes import EventKind
from cellwall.core.standing_grants import GrantKind, StandingGrant
from cellwall.core.types import Permission, Principal
from cellwall.mcp_servers.pins import AcceptedTool, is_as_seen
from cellwall.runtime.agent_processes import refuse_agents
from cellwall.runtime.approver_key import AskPassphrase, approver_key
from cellwall.runtime.configured_parts import skill_store
from cellwall.runtime.home import state_home
from cellwall.runtime.judging import require
from cellwall.runtime.policies import needs_signature, policy_grants
from cellwall.runtime.policy_places import absolute, fleet_policy, is_there, user_policy
from cellwall.runtime.recording import AdminChange
from cellwall.runtime.server_catalog import ServerCatalog
from cellwall.runtime.server_grants import entry_grants
from cellwall.runtime.signed_grants import SignedGrants, signed_grants
from cellwall.runtime.vault import AskPassphrase as AskVault
from cellwall.secrets.leases import Grant

__all__ = ["GrantKind", "GrantReview", "StandingGrant", "WaitingGrant", "require_approver"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingGrant:
    """A grant without a signature, and what a person has to read of it."""

    grants: tuple[StandingGrant, ...]
    title: str
    policy: Offered | None = None
    """The rules of a policy file."""
    details: tuple[str, ...] = ()

    @property
    def kind(self) -> GrantKind:
        return self.grants[0].kind

    @property
    def subject(self) -> str:
        return self.grants[0].subject


def require_approver(
    what: str,
    *,
    ask: AskPassphrase | None,
    command: str,
    config: str | None = None,
    profile: str | None = None,
) -> None:
    """Raise unless the person knows the approver's passphrase, where a key is configured. For acts
    that leave no grant behind."""
    key = approver_key(load_settings(file=config, profile=profile, environ=os.environ))
    if key is not None:
        key.ask_for(what, ask, command=command)


class GrantReview:
    """The grants of one state folder, for the approver."""

    def __init__(
        self,
        *,
        config: str | None = None,
        profile: str | None = None,
        ask_vault: AskVault | None = None,
    ) -> None:
        self._configured = {"config": config, "profile": profile}
        self._settings = load_settings(file=config, profile=profile, environ=os.environ)
        self._home = state_home(os.environ)
        self._ask_vault = ask_vault
        self.problems: list[str] = []
        """What could not be read at the last look."""
        grants = signed_grants(self._home, self._settings)
        if grants is None:
            raise BadInput(
                "no approver's key is configured, so grants need no signature",
                hint="Create one with `cellwall approvals key`.",
                code="CW-APPROVER-KEY",
            )
        self._grants: SignedGrants = grants

    def signed(self) -> dict[StandingGrant, int]:
        """The grants that count, and when they were signed, in milliseconds since 1970."""
        return dict(self._grants.listed())

    def waiting(self, who: Principal) -> list[WaitingGrant]:
        """(1) All grants without a signature."""
        self.problems = []
        found: list[WaitingGrant] = []
        for part in (self._policies, self._skills, self._servers):
            found += self._tried(part())
        found += self._tried(self._secrets(who))
        return found

    def sign(self, waiting: Sequence[WaitingGrant], *, who: Principal, ask: AskPassphrase) -> None:
        """(2) to (5)"""
        refuse_agents("a signature under grants")
        require(self._settings, who, Permission.CONFIG_WRITE)
        signer = self._grants.key.ask_for(
            "a signature under grants", ask, command="cellwall approvals sign"
        )
        for each in waiting:
            digests = {"digests": [grant.digest for grant in each.grants]}
            change = AdminChange(
                EventKind.CONFIG, f"sign {each.kind.value}", each.subject, dict(digests)
            )
            with change.recorded_in(self._home, self._settings, who):
                # Grants of a secret count beside each other; elsewhere an older content must not.
                is_only = each.kind is not GrantKind.SECRET
                self._grants.sign(each.grants, signer, replaces=is_only)

    def _tried(self, part: Iterator[WaitingGrant]) -> list[WaitingGrant]:
        """What a part has; a part that cannot be read is named, and hides no other."""
        found: list[WaitingGrant] = []
        try:
            found.extend(part)
        except CellwallError as error:
            self.problems.append(error.message)
        return found

    def _waits(self, grants: Sequence[StandingGrant]) -> bool:
        return not all(map(self._grants.is_signed, grants))

    def _policies(self) -> Iterator[WaitingGrant]:
        book = PolicyTrust(**self._configured)
        own = self._settings.policy.files or (user_policy(os.environ),)
        own = (*own, fleet_policy(os.environ))
        listed = {each.path: each.sha256 for each in book.entries() if not book.counts(each)}
        paths = dict.fromkeys((*map(absolute, own), *listed))
        for path in paths:
            if not is_there(path):
                continue
            try:
                (offer,) = book.offered([path], cwd=os.getcwd())
            except CellwallError as error:
                self.problems.append(error.message)
                continue
            # Of a project's file only the content that was trusted before.
            if offer.is_trusted or not needs_signature(offer.rules):
                continue
            if listed.get(offer.path, offer.sha256) == offer.sha256:
                grants = policy_grants(path, offer.sha256)
                yield WaitingGrant(grants=grants, title=f"policy {path}", policy=offer)

    def _skills(self) -> Iterator[WaitingGrant]:
        for name, skill in skill_store(self._home, self._settings).survey_stored().items():
            if isinstance(skill, CellwallError):
                self.problems.append(f"skill {name}: {skill.message}")
                continue
            grant = StandingGrant(GrantKind.SKILL, name, skill.digest)
            if self._waits([grant]):
                where = f"read it: {os.path.join(self._home, 'skills', 'approved', name)}"
                details = (f"digest {skill.digest}", where, *skill.files)
                yield WaitingGrant(grants=(grant,), title=f"skill {name}", details=details)

    def _servers(self) -> Iterator[WaitingGrant]:
        catalog = ServerCatalog(self._home, None)
        for name in catalog.names():
            entry = catalog.read_stored(name)
            grants = entry_grants(entry)
            if not self._waits(grants):
                continue
            if entry.seen is None or not is_as_seen(entry.pins, entry.seen):
                # The command below would show other definitions than those that count.
                self.problems.append(
                    f"MCP server {name}: what was accepted is not what it last said; accept it "
                    f"anew with `cellwall mcp gateway review --accept {name}`"
                )
                continue
            details = (
                *entry.settings.lines(),
                *(_accepted(tool, each) for tool, each in entry.pins.tools.items()),
                *(["all labels together, without a question"] if entry.pins.together else []),
                f"the definitions: cellwall mcp gateway review --stored {name}",
                f"the digest of the whole set that it shows: {entry.seen.sha256}",
            )
            yield WaitingGrant(grants=grants, title=f"MCP server {name}", details=details)

    def _secrets(self, who: Principal) -> Iterator[WaitingGrant]:
        vault = VaultAdmin(self._home, self._settings, ask=self._ask_vault)
        if not vault.exists:
            return
        try:
            secrets = vault.list(who)
        except VaultError as error:
            self.problems.append(f"grants of secrets: {error.message}")
            return
        for secret in secrets:
            for each in secret.grants:
                grant = vault.signed_form(secret.name, each)
                if self._waits([grant]):
                    title = f"secret {secret.name}, grant {each.id}"
                    details = (f"project {secret.project or 'any'}", *_bounds(each))
                    yield WaitingGrant(grants=(grant,), title=title, details=details)


def _accepted(name: str, tool: AcceptedTool) -> str:
    renamed = f", offered as {tool.offered_as}" if tool.offered_as else ""
    return f"tool {name}{renamed}{', despite findings' if tool.despite_findings else ''}"


def _bounds(grant: Grant) -> tuple[str, ...]:
    return tuple(f"{name} {value}" for name, value in grant.to_json().items() if name != "id")
