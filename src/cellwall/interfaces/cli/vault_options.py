"""What the commands of `cellwall vault` share: options, vault access, output without values."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from cellwall.core.errors import BadInput
from cellwall.interfaces.cli.options import json_option, passphrase_option, place_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cellwall.admin.vault import Grant, SecretInfo, VaultAdmin
    from cellwall.core.types import Json, Principal

Decorated = TypeVar("Decorated", bound="Callable[..., Any]")

EXIT_CODES = """
\b
Exit codes:
  0    done
  125  refused or failed, and nothing was changed; the reason is on standard error
"""


def vault_options(function: Decorated) -> Decorated:
    """The options of every vault command."""
    function = json_option("Print one JSON object.")(function)
    function = place_options(function)
    return passphrase_option(function)


def secret_name(words: tuple[str, ...]) -> str:
    """The only argument. A second argument would be a value and must not be echoed."""
    if not words:
        raise BadInput(
            "the name of the secret is missing", hint="Such as GITHUB_TOKEN.", code="CW-USAGE"
        )
    if len(words) > 1 or "=" in words[0]:
        raise BadInput(
            "a value must not be on the command line, where other users and the shell's history "
            "can see it",
            hint="Give it on standard input, or at the prompt. Remove it from the history, and "
            "have it reissued.",
            code="CW-VAULT-VALUE-SHOWN",
        )
    return words[0]


def open_vault(config: str | None, profile: str | None, passphrase_fd: int | None) -> VaultAdmin:
    """The locked vault; it asks for its key when needed."""
    from cellwall.admin.vault import VaultAdmin  # noqa: PLC0415  # heavy
    from cellwall.interfaces.cli.terminal_input import Passphrases  # noqa: PLC0415  # only here

    return VaultAdmin.configured(config=config, profile=profile, ask=Passphrases(passphrase_fd))


def me() -> Principal:
    """The user of this command."""
    from cellwall.runtime.wiring import principal  # noqa: PLC0415  # heavy

    return principal("cli")


def secret_json(secret: SecretInfo) -> dict[str, Json]:
    """A secret as JSON."""
    return {
        "name": secret.name,
        "version": secret.version,
        "made_s": secret.made_s,
        "changed_s": secret.changed_s,
        "has_previous": secret.has_previous,
        "grants": [each.to_json() for each in secret.grants],
    }


def secret_lines(secret: SecretInfo) -> list[str]:
    """A secret and its grants as text."""
    before = ", the old value is still kept" if secret.has_previous else ""
    line = f"{secret.name}  version {secret.version} of {_when(secret.changed_s)}{before}"
    grants = [f"  {grant_line(each)}" for each in secret.grants]
    return [line, *(grants or ["  no grants"])]


def grant_line(grant: Grant) -> str:
    """A grant as text."""
    binding = grant.binding
    ports = ",".join(map(str, binding.ports))
    where = f"{binding.host}:{ports}{binding.path if binding.path != '/' else ''}"
    bounds = [
        f"{','.join(binding.methods)} {where}" if binding.methods else where,
        f"in {binding.place} {binding.name}",
        *([f"for {', '.join(grant.tools)}"] if grant.tools else []),
        *([f"in {grant.session}"] if grant.session else []),
        *([f"until {_when(grant.until_s)}"] if grant.until_s is not None else []),
    ]
    return f"{grant.id}  {'  '.join(bounds)}"


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds))
