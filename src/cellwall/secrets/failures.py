"""Errors of the vault. In one place, so that the codes stay distinct (SEC-7).

No message contains a path, a value or content of a damaged file (ERR-1).
"""

from __future__ import annotations

from dataclasses import dataclass

from cellwall.core.errors import BadInput, CellwallError, VaultError

_RESTORE = "Restore the vault from a backup, then run `cellwall vault rekey --restored`."


@dataclass(frozen=True, slots=True)
class _VaultFailure:
    """Called with a detail for the audit log, makes the error to raise."""

    code: str
    message: str
    hint: str

    def __call__(self, detail: object = "") -> VaultError:
        return VaultError(self.message, hint=self.hint, code=self.code, detail=str(detail))


missing = _VaultFailure(
    "CW-VAULT-MISSING", "there is no vault", "Make one with `cellwall vault init`."
)
"""No vault was created."""
wrong_key = _VaultFailure(
    "CW-VAULT-WRONG-KEY",
    "the key does not open the vault",
    "Check the passphrase, or which key the configuration names.",
)
"""The key was available, but is not the vault's."""
costly = _VaultFailure(
    "CW-VAULT-COST",
    "the vault's file asks for more memory or passes than a passphrase is hashed with here",
    "If the vault is yours, set [vault] argon2_memory_kib and argon2_passes to the values "
    "that it was made with; if not, restore it from a backup.",
)
"""Without this limit, anyone who can write the file could demand all memory and hours of time."""
tampered = _VaultFailure(
    "CW-VAULT-TAMPERED", "the vault's file was changed or is damaged", _RESTORE
)
"""Changed without the key, or damaged by a failing disk."""
swapped = _VaultFailure(
    "CW-VAULT-SWAPPED", "the vault, or a value in it, was swapped with another", _RESTORE
)
"""A whole vault, or a value in it, was exchanged."""
rolled_back = _VaultFailure(
    "CW-VAULT-ROLLED-BACK",
    "the vault is older than it was when it was last used",
    "If you have restored it yourself, run `cellwall vault rekey --restored`; if not, "
    "an attacker may have: compare `cellwall audit search --kind vault`.",
)
"""Older than last seen, or the note that would show it is gone."""
truncated = _VaultFailure("CW-VAULT-TRUNCATED", "the vault's file is cut off", _RESTORE)
"""The file is shorter than its header says."""
unknown_format = _VaultFailure(
    "CW-VAULT-FORMAT",
    "the vault was written by another version of Cellwall",
    "Use the version that wrote it, or a newer one.",
)
"""The file format is newer than this version."""
unusable = _VaultFailure(
    "CW-VAULT-STORAGE",
    "the vault cannot be read or written",
    "Check space and permissions of the Cellwall state folder.",
)
"""An operating system error; the path is left out of the message (ERR-1)."""
unnoted = _VaultFailure(
    "CW-VAULT-STORAGE",
    "the change was made, but its generation could not be noted",
    "Check space and permissions of the Cellwall state folder; the next change notes it.",
)
"""After the change itself is durable."""
busy = _VaultFailure("CW-VAULT-BUSY", "another process holds the vault", "Try again in a moment.")
"""The lock was not released in time."""
# The name is not repeated: it may be the secret itself.
unknown_secret = _VaultFailure(
    "CW-VAULT-UNKNOWN", "the vault has no secret of this name", "`cellwall vault list` lists them."
)
"""The name may have existed before."""
unknown_grant = _VaultFailure(
    "CW-VAULT-UNKNOWN", "the secret has no such grant", "`cellwall vault list` lists them."
)
"""The grant may have existed before."""


def exists(directory: str) -> VaultError:
    """`init` never replaces a vault."""
    return VaultError(
        f"there is a vault already: {directory}",
        hint="Use it, or move that folder away to begin anew.",
        code="CW-VAULT-EXISTS",
    )


def locked(message: str = "the vault is locked") -> VaultError:
    """The key is not in memory."""
    return VaultError(message, hint="Unlock it with its key.", code="CW-VAULT-LOCKED")


def rekeyed() -> VaultError:
    """Another process changed the key."""
    return locked("the vault's key was changed after it was unlocked")


def no_key(message: str, *, hint: str, detail: str = "") -> VaultError:
    """The key itself is not available, so nothing was tried."""
    return VaultError(message, hint=hint, code="CW-VAULT-NO-KEY", detail=detail)


def unsafe(what: str) -> VaultError:
    """Another user or a hard link could have changed or read the file."""
    return VaultError(
        f"{what} is open to other users, or not a plain one of yours",
        hint="chmod 700 the folder and 600 the file; no links. If others may have read it, "
        "`cellwall vault rekey`, and rotate its secrets.",
        code="CW-VAULT-UNSAFE",
    )


def full(what: str) -> VaultError:
    """A limit is reached."""
    return VaultError(
        f"the vault is full: {what}",
        hint="Remove secrets or grants that are not needed any more.",
        code="CW-VAULT-FULL",
    )


def not_granted(name: str, tool: str) -> VaultError:
    """No grant permits this use (SEC-3)."""
    return VaultError(
        f"the secret {name} is not granted for {tool[:64]} here and now",
        hint=f"cellwall vault grant {name} --host HOST",
        code="CW-VAULT-NOT-GRANTED",
    )


def unsigned_grant(name: str) -> VaultError:
    """Grants permit this use, but the approver's key has signed none of them (POL-13)."""
    return VaultError(
        f"the approver has not signed a grant of the secret {name} for this use",
        hint="Look at `cellwall vault list`, then sign it: cellwall approvals sign",
        code="CW-VAULT-UNSIGNED",
    )


def other_project(name: str) -> VaultError:
    """The secret is bound to another project; its folder is not named (ERR-1)."""
    return VaultError(
        f"the secret {name} belongs to a project that this sandbox does not work on",
        hint="Give the folder of the project with --workspace; `cellwall vault list` shows it.",
        code="CW-VAULT-OTHER-PROJECT",
    )


def too_short(name: str, min_bytes: int) -> VaultError:
    """A short value occurs by chance, or is guessed, in requests and responses (SEC-5)."""
    return VaultError(
        f"the value of {name} is shorter than {min_bytes} bytes, so it cannot be kept from being "
        "read back, and is not lent",
        hint=f"Have a longer one issued, then: cellwall vault rotate {name}",
        code="CW-VAULT-VALUE",
    )


def shut(error: CellwallError) -> VaultError:
    """The vault opens without a person but did not: its values could then leave unnoticed
    (NET-5)."""
    hint = f"{error.hint} Without egress (no domains, no secrets) a run needs no vault."
    return VaultError(
        "the vault does not open, so its values would not be recognised in traffic: "
        f"{error.message}",
        hint=hint.strip(),
        code="CW-VAULT-SHUT",
        detail=f"{error.code} {error.detail}".strip(),
    )


def lease_ended(name: str) -> VaultError:
    """The lease was active before (SEC-3)."""
    return VaultError(
        f"the secret {name} is not leased any more",
        hint="A lease ends with its action or session, when its grant is revoked or runs out, "
        "and when the vault is locked.",
        code="CW-VAULT-LEASE-ENDED",
    )


def bad_input(message: str, *, hint: str, code: str = "CW-VAULT-INPUT") -> BadInput:
    """An invalid argument."""
    return BadInput(message, hint=hint, code=code)


session_erased = _VaultFailure(
    "CW-SESSION-ERASED",
    "the data of this session was erased",
    "Its key was destroyed, by a person or by the retention rule; nothing can read the data.",
)
"""The key of a session is gone."""
session_locked = _VaultFailure(
    "CW-SESSION-LOCKED",
    "the data of this session is encrypted, and its key is in the vault",
    "Open the vault: at a terminal `cellwall` asks for its passphrase.",
)
"""The private key is in a vault that does not open here."""
session_damaged = _VaultFailure(
    "CW-SESSION-DAMAGED",
    "the data of this session, or its key, was changed",
    "Restore the folder session-keys of the state folder from a backup.",
)
"""A key or a ciphertext fails its authentication."""
session_keys_failed = _VaultFailure(
    "CW-SESSION-KEYS",
    "the key of a session cannot be written",
    "Check space and permissions of the folder session-keys in the Cellwall state folder.",
)
"""Nothing is written without a key."""
