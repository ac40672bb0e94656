"""Where the state of one user lies. Only names: nothing is made or checked here."""

from __future__ import annotations

import os
from collections.abc import Mapping

SHAPING = (
    "HOLDFAST_HOME",
    "HOLDFAST_CONFIG",
    "XDG_STATE_HOME",
    "XDG_CONFIG_HOME",
    "HOME",
    "HOLDFAST_PATH",
)
"""The variables that shape a runtime; another value of one of them is another runtime."""

SUPERVISOR_SOCKET = "supervisor.sock"


def state_path(environ: Mapping[str, str]) -> str:
    """`$HOLDFAST_HOME`, else the XDG state folder."""
    return environ.get("HOLDFAST_HOME") or os.path.join(
        environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state"), "holdfast"
    )
