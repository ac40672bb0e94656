"""The number to go on from, kept in a small file between two exports."""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from cellwall.audit.export.address import unfit
from cellwall.core.errors import CellwallError

_NUMBER = re.compile(rb"[0-9]{1,20}\n?")
_MAX_BYTES = 64


class Bookmark:
    """An open one; locked, so that two exports do not send the same records at once."""

    def __init__(self, file: int) -> None:
        self._file = file
        text = os.pread(file, _MAX_BYTES, 0)
        if text and _NUMBER.fullmatch(text) is None:
            raise unfit(
                "the file of the bookmark holds no number", "Give a file of its own for it."
            )
        self.seq = int(text or b"0")
        """After which record to go on; 0 in a new one."""

    def move(self, seq: int) -> None:
        """On the disk when it returns. Always of one length and in place: there is no half of it,
        and the lock stays with the file."""
        try:
            os.pwrite(self._file, b"%020d\n" % seq, 0)
            os.fsync(self._file)
        except OSError:
            raise CellwallError(
                "the bookmark cannot be moved",
                hint=f"Check its disk. The records were sent: go on after record {seq}.",
                code="CW-EXPORT-BOOKMARK",
            ) from None
        self.seq = seq


@contextmanager
def open_bookmark(path: str) -> Iterator[Bookmark]:
    """Make or open it, of mode 0600; `BadInput` if another export has it or it is something else.

    Move it also after `ExportFailed`, to the `last_seq` that tells: nothing is then sent twice
    without need.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = os.open(path, flags, 0o600)
    except OSError:
        raise unfit(
            "the file of the bookmark cannot be used",
            "Check that its folder is there, that it is yours, and that it is no link.",
        ) from None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise unfit("the bookmark is not a plain file", "Give a file of its own for it.")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise unfit(
                "another export uses this bookmark", "Wait until that one has ended."
            ) from None
        yield Bookmark(file)
    finally:
        os.close(file)
