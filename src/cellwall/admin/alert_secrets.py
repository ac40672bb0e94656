"""Secrets of alert receivers: leased from the vault for the tool `alerts`, host by host (SEC-3)."""

from __future__ import annotations

import threading
from functools import partial

import anyio

from cellwall.config.models import Settings
from cellwall.core.errors import VaultError
from cellwall.core.types import Principal
from cellwall.runtime.vault import AskPassphrase, AuditedVault, unlocked_vault
from cellwall.secrets.leases import Lease

_TOOL = "alerts"
_LEASE_ENDED = "CW-VAULT-LEASE-ENDED"


class AlertSecrets:
    """Reads secrets for delivery; used by its threads."""

    def __init__(
        self, home: str, settings: Settings, who: Principal, *, ask: AskPassphrase | None = None
    ) -> None:
        self._home, self._settings, self._who, self._ask = home, settings, who, ask
        self._lock = threading.Lock()
        self._vault: AuditedVault | None = None
        self._leases: dict[str, Lease] = {}

    def read(self, name: str, place: tuple[str, int] | None) -> bytes:
        """The value, if a grant names this host and port; raises `VaultError`."""
        with self._lock:  # one question for the passphrase, one lease for each name
            try:
                return self._read(name, place)
            except VaultError as error:
                if error.code != _LEASE_ENDED:
                    raise
                self._leases.pop(name, None)  # it was rotated, or its grant was replaced
                return self._read(name, place)

    def close(self) -> None:
        """End every lease; a running delivery fails."""
        with self._lock:
            vault, leases, self._leases = self._vault, list(self._leases.values()), {}
            for lease in leases:
                if vault is not None:
                    vault.release_now(lease, principal=self._who)

    def _read(self, name: str, place: tuple[str, int] | None) -> bytes:
        lease = self._leases.get(name)
        if lease is None:
            self._vault = self._vault or unlocked_vault(self._home) or self._open_vault()
            borrow = partial(self._vault.lease, [name], tool=_TOOL, principal=self._who)
            lease = self._leases[name] = anyio.run(borrow)
        (use,) = lease.uses
        if place is not None and not any(
            _is_host(binding.host, place[0]) and place[1] in binding.ports
            for binding in use.bindings
        ):
            raise VaultError(
                f"the secret {name} is not granted for the receiver",
                hint=f"cellwall vault grant {name} --host {place[0][:253]} --port {place[1]} "
                f"--tool {_TOOL}",
                code="CW-VAULT-NOT-GRANTED",
            )
        return use.reveal()

    def _open_vault(self) -> AuditedVault:
        return AuditedVault(self._home, self._settings, ask=self._ask)


def _is_host(granted: str, host: str) -> bool:
    return host == granted or (granted.startswith("*.") and host.endswith(granted[1:]))
