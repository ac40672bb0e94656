"""What the commands of `cellwall vault` share: options, the name, the way to the vault."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from cellwall.core.errors import BadInput
from cellwall.interfaces.cli.options import json_option, passphrase_option, place_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cellwall.core.types import Principal
    from cellwall.runtime.vault import Vault

Decorated = TypeVar("Decorated", bound="Callable[..., Any]")

EXIT_CODES = """
\b
Exit codes:
  0    done
  125  refused or failed, and nothing was changed; the reason is on standard error
"""


def vault_options(function: Decorated) -> Decorated:
    """The options of every command here."""
    function = json_option("Print one JSON object.")(function)
    function = place_options(function)
    return passphrase_option(function)


def secret_name(words: tuple[str, ...]) -> str:
    """The one argument. What stands beside it is a value, and is not repeated."""
    if not words:
        raise BadInput(
            "the name of the secret is missing", hint="Such as GITHUB_TOKEN.", code="CW-USAGE"
        )
    if len(words) > 1 or "=" in words[0]:
        raise BadInput(
            "a value never stands on the command line, where other users and your shell's history "
            "see it",
            hint="Give it on standard input, or at the prompt. Take it out of the history, and "
            "replace it at whoever issued it.",
            code="CW-VAULT-VALUE-SHOWN",
        )
    return words[0]


def open_vault(config: str | None, profile: str | None, passphrase_fd: int | None) -> Vault:
    """Locked; it asks for its key when that is needed."""
    from cellwall.interfaces.cli.terminal_input import Passphrases  # noqa: PLC0415  # only here
    from cellwall.runtime.vault import Vault  # noqa: PLC0415  # heavy

    return Vault.configured(config=config, profile=profile, ask=Passphrases(passphrase_fd))


def me() -> Principal:
    """Whoever types this."""
    from cellwall.runtime.wiring import principal  # noqa: PLC0415  # heavy

    return principal("cli")
