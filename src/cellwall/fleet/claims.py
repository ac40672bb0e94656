"""Claims of sandboxes as the driver of agent-sandbox reads them: plain data of an API that may err.

Whatever has another type counts as absent, and a claim without a sandbox is no host.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cellwall.fleet.engine import HostState
from cellwall.fleet.kubernetes_api import Resource

DRAINS = "cellwall.dev/draining"
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def host_id_of(sandbox: str) -> str:
    """The id of the service in a sandbox: its pod writes the same into `service-id` of its state
    folder, so that the database names the sandbox of each session."""
    digest = hashlib.sha256(sandbox.encode()).digest()[:26]
    return "svc_" + "".join(_ALPHABET[byte & 31] for byte in digest)


@dataclass(frozen=True, slots=True)
class ClaimState:
    """What is used of a claim."""

    name: str
    sandbox: str
    address: str
    pool: str
    is_ready: bool
    was_ready: bool
    is_draining: bool

    @property
    def host_id(self) -> str:
        return host_id_of(self.sandbox)


def read_claim(claim: Resource, before: ClaimState | None) -> ClaimState:
    """What is used of a claim; `before` is what was read of it the last time."""
    metadata, status = _part(claim, "metadata"), _part(claim, "status")
    sandbox = _part(status, "sandbox")
    addresses = sandbox.get("podIPs")
    address = _address(addresses[0]) if isinstance(addresses, list) and addresses else ""
    is_ending = bool(metadata.get("deletionTimestamp")) or _condition(status, "Finished") == "True"
    name = sandbox.get("name")
    known = name if isinstance(name, str) else (before.sandbox if before is not None else "")
    is_ready = (
        not is_ending and bool(known) and bool(address) and _condition(status, "Ready") == "True"
    )
    return ClaimState(
        name=name_of(claim),
        sandbox=known,
        address=address,
        pool=str(_part(_part(claim, "spec"), "warmPoolRef").get("name", "")),
        is_ready=is_ready,
        was_ready=is_ready or (before is not None and before.was_ready),
        is_draining=_part(metadata, "annotations").get(DRAINS) == "true",
    )


def host_state(claim: ClaimState) -> HostState:
    """The service in the sandbox of a claim."""
    return HostState(
        id=claim.host_id,
        incarnation=claim.name,
        address=claim.address,
        labels={"pool": claim.pool},
        is_draining=claim.is_draining,
        is_lost=claim.was_ready and not claim.is_ready,
    )


def _address(value: object) -> str:
    """An address and nothing else: the text becomes part of a URL."""
    try:
        return ipaddress.ip_address(value if isinstance(value, str) else "").compressed
    except ValueError:
        return ""


def _condition(status: Mapping[str, Any], kind: str) -> str:
    found = status.get("conditions")
    for each in found if isinstance(found, list) else ():
        if isinstance(each, dict) and each.get("type") == kind:
            return str(each.get("status", ""))
    return ""


def _part(resource: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = resource.get(name)
    return found if isinstance(found, dict) else {}


def name_of(resource: Resource) -> str:
    """Empty where it has none."""
    return str(_part(resource, "metadata").get("name", ""))


def version_of(resource: Resource) -> str:
    """Of the resource, for the next write or watch."""
    return str(_part(resource, "metadata").get("resourceVersion", ""))
