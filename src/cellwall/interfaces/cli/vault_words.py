"""What is told of secrets and grants: names, versions and places, never a value. Pure."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellwall.admin.vault import Grant, SecretInfo
    from cellwall.core.types import Json


def secret_json(secret: SecretInfo) -> dict[str, Json]:
    """For programs."""
    return {
        "name": secret.name,
        "version": secret.version,
        "made_s": secret.made_s,
        "changed_s": secret.changed_s,
        "has_previous": secret.has_previous,
        "grants": [each.to_json() for each in secret.grants],
    }


def secret_lines(secret: SecretInfo) -> list[str]:
    """For people: the secret, then what it may be used for."""
    before = ", the value before is still known" if secret.has_previous else ""
    line = f"{secret.name}  version {secret.version} of {_when(secret.changed_s)}{before}"
    grants = [f"  {grant_line(each)}" for each in secret.grants]
    return [line, *(grants or ["  not granted for anything"])]


def grant_line(grant: Grant) -> str:
    """For people."""
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
