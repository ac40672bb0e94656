"""What the record holds of the vault. Pure."""

from __future__ import annotations

from cellwall.core.errors import CellwallError
from cellwall.core.events import Event, EventKind
from cellwall.core.types import Json, Principal
from cellwall.secrets.leases import Lease


def vault_event(
    who: Principal, what: str, status: str, body: dict[str, Json], action_id: str, session_id: str
) -> Event:
    """Of something that was done with the vault; names, never values."""
    names = body.get("names")
    about = ", ".join(map(str, names)) if isinstance(names, list) else "vault"
    told = {"change": what, "message": f"{what} {about}: {status}", "status": status, **body}
    return Event(EventKind.VAULT, action_id, who.name, who.interface, told, session_id)


def released(lease: Lease) -> dict[str, Json]:
    """What was lent, and how often each was handed to the proxy."""
    return {"names": list(lease.names), "revealed": dict(lease.revealed)}


def told_error(error: CellwallError) -> dict[str, Json]:
    """Why it was refused, with what is for the record alone."""
    return {"error_code": error.code, "reason": error.message, "detail": error.detail}
