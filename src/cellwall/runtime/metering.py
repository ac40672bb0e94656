"""Rates and budgets of a runtime without accounts: none (RBAC-4)."""

from __future__ import annotations

from cellwall.core.errors import Denied
from cellwall.core.outcomes import Outcome
from cellwall.core.types import Action


class Unmetered:
    """Implements `QuotaPort` and `Reservation` for users of this machine.

    An action of an account is refused: it would be neither counted nor paid for.
    """

    async def reserve(self, action: Action) -> Unmetered:
        if action.principal.account is not None:
            raise Denied(
                "this runtime counts no usage, so it serves no accounts",
                hint="Wire the runtime with `App.metered`.",
                code="CW-UNMETERED",
            )
        return self

    def start(self) -> None:
        """Nothing is measured."""

    async def settle(self, outcome: Outcome | None) -> None:
        """Nothing is booked."""
