"""One error root. What leaves Cellwall is one of these, or it is a bug.

    CellwallError
    ├── ConfigError          the configuration file or a profile is wrong
    ├── BadInput             a call or an option cannot be understood
    ├── Denied               policy, guard or a person said no
    ├── LayerMissing         a wall the profile requires cannot be had on this host (ISO-4)
    ├── SandboxFailed        the sandbox itself broke; never the code's own failure (ERR-2)
    ├── Busy                 the governor has no room now (LIM-4)
    ├── WorkspaceError       a path or a file operation was refused
    ├── AuditFailed          the record could not be written, so nothing was done (AUD-1)
    ├── SkillRefused         a skill is not what a person has signed, so it is not used (SKL-1)
    ├── EgressRefused        a connection or a request out of a cell was refused (NET-2)
    ├── VaultError           the vault is locked, damaged, or has no such secret (SEC-7)
    ├── RunFailed            raised only by `raise_for_status()`: the program failed
    └── LimitReached         raised only by `raise_for_status()`: a limit ended the run

`code` is stable and can be matched by programs. `message` and `hint` are safe to show to anybody,
the model included: no host path, environment, secret or internal state (ERR-1). `detail` is for
the audit record alone and never leaves by any interface.
"""

from __future__ import annotations


class CellwallError(Exception):
    """Everything Cellwall raises on purpose."""

    default_code = "CW-ERROR"

    def __init__(
        self, message: str, *, hint: str = "", code: str | None = None, detail: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code or self.default_code
        self.message = message
        self.hint = hint
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]" + (f" {self.hint}" if self.hint else "")


class ConfigError(CellwallError):
    """The configuration cannot be used; every mistake is listed in the message."""

    default_code = "CW-CONFIG"


class BadInput(CellwallError):
    """A call that cannot be understood; nothing was done."""

    default_code = "CW-BAD-INPUT"


class Denied(CellwallError):
    """Refused by policy, guard or a person."""

    default_code = "CW-DENIED"


class LayerMissing(CellwallError):
    """A required wall cannot be had here; Cellwall never runs without it (ISO-4)."""

    default_code = "CW-LAYER-MISSING"


class SandboxFailed(CellwallError):
    """The sandbox broke before or while it ran the code (ERR-2)."""

    default_code = "CW-SANDBOX-FAILED"


class Busy(CellwallError):
    """No room for one more sandbox within the time allowed to wait (LIM-4)."""

    default_code = "CW-BUSY"


class WorkspaceError(CellwallError):
    """A workspace or a path in it was refused."""

    default_code = "CW-WORKSPACE"


class AuditFailed(CellwallError):
    """The record could not be written; the action was refused (AUD-1)."""

    default_code = "CW-AUDIT-FAILED"


class RunFailed(CellwallError):
    """The program ended with a failure of its own."""

    default_code = "CW-RUN-FAILED"


class LimitReached(CellwallError):
    """A resource limit ended the run."""

    default_code = "CW-LIMIT"


class KeyFailed(CellwallError):
    """A signing key cannot be read, made or used."""

    default_code = "CW-KEY"


class SkillRefused(CellwallError):
    """A skill that is not, or not any more, what a person has signed (SKL-1)."""

    default_code = "CW-SKILL"


class EgressRefused(CellwallError):
    """A way out that nobody allowed, or that leads where nothing may go (NET-2, NET-3)."""

    default_code = "CW-EGRESS"


class VaultError(CellwallError):
    """The vault cannot be used, or does not give this secret for this (SEC-1 to SEC-7)."""

    default_code = "CW-VAULT"


def told_error(kind: str, message: str, *, hint: str, code: str) -> CellwallError:
    """An error that another process of ours told, as the kind it was there."""
    found = globals().get(kind)
    if isinstance(found, type) and issubclass(found, CellwallError):
        return found(message, hint=hint, code=code)
    return CellwallError(message, hint=hint, code=code)
