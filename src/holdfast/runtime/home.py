"""The state folder: made private, refused if it is not."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from holdfast.core.errors import HoldfastError
from holdfast.core.home import state_path


def state_home(environ: Mapping[str, str]) -> str:
    """`$HOLDFAST_HOME`, else the XDG state folder; made 0700, refused if others may write to it."""
    home = state_path(environ)
    try:
        os.makedirs(home, mode=0o700, exist_ok=True)
        info = os.stat(home)
    except OSError as error:
        raise no_state(error) from error
    if info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) & 0o077:
        raise HoldfastError(
            "the Holdfast state folder is open to other users",
            mend="chmod 700 it, and make sure that it belongs to you.",
            code="HF-STATE-UNSAFE",
        )
    return os.path.realpath(home)


def no_state(error: OSError) -> HoldfastError:
    """What is told when it cannot be used."""
    return HoldfastError(
        "the Holdfast state folder cannot be made or read",
        mend="Set HOLDFAST_HOME to a directory you can write to, with space left.",
        code="HF-STATE",
        detail=str(error),
    )
