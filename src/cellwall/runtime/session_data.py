"""The keys of session data with the vault behind them, for those who read the data (FS-5)."""

# ruff: noqa: PLC0415  # late imports: most runs read no session data

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cellwall.config.models import Settings
from cellwall.core.errors import CellwallError
from cellwall.secrets import failures
from cellwall.secrets.session_keys import SessionKeys

if TYPE_CHECKING:
    from cellwall.runtime.vault import AskPassphrase, AuditedVault


class _VaultOnDemand:
    """Opens the vault when the first private key is needed from it."""

    def __init__(
        self,
        home: str,
        settings: Callable[[], Settings],
        ask: AskPassphrase | None,
    ) -> None:
        self._home, self._settings, self._ask = home, settings, ask
        self._vault: AuditedVault | None = None
        self._problem: CellwallError | None = None

    def __call__(self, vault: str) -> bytearray:
        from cellwall.runtime.vault import AuditedVault

        if self._problem is not None:  # a person is asked once, not for every record
            raise self._problem
        try:
            if self._vault is None:
                self._vault = AuditedVault(self._home, self._settings(), ask=self._ask)
            return self._vault.session_key(vault)
        except CellwallError as error:
            self._problem = failures.session_locked(error.code)
            raise self._problem from None


def readable_keys(
    home: str,
    settings: Callable[[], Settings],
    ask: AskPassphrase | None = None,
) -> SessionKeys:
    """Keys that can also read: the vault opens for them when needed, and `ask` may ask a person."""
    return SessionKeys(home, _VaultOnDemand(home, settings, ask))
