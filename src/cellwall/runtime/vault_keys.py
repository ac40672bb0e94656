"""What opens the vault: as the configuration says it, or as somebody chooses for this once."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from cellwall.config.models import Settings
from cellwall.core.errors import BadInput
from cellwall.secrets.format import KEY_SOURCES, VaultSettings

AskPassphrase = Callable[[bool], bytearray]
"""Given by the interface; told whether it is a new one, which a person types twice. We wipe it."""


def vault_settings(settings: Settings) -> VaultSettings:
    """As the configuration says it."""
    vault = settings.vault
    source = next(each for each in KEY_SOURCES if each == vault.key)
    return VaultSettings(
        key=source,
        key_file=vault.key_file,
        key_command=vault.key_command,
        argon2_memory_kib=vault.argon2_memory_kib,
        argon2_passes=vault.argon2_passes,
        argon2_lanes=vault.argon2_lanes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChoice:
    """What shall open the vault from now on, where it is not what the configuration says."""

    source: str | None = None
    file: str | None = None
    command: tuple[str, ...] = ()

    def over(self, settings: VaultSettings) -> VaultSettings:
        # Whoever names a file or a command wants it used.
        implied = {"file"} if self.file else set()
        implied |= {"command"} if self.command else set()
        said = implied | ({self.source} if self.source else set())
        found = [each for each in KEY_SOURCES if each in said]
        if len(said) > 1 or len(found) < len(said):
            raise BadInput(
                "these options do not name one kind of key",
                hint=f"One of: {', '.join(KEY_SOURCES)}.",
                code="CW-VAULT-INPUT",
            )
        return replace(
            settings,
            key=found[0] if found else settings.key,
            key_file=os.path.abspath(self.file) if self.file else settings.key_file,
            key_command=self.command or settings.key_command,
        )
