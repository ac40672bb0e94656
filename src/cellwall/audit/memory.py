"""What was signed last, remembered where the log itself does not lie."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from cellwall.audit import files
from cellwall.audit.checkpoints import Checkpoint, open_checkpoint
from cellwall.audit.failures import altered
from cellwall.audit.segments import BadSegment, open_plain
from cellwall.core.notes import MAX_NOTE_BYTES, BadNote, PublicKey

ORIGIN = "origin"
"""The file that says which log this is, until a signature does."""
_SIGNED = "audit.signed"


class SignedMemory:
    """The last checkpoint, kept with the key and not with the log: whoever can write only to the
    log cannot make us forget what was signed."""

    def __init__(self, directory: str) -> None:
        self._log = directory
        self._directory = os.path.join(os.path.dirname(directory), "keys")
        self._path = os.path.join(self._directory, _SIGNED)

    def keep(self, note: bytes) -> None:
        with suppress(FileExistsError):
            os.mkdir(self._directory, 0o700)
        folder = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            files.replace_file(_SIGNED, note, folder, durable=False)
        finally:
            os.close(folder)

    def note(self) -> bytes | None:
        """What is remembered, as it was signed; of another log, perhaps, that was here before."""
        with suppress(FileNotFoundError), open_plain(self._path) as file:
            return file.read(MAX_NOTE_BYTES)
        return None

    def check(self, found: Checkpoint | None, keys: Sequence[PublicKey]) -> None:
        try:
            kept, _ = open_checkpoint(self.note() or b"", keys)
        except BadNote:
            return  # of another log, or of none
        if found is None or found.origin != kept.origin:
            # A log that was moved away to begin anew has another name; ours has not.
            if found is None and self.is_of_this_log(kept.origin):
                raise altered("checkpoints are gone from the audit log")
            return
        if found.size < kept.size or (found.size == kept.size and found.root != kept.root):
            raise altered("checkpoints are gone from the audit log")

    def is_of_this_log(self, origin: str) -> bool:
        """Whether the log that is there bears this name, by its own word."""
        with suppress(OSError, BadSegment), open_plain(os.path.join(self._log, ORIGIN)) as file:
            return file.read(256).decode("ascii", "replace").strip() == origin
        return False
