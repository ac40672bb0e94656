"""The program that we are, as others can start it."""

from __future__ import annotations

import os
import sys
import sysconfig

from cellwall.core.errors import CellwallError


def own_program() -> str:
    """The absolute name of `cellwall`; never looked up in PATH, which is whoever's it is."""
    for folder in (os.path.dirname(sys.executable), sysconfig.get_path("scripts")):
        path = os.path.join(folder, "cellwall")
        if os.path.isabs(path) and os.access(path, os.X_OK):
            return path
    raise CellwallError(
        "the program cellwall is not where this Python has its programs",
        hint="Install Cellwall with pip or uv, so that there is one.",
        code="CW-NO-PROGRAM",
    )
