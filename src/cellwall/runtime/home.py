"""The state folder: made private, refused if it is not."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from cellwall.core.errors import CellwallError
from cellwall.core.home import state_path


def state_home(environ: Mapping[str, str]) -> str:
    """`$CELLWALL_HOME`, else the XDG state folder; made 0700, refused if others may write to it."""
    home = state_path(environ)
    try:
        os.makedirs(home, mode=0o700, exist_ok=True)
        info = os.stat(home)
    except OSError as error:
        raise no_state(error) from error
    if info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) & 0o077:
        raise CellwallError(
            "the Cellwall state folder is open to other users",
            hint="chmod 700 it, and make sure that it belongs to you.",
            code="CW-STATE-UNSAFE",
        )
    return os.path.realpath(home)


def no_state(error: OSError) -> CellwallError:
    """What is told when it cannot be used."""
    return CellwallError(
        "the Cellwall state folder cannot be made or read",
        hint="Set CELLWALL_HOME to a directory you can write to, with space left.",
        code="CW-STATE",
        detail=str(error),
    )
