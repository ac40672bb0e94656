"""Connected accounts in the pipeline: an account is its owner's alone (RBAC-3), and what it needs
is leased like that of a run."""

# ruff: noqa: PLC0415  # late imports: most actions use no account

from __future__ import annotations

from dataclasses import dataclass, replace

from cellwall.core.connections import UseAccount
from cellwall.core.outcomes import RunResult
from cellwall.core.ports import ConnectionsPort, EgressPort, VaultPort
from cellwall.core.types import Action, Principal


def resolve_account(connections: ConnectionsPort | None, action: Action) -> Action:
    """The action bound to the account that it names, if it names one."""
    if connections is None or not isinstance(action.operation, UseAccount):
        return action
    return connections.resolve(action, action.operation)


@dataclass(frozen=True, slots=True)
class OwnedConnections:
    """Implements `ConnectionsPort` over the registry of one state folder."""

    home: str
    """The state folder."""

    def resolve(self, action: Action, operation: UseAccount) -> Action:
        from cellwall.egress.destinations.hostnames import domain_of
        from cellwall.runtime.connection_list import connections_of, owner_of

        account = connections_of(self.home).find(
            operation.account, owner=owner_of(action.principal)
        )
        return replace(
            action,
            operation=replace(operation, target=account),
            # Nothing else: no domain or secret of the caller's choice comes with it.
            allow_domains=(domain_of(account.url),),
            secrets=(account.secret,),
        )

    def has_any(self, who: Principal) -> bool:
        from cellwall.runtime.connection_list import connections_of, owner_of

        return connections_of(self.home).has_any(owner_of(who))

    async def use(
        self, action: Action, operation: UseAccount, *, vault: VaultPort, egress: EgressPort
    ) -> RunResult:
        from cellwall.runtime.calendars import use_account

        return await use_account(vault, egress, action, operation)
