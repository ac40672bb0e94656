"""What the commands of `cellwall vault` share: options, vault access, output without values."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cellwall.core.errors import BadInput
from cellwall.core.types import Json
from cellwall.interfaces.cli.options import (
    ConfigOptions,
    Decorated,
    json_option,
    passphrase_option,
    place_options,
)
from cellwall.interfaces.cli.output import json_fields

if TYPE_CHECKING:
    from cellwall.admin.vault import Grant, SecretInfo, VaultAdmin


@dataclass(frozen=True, slots=True)
class VaultAccess:
    """How a command opens the vault."""

    configured: ConfigOptions
    passphrase_fd: int | None

    def open(self) -> VaultAdmin:
        """The locked vault; it asks for its key when needed."""
        from cellwall.admin.vault import VaultAdmin
        from cellwall.interfaces.cli.terminal_input import Passphrases

        return VaultAdmin.configured(**self.configured, ask=Passphrases(self.passphrase_fd))


def vault_options(command: Decorated) -> Decorated:
    """The options of every vault command, which receives `access`."""

    @functools.wraps(command)
    def with_access(*, configured: ConfigOptions, passphrase_fd: int | None, **values: Any) -> int:  # noqa: ANN401  # what click has parsed
        return int(command(access=VaultAccess(configured, passphrase_fd), **values))

    function = json_option("Print one JSON object.")(with_access)
    return passphrase_option(place_options(function))  # type: ignore[return-value]  # click keeps what it decorates


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


def secret_json(secret: SecretInfo) -> dict[str, Json]:
    """A secret as JSON."""
    names = ("name", "version", "made_s", "changed_s", "has_previous", "project")
    return {**json_fields(secret, *names), "grants": [each.to_json() for each in secret.grants]}


def secret_lines(secret: SecretInfo) -> list[str]:
    """A secret and its grants as text."""
    before = ", the old value is still kept" if secret.has_previous else ""
    where = f", only for {secret.project}" if secret.project else ""
    line = f"{secret.name}  version {secret.version} of {_when(secret.changed_s)}{before}{where}"
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
