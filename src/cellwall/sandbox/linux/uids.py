"""Host uids that no other template or live cell of this user has (started as root)."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from cellwall.core.errors import Busy

FIRST = 10_000
"""Above every slot's uid: one-shot cold cells use the numbers from `uid_base` on."""
_MOST = 4096


class UidLease:
    """One number while it is held; the kernel lets go of it with the process."""

    def __init__(self, directory: str) -> None:
        with suppress(FileExistsError):
            os.mkdir(directory, 0o700)  # and not the state folder: if that is gone, so are we
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        for number in range(_MOST):
            descriptor = os.open(f"{directory}/{number}", flags, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            self.number, self._descriptor = FIRST + number, descriptor
            return
        raise Busy(
            f"all {_MOST} places for live sandboxes are taken",
            hint="End some: `cellwall ps` lists them.",
            code="CW-TOO-MANY-LIVE",
        )

    def close(self) -> None:
        with suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
