"""Whether a run of base64 letters may hold text."""

from __future__ import annotations

import ctypes

from cellwall.guard.ctext.library import DATA, SIZE, function

_may_be_text = function("cw_base64_may_be_text", ctypes.c_int, DATA, SIZE)


def may_be_text(run: bytes) -> bool:
    """By its first and its last letters, as they are, turned by 13, and read backwards. False is
    certain if no `=` stands in the run; true is to be looked at."""
    return bool(_may_be_text(run, len(run)))
