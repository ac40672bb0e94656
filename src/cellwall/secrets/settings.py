"""How the vault is opened, as the configuration says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KeySource = Literal["passphrase", "file", "keyring", "command"]
KEY_SOURCES: tuple[KeySource, ...] = ("passphrase", "file", "keyring", "command")


ADVISED_MEMORY_KIB = 19_456
ADVISED_PASSES = 2
"""The least that OWASP advises for Argon2id. Less is taken, for small machines, and told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VaultSettings:
    """For a new vault, and for a new key of an old one. What opens a vault stands in it."""

    key: KeySource = "passphrase"
    key_file: str | None = None
    """Left out: a file beside the vault's folder, which protects against nobody who can read it."""
    key_command: tuple[str, ...] = ()
    # RFC 9106, second recommended choice: about half a second on one small core, and 64 MiB for
    # each guess that somebody else makes.
    argon2_memory_kib: int = 65_536
    argon2_passes: int = 3
    argon2_lanes: int = 4

    @property
    def is_cheap_to_guess(self) -> bool:
        """Whether a stolen vault costs whoever guesses its passphrase less than is advised."""
        return self.key == "passphrase" and (
            self.argon2_memory_kib < ADVISED_MEMORY_KIB or self.argon2_passes < ADVISED_PASSES
        )
