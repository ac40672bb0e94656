"""What a host tells of itself: version, memory, sessions and warm templates."""

from __future__ import annotations

from collections.abc import Mapping

import cellwall
from cellwall.core.types import Json
from cellwall.interfaces.http.sandboxes import OwnedSandboxes
from cellwall.runtime.app import App


def host_load(app: App, sandboxes: OwnedSandboxes | None) -> Mapping[str, Json]:
    """The load of now, for placement and for people; without sandboxes before the start is done."""
    total, free = app.host_memory()
    live = () if sandboxes is None else sandboxes.all()
    return {
        "version": cellwall.__version__,
        "memory_bytes": total,
        "memory_free_bytes": free,
        "sessions": len(live),
        "busy": sum(1 for each in live if each.busy),
        "templates": sorted(app.pool.warm_names()),
    }
