"""One error root: every exception that leaves Cellwall on purpose is one of these classes.

docs/errors.md draws the tree, generated from this file by `./dev docs`. `code` is stable, and
programs can match on it. `message` and `hint` are safe to show to anybody, the model included: no
host path, environment, secret or internal state (ERR-1). `detail` goes to the audit log alone and
never leaves by any interface.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` itself takes as long to import as Python takes to start
if TYPE_CHECKING:
    from typing import TypeGuard


class CellwallError(Exception):
    """The root of every error that Cellwall raises on purpose."""

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
    """The configuration is invalid; the message lists every mistake."""

    default_code = "CW-CONFIG"


class BadInput(CellwallError):
    """A call or an option is malformed; nothing was done."""

    default_code = "CW-BAD-INPUT"


class Denied(CellwallError):
    """Policy, a role, the guard or a person refused the action."""

    default_code = "CW-DENIED"


class LimitExceeded(Denied):
    """A rate limit or a budget of the user, a team, a token or an address is used up (RBAC-4)."""

    default_code = "CW-LIMIT-EXCEEDED"
    retry_after_s: float = 0.0
    """When the same request can succeed."""
    is_repeated: bool = False
    """The same limit refused before in its window: recorded once, or a flood fills the log."""


class LayerMissing(CellwallError):
    """The host lacks an isolation layer that the profile requires (ISO-4)."""

    default_code = "CW-LAYER-MISSING"


class SandboxFailed(CellwallError):
    """The sandbox itself failed; never a failure of the code inside (ERR-2)."""

    default_code = "CW-SANDBOX-FAILED"


class Busy(CellwallError):
    """The host had no capacity for another sandbox within the queue timeout (LIM-4)."""

    default_code = "CW-BUSY"


class WorkspaceError(CellwallError):
    """A workspace, or a path or file operation in it, was refused."""

    default_code = "CW-WORKSPACE"


class AuditFailed(CellwallError):
    """The audit log could not be written, so the action was refused (AUD-1)."""

    default_code = "CW-AUDIT-FAILED"


class RunFailed(CellwallError):
    """The program failed; raised by `raise_for_status()` alone."""

    default_code = "CW-RUN-FAILED"


class LimitReached(CellwallError):
    """A resource limit ended the run; raised by `raise_for_status()` alone."""

    default_code = "CW-LIMIT"


class KeyFailed(CellwallError):
    """A signing key cannot be read, created or used."""

    default_code = "CW-KEY"


class SkillRefused(CellwallError):
    """A skill is unsigned or differs from its signed content, so it is not used (SKL-1)."""

    default_code = "CW-SKILL"


class EgressRefused(CellwallError):
    """A connection or request out of a sandbox was refused (NET-2, NET-3)."""

    default_code = "CW-EGRESS"


class VaultError(CellwallError):
    """The vault is locked or damaged, or does not grant this use of a secret (SEC-1 to SEC-7)."""

    default_code = "CW-VAULT"


SEALED_CODES = {
    "CW-SESSION-ERASED": "erased",
    "CW-SESSION-LOCKED": "locked",
    "CW-SESSION-DAMAGED": "damaged",
}
"""Why data of a session cannot be read, by the code of the error, and the word shown instead."""


class StorageError(CellwallError):
    """The database cannot be opened, read or written, or its schema does not fit (SRV-4)."""

    default_code = "CW-STORAGE"


class SignInRefused(CellwallError):
    """A password, token or link was not accepted, or there were too many guesses (SRV-2)."""

    default_code = "CW-SIGN-IN"


class ServerFailed(CellwallError):
    """Another MCP server could not be reached, or broke the protocol or a bound (SRV-7)."""

    default_code = "CW-MCP"


class NotFound(CellwallError):
    """There is no such resource, or it belongs to another user (RBAC-3)."""

    default_code = "CW-NOT-FOUND"


def error_kind(error: CellwallError) -> str:
    """The name of the public class of an error; a part's own subclass counts as its parent."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == __name__)


def make_error(kind: str, message: str, *, hint: str = "", code: str) -> CellwallError:
    """The exception that another step or process has described.

    Its class is `kind` where that names one, else the class whose default code is the longest
    prefix of the code (`CW-VAULT-LOCKED` is a `VaultError`), else the root.
    """
    classes = [found for found in globals().values() if _is_error_class(found)]
    named = [found for found in classes if found.__name__ == kind]
    prefixed = [found for found in classes if f"{code}-".startswith(f"{found.default_code}-")]
    found = max(named or prefixed, key=lambda each: len(each.default_code), default=CellwallError)
    return found(message, hint=hint, code=code)


def _is_error_class(value: object) -> TypeGuard[type[CellwallError]]:
    return isinstance(value, type) and issubclass(value, CellwallError)
