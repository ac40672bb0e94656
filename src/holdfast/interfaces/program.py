"""The program that we are, as others can start it."""

from __future__ import annotations

import os
import sys
import sysconfig

from holdfast.core.errors import HoldfastError


def own_program() -> str:
    """The absolute name of `holdfast`; never looked up in PATH, which is whoever's it is."""
    for folder in (os.path.dirname(sys.executable), sysconfig.get_path("scripts")):
        path = os.path.join(folder, "holdfast")
        if os.path.isabs(path) and os.access(path, os.X_OK):
            return path
    raise HoldfastError(
        "the program holdfast is not where this Python has its programs",
        mend="Install Holdfast with pip or uv, so that there is one.",
        code="HF-NO-PROGRAM",
    )
