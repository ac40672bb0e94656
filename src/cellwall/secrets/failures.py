"""What is told when the vault cannot be used. One place, so that the codes stay apart (SEC-7).

No message holds a path, a value or what was found in a damaged file (ERR-1).
"""

from __future__ import annotations

from cellwall.core.errors import BadInput, CellwallError, VaultError

_RESTORE = "Restore the vault from a backup, then run `cellwall vault rekey --restored`."


def missing() -> VaultError:
    """Nobody has made one."""
    return VaultError(
        "there is no vault", hint="Make one with `cellwall vault init`.", code="CW-VAULT-MISSING"
    )


def exists(directory: str) -> VaultError:
    """`init` never replaces a vault."""
    return VaultError(
        f"there is a vault already: {directory}",
        hint="Use it, or move that folder away to begin anew.",
        code="CW-VAULT-EXISTS",
    )


def locked(message: str = "the vault is locked") -> VaultError:
    """Its key is not in memory."""
    return VaultError(message, hint="Unlock it with its key.", code="CW-VAULT-LOCKED")


def rekeyed() -> VaultError:
    """By another process."""
    return locked("the vault has another key since it was unlocked")


def wrong_key() -> VaultError:
    """The key was had, and is another one."""
    return VaultError(
        "the key does not open the vault",
        hint="Check the passphrase, or which key the configuration names.",
        code="CW-VAULT-WRONG-KEY",
    )


def no_key(message: str, *, hint: str, detail: str = "") -> VaultError:
    """The key itself cannot be had, so nothing was tried."""
    return VaultError(message, hint=hint, code="CW-VAULT-NO-KEY", detail=detail)


def costly() -> VaultError:
    """Anybody who can write the file can ask for all memory and for hours."""
    return VaultError(
        "the vault's file asks for more memory or passes than a passphrase is hashed with here",
        hint="If it is yours, set [vault] argon2_memory_kib and argon2_passes to what it was made "
        "with; if not, restore it from a backup.",
        code="CW-VAULT-COST",
    )


def tampered(detail: str) -> VaultError:
    """By somebody without its key, or by a failing disk."""
    return VaultError(
        "the vault's file was changed or is damaged",
        hint=_RESTORE,
        code="CW-VAULT-TAMPERED",
        detail=detail,
    )


def swapped(detail: str) -> VaultError:
    """A whole vault, or a value in it."""
    return VaultError(
        "what the vault holds was put into the place of something else",
        hint=_RESTORE,
        code="CW-VAULT-SWAPPED",
        detail=detail,
    )


def rolled_back(detail: str) -> VaultError:
    """Or what would tell so is gone."""
    return VaultError(
        "the vault is older than it was when it was last used",
        hint="If you have restored it yourself, run `cellwall vault rekey --restored`; if not, "
        "somebody else has: compare `cellwall audit search --kind vault`.",
        code="CW-VAULT-ROLLED-BACK",
        detail=detail,
    )


def truncated() -> VaultError:
    """It ends before its own end."""
    return VaultError("the vault's file is cut off", hint=_RESTORE, code="CW-VAULT-TRUNCATED")


def unknown_format() -> VaultError:
    """Newer than we are."""
    return VaultError(
        "the vault was written by another version of Cellwall",
        hint="Use the version that wrote it, or a newer one.",
        code="CW-VAULT-FORMAT",
    )


def unsafe(what: str) -> VaultError:
    """Another user, or another name, could have changed or read it."""
    return VaultError(
        f"{what} is open to other users, or not a plain one of yours",
        hint="chmod 700 the folder and 600 the file; no links. If others may have read it, "
        "`cellwall vault rekey`, and rotate what it held.",
        code="CW-VAULT-UNSAFE",
    )


def unusable(error: OSError) -> VaultError:
    """What may be told of an error of the system; the path stays out (ERR-1)."""
    return VaultError(
        "the vault cannot be read or written",
        hint="Check space and permissions of the Cellwall state folder.",
        code="CW-VAULT-STORAGE",
        detail=str(error),
    )


def unnoted(error: OSError) -> VaultError:
    """After the change itself is on the disk."""
    return VaultError(
        "the change was made, but its generation could not be noted",
        hint="Check space and permissions of the Cellwall state folder; the next change notes it.",
        code="CW-VAULT-STORAGE",
        detail=str(error),
    )


def busy() -> VaultError:
    """For longer than we wait."""
    return VaultError(
        "another process holds the vault", hint="Try again in a moment.", code="CW-VAULT-BUSY"
    )


def full(what: str) -> VaultError:
    """There is a bound on everything."""
    return VaultError(
        f"the vault takes no more: {what}",
        hint="Remove what is not needed any more.",
        code="CW-VAULT-FULL",
    )


def unknown_secret() -> VaultError:
    """There may have been one."""
    # Not named: what was typed may be the secret itself.
    return VaultError(
        "the vault has no secret of this name",
        hint="`cellwall vault list` tells which there are.",
        code="CW-VAULT-UNKNOWN",
    )


def unknown_grant() -> VaultError:
    """There may have been one."""
    return VaultError(
        "the secret has no such grant",
        hint="`cellwall vault list` tells which there are.",
        code="CW-VAULT-UNKNOWN",
    )


def not_granted(name: str, tool: str) -> VaultError:
    """Nobody said that it may be used for this (SEC-3)."""
    return VaultError(
        f"the secret {name} is not granted for {tool[:64]} here and now",
        hint=f"cellwall vault grant {name} --host HOST",
        code="CW-VAULT-NOT-GRANTED",
    )


def too_short(name: str, min_bytes: int) -> VaultError:
    """It would be met by chance, or guessed, in what leaves and in what comes back (SEC-5)."""
    return VaultError(
        f"the value of {name} is shorter than {min_bytes} bytes, so it cannot be kept from being "
        "read back, and is not lent",
        hint=f"Have a longer one issued, then: cellwall vault rotate {name}",
        code="CW-VAULT-VALUE",
    )


def shut(error: CellwallError) -> VaultError:
    """It opens without a person and did not: nothing would keep its values from leaving (NET-5)."""
    hint = f"{error.hint} Without a way out (no domains, no secrets) a run needs no vault."
    return VaultError(
        f"the vault does not open, so what must not leave would not be recognised: {error.message}",
        hint=hint.strip(),
        code="CW-VAULT-SHUT",
        detail=f"{error.code} {error.detail}".strip(),
    )


def lease_ended(name: str) -> VaultError:
    """It was, a moment ago (SEC-3)."""
    return VaultError(
        f"the secret {name} is not leased any more",
        hint="A lease ends with its action or session, when its grant is revoked or runs out, "
        "and when the vault is locked.",
        code="CW-VAULT-LEASE-ENDED",
    )


def bad_input(message: str, *, hint: str, code: str = "CW-VAULT-INPUT") -> BadInput:
    """A call that cannot be understood."""
    return BadInput(message, hint=hint, code=code)
