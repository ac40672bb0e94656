"""Keeps copies of checkpoints outside the log, so that loss or rollback of the log is detected.

A witness is a directory, ideally on another machine's disk, or a command that reads the note on
standard input. A witness that fails is reported in the log once; it does not stop the work. The
last checkpoint is also remembered beside the signing key.
"""

from __future__ import annotations

import os
import subprocess  # named in the import contracts: the operator's own command, never an agent's
from collections.abc import Callable, Sequence
from contextlib import suppress

from cellwall.audit import files
from cellwall.audit.files import DIRECTORY, LogSettings, closing_fd, log_altered
from cellwall.audit.merkle import Checkpoint, open_checkpoint
from cellwall.audit.segments import BadSegment, open_plain
from cellwall.core.errors import AuditFailed
from cellwall.core.host_programs import ProgramRefused, operator_program
from cellwall.core.notes import MAX_NOTE_BYTES, BadNote, PublicKey
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.types import Json

_TIMEOUT_S = 20.0


class CheckpointWitness:
    """The witness of one log."""

    def __init__(self, settings: LogSettings, write: Callable[[Event], str]) -> None:
        self._directory = settings.witness_directory
        self._command = settings.witness_command
        self._write = write
        self._has_failed = False

    def publish(self, checkpoint: Checkpoint, note: bytes) -> None:
        problem = self._publish_to_directory(checkpoint, note) or self._publish_to_command(note)
        if bool(problem) != self._has_failed:
            self._has_failed = bool(problem)
            problem_text = problem or "it answers again"
            body: dict[str, Json] = {"size": checkpoint.size, "problem": problem_text}
            try:
                self._write(Event(EventKind.WITNESS, "", "cellwall", "audit", body))
            except AuditFailed:
                return  # the next writer gets the error

    def _publish_to_directory(self, checkpoint: Checkpoint, note: bytes) -> str:
        if self._directory is None:
            return ""
        log = checkpoint.origin.rpartition("/")[2]
        try:
            with closing_fd(os.open(self._directory, DIRECTORY)) as folder:
                name = f"{log}-{checkpoint.size:016d}.checkpoint"
                try:
                    known = _read(name, folder)
                except FileNotFoundError:
                    files.replace_file(name, note, folder)
                else:  # never replaced: a different note shows that history was rewritten
                    return "" if known == note else "the directory has another one of this size"
        except OSError as error:
            return f"the directory did not take it: {os.strerror(error.errno or 0)}"
        return ""

    def _publish_to_command(self, note: bytes) -> str:
        if not self._command:
            return ""
        try:
            done = subprocess.run(
                [operator_program(self._command[0]), *self._command[1:]],
                input=note,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_TIMEOUT_S,
                check=False,
                start_new_session=True,
            )
        except ProgramRefused as refused:
            return f"the command was not started: {refused.why}. {refused.hint}"
        except (OSError, subprocess.SubprocessError) as error:
            return f"the command failed: {type(error).__name__}"
        return "" if done.returncode == 0 else f"the command ended with {done.returncode}"


def _read(name: str, folder: int) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as file:
        return file.read(MAX_NOTE_BYTES)


ORIGIN = "origin"
"""The file that names the log until a checkpoint does."""
_SIGNED = "audit.signed"


class SignedMemory:
    """The last checkpoint, stored with the key and not with the log: an attacker who can write
    only to the log cannot make us forget what was signed."""

    def __init__(self, directory: str) -> None:
        self._log = directory
        self._directory = os.path.join(os.path.dirname(directory), "keys")
        self._path = os.path.join(self._directory, _SIGNED)

    def keep(self, note: bytes) -> None:
        with suppress(FileExistsError):
            os.mkdir(self._directory, 0o700)
        with closing_fd(os.open(self._directory, DIRECTORY)) as folder:
            files.replace_file(_SIGNED, note, folder, durable=False)

    def note(self) -> bytes | None:
        """The remembered checkpoint as signed; possibly of another log that was here before."""
        with suppress(FileNotFoundError), open_plain(self._path) as file:
            return file.read(MAX_NOTE_BYTES)
        return None

    def signed_s(self) -> float | None:
        """When the checkpoint was signed; None where there is none."""
        with suppress(OSError):
            return os.stat(self._path).st_mtime
        return None

    def check(self, found: Checkpoint | None, keys: Sequence[PublicKey]) -> None:
        try:
            kept, _ = open_checkpoint(self.note() or b"", keys)
        except BadNote:
            return  # of another log, or none
        if found is None or found.origin != kept.origin:
            # A new log started after the old one was moved away has another origin; this one has
            # ours.
            if found is None and self.is_of_this_log(kept.origin):
                raise log_altered("checkpoints are gone from the audit log")
            return
        if found.size < kept.size or (found.size == kept.size and found.root != kept.root):
            raise log_altered("checkpoints are gone from the audit log")

    def is_of_this_log(self, origin: str) -> bool:
        """True if the existing log states this origin about itself."""
        with suppress(OSError, BadSegment), open_plain(os.path.join(self._log, ORIGIN)) as file:
            return file.read(256).decode("ascii", "replace").strip() == origin
        return False
