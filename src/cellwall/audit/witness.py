"""Hands each checkpoint to somebody else, so that the loss of the whole log is found.

A directory, best on another machine's disk, or a command that gets the note on its input. A witness
that does not answer is told of in the record, once; it does not stop the work.
"""

from __future__ import annotations

import os
import subprocess  # named in the import contracts: the operator's own command, never an agent's
from collections.abc import Callable

from cellwall.audit import files
from cellwall.audit.checkpoints import Checkpoint
from cellwall.audit.settings import LogSettings
from cellwall.core.errors import AuditFailed
from cellwall.core.events import Event, EventKind
from cellwall.core.host_programs import ProgramRefused, operator_program
from cellwall.core.notes import MAX_NOTE_BYTES
from cellwall.core.types import Json

_TIMEOUT_S = 20.0


class Witness:
    """Of one log."""

    def __init__(self, settings: LogSettings, write: Callable[[Event], str]) -> None:
        self._directory = settings.witness_directory
        self._command = settings.witness_command
        self._write = write
        self._is_silent = False

    def see(self, checkpoint: Checkpoint, note: bytes) -> None:
        problem = self._to_directory(checkpoint, note) or self._to_command(note)
        if bool(problem) != self._is_silent:
            self._is_silent = bool(problem)
            told = problem or "it answers again"
            body: dict[str, Json] = {"size": checkpoint.size, "problem": told}
            try:
                self._write(Event(EventKind.WITNESS, "", "cellwall", "audit", body))
            except AuditFailed:
                return  # whoever writes next is told

    def _to_directory(self, checkpoint: Checkpoint, note: bytes) -> str:
        if self._directory is None:
            return ""
        log = checkpoint.origin.rpartition("/")[2]
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            folder = os.open(self._directory, flags)
            try:
                name = f"{log}-{checkpoint.size:016d}.checkpoint"
                try:
                    known = _read(name, folder)
                except FileNotFoundError:
                    files.replace_file(name, note, folder)
                else:  # never replaced: it tells of a history that was written anew
                    return "" if known == note else "the directory has another one of this size"
            finally:
                os.close(folder)
        except OSError as error:
            return f"the directory did not take it: {os.strerror(error.errno or 0)}"
        return ""

    def _to_command(self, note: bytes) -> str:
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
