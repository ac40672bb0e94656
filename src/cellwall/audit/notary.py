"""Signs the log: after a number of events, after a number of seconds, and at close.

One process at a time. The notary reads the new records, checks that the tree still has the root
that was last signed, signs the new root and hands the checkpoint to the witness.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from cellwall.audit import files
from cellwall.audit.files import LogSettings, closing_fd, io_failure, log_altered
from cellwall.audit.merkle import (
    Checkpoint,
    Frontier,
    check_statement,
    open_checkpoint,
    sign_checkpoint,
    unproven_checkpoint,
)
from cellwall.audit.retention import maintain_segments
from cellwall.audit.segments import (
    CHECKPOINTS,
    SEAL,
    BadSegment,
    Seal,
    find_notes,
    list_segments,
    open_plain,
    read_notes,
    segment_name,
)
from cellwall.audit.signers import Signers
from cellwall.audit.tree_builder import TreeBuilder, WrittenBatch
from cellwall.audit.witness import ORIGIN, CheckpointWitness, SignedMemory
from cellwall.core.errors import AuditFailed, CellwallError
from cellwall.core.notes import BadNote, PublicKey
from cellwall.core.outcomes import Event
from cellwall.core.ports import SessionKeysPort
from cellwall.core.types import Json, Principal

_TAIL_BYTES = 64 * 1024
_CLOSE_TIMEOUT_S = 5.0
_MAX_UNREAD_RECORDS = 100_000
_MAINTENANCE_INTERVAL_S = 10.0
_log = logging.getLogger("cellwall")


class Notary:
    """The signer of one log in one process."""

    def __init__(
        self,
        directory: str,
        settings: LogSettings,
        write: Callable[[Event], str],
        session_keys: SessionKeysPort | None = None,
    ) -> None:
        """`session_keys`: those under which the text index is sealed."""
        self._directory, self._settings = directory, settings
        self.session_keys = session_keys
        self.signers = Signers(directory, settings.signing_key, write)
        self._witness = CheckpointWitness(settings, write)
        self._memory = SignedMemory(directory)
        self.failure: AuditFailed | None = None
        """Why no more records may be written."""
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_running = False
        self._builder: TreeBuilder | None = None
        self._unsigned = 0
        self._unread: list[WrittenBatch] = []
        self._is_closed = False
        self._lock = -1

    def reset_after_fork(self) -> None:
        """In a forked child: the thread belongs to the parent, which may also hold the lock."""
        lock = self._lock
        self._reset()
        if lock >= 0:
            os.close(lock)  # otherwise the lock would survive a killed parent

    # --- who signs

    def first_record_body(self) -> dict[str, Json]:
        """For the first record: the log's origin and the key that will sign it."""
        origin = f"cellwall/audit/{secrets.token_hex(16)}"
        with closing_fd(files.open_folder(self._directory)) as folder:
            files.replace_file(ORIGIN, f"{origin}\n".encode(), folder)
        return {"origin": origin, "key": str(self.signers.first()), "version": 2}

    def sign_statement(self, lines: Callable[[str], Sequence[str]]) -> str:
        """A signed statement about this log, to be put into a record."""
        return self.signers.sign_statement(lines(self._origin(self._last_checkpoint())))

    def is_own_statement(self, note: object, lines: Callable[[str], Sequence[str]]) -> bool:
        """True if one of our keys signed exactly these lines."""
        try:
            check_statement(
                note, lines(self._origin(self._last_checkpoint())), self.signers.known_keys()
            )
        except BadNote:
            return False
        return True

    def has_signed(self, seal: Seal) -> bool:
        """True if a checkpoint confirms the end of this segment."""
        keys = self.signers.known_keys()
        path = os.path.join(self._directory, segment_name(seal.first, CHECKPOINTS))
        for note in read_notes(path):
            with suppress(BadNote):
                checkpoint, _ = open_checkpoint(note, keys)
                if (checkpoint.size, checkpoint.root) == (seal.last, seal.frontier.root()):
                    return True
        return False

    def size(self) -> int:
        """Number of signed records."""
        signed = self._last_checkpoint()
        return 0 if signed is None else signed.size

    def has_checkpoints(self) -> bool:
        """False if a crash came before the first signature."""
        return any(CHECKPOINTS in each.parts for each in list_segments(self._directory))

    def _origin(self, signed: Checkpoint | None) -> str:
        """The log's name, from the last checkpoint, or from the file before the first one."""
        if signed is not None:
            return signed.origin
        with open_plain(os.path.join(self._directory, ORIGIN)) as file:
            return file.read(256).decode("ascii", "replace").strip()

    # --- when

    def note_written(self, batch: WrittenBatch) -> None:
        """Count these records and start the signing thread if necessary."""
        self._unsigned += len(batch.leaves)
        if self._unsigned <= _MAX_UNREAD_RECORDS:  # otherwise they are read back from the segment
            self._unread.append(batch)
        if not self._is_running and not self._is_closed:
            self._thread = threading.Thread(target=self._run, name="cellwall-notary", daemon=True)
            with suppress(RuntimeError):  # no thread is available: the next record tries again
                self._thread.start()
                self._is_running = True
        if self._unsigned >= self._settings.checkpoint_events:
            self._wake.set()

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._is_running = False

    def _work(self) -> None:
        last_kept_s = -_MAINTENANCE_INTERVAL_S
        while True:
            is_busy = self._wake.wait(self._settings.checkpoint_s)
            self._wake.clear()
            if self._is_closed:
                return
            if self._unsigned:
                self._sign_or_warn(timeout_s=0.0)
                # While the log is busy, indexing and compression wait.
                if not is_busy or time.monotonic() - last_kept_s > _MAINTENANCE_INTERVAL_S:
                    last_kept_s = time.monotonic()
                    with suppress(OSError, CellwallError, BadSegment):
                        maintain_segments(self._directory, self._settings, self.signers.write, self)

    def _sign_or_warn(self, *, timeout_s: float) -> None:
        try:
            self.sign_now(timeout_s=timeout_s)
        except AuditFailed as error:
            if error.detail == errno.errorcode[errno.ETIMEDOUT]:
                return  # another process is signing
            if error.code == "CW-AUDIT-ALTERED":
                self.failure = error
            _log.warning("the audit log was not signed: %s (%s)", error.message, error.detail)
        except (CellwallError, OSError) as error:
            _log.warning("the audit log was not signed: %s", type(error).__name__)

    def close(self) -> None:
        """Sign the records that are not signed yet."""
        was_closed, self._is_closed = self._is_closed, True
        self._wake.set()
        if not was_closed and self._unsigned:
            self._sign_or_warn(timeout_s=_CLOSE_TIMEOUT_S)

    # --- what

    def signed_size(self, first: int) -> int:
        """The tree size in the last checkpoint of a segment; 0 if there is none."""
        path = os.path.join(self._directory, segment_name(first, CHECKPOINTS))
        found = _last_note(path)
        return 0 if found is None else found.size

    def sign_now(self, *, timeout_s: float) -> Checkpoint | None:
        """Sign the log as it is now; returns None if there are no new records."""
        with self._mutex:
            folder = files.open_folder(self._directory)
            try:
                lock = files.open_private("notary.lock", os.O_RDWR | os.O_CREAT, folder)
                self._lock = lock
                try:
                    files.wait_for_lock(lock, fcntl.LOCK_EX, timeout_s=timeout_s)
                    try:
                        return self._sign_new_records(folder)
                    finally:
                        # Closing is not enough: a child forked meanwhile holds the same open file
                        # description.
                        fcntl.flock(lock, fcntl.LOCK_UN)
                finally:
                    self._lock = -1
                    os.close(lock)
            except BadSegment as problem:
                raise log_altered(f"the audit log was altered: {problem}") from None
            except OSError as error:
                raise io_failure(error) from None
            finally:
                os.close(folder)

    def _sign_new_records(self, folder: int) -> Checkpoint | None:
        self._unsigned = 0
        fresh, self._unread = self._unread, []
        signers = self.signers.active_keys()
        before = last = self._last_checkpoint_by(self.signers.known_keys())
        builder, self._builder = self._builder, None  # kept only if it reaches the end
        # Another process may have signed, sealed and compressed segments since.
        if builder is None or before is None or builder.frontier.size != before.size:
            builder = TreeBuilder.resume(self._directory, folder, before)
        origin = self._origin(before)

        def sign(frontier: Frontier, first: int) -> None:
            nonlocal last
            if last is not None and last.size >= frontier.size:
                return
            last = Checkpoint(origin, frontier.size, frontier.root())
            note = sign_checkpoint(last, *signers)
            _append_note(segment_name(first, CHECKPOINTS), note, folder)
            self._memory.keep(note)
            self._witness.publish(last, note)

        def at_seal(seal: Seal) -> None:
            sign(seal.frontier, seal.first)
            text = json.dumps(seal.to_json()).encode()
            files.replace_file(segment_name(seal.first, SEAL), text, folder)

        builder.check(before)
        builder.add_written(fresh)
        builder.advance(folder, at_seal, before)
        sign(builder.frontier, builder.first)
        builder.note(folder)
        self._builder = builder
        return None if last is before else last

    def _last_checkpoint(self) -> Checkpoint | None:
        return self._last_checkpoint_by(self.signers.known_keys())

    def _last_checkpoint_by(self, keys: Sequence[PublicKey]) -> Checkpoint | None:
        """The last checkpoint by one of our keys; fails if it is older than the one remembered
        beside the key."""
        found: Checkpoint | None = None
        for segment in reversed(list_segments(self._directory)):
            if found is None and CHECKPOINTS in segment.parts:
                found = _last_note(segment.path(CHECKPOINTS), keys)
        self._memory.check(found, keys)
        return found

    def rotate(self, new_key: str | None, who: Principal) -> PublicKey:
        """Sign with another key from now on; the old key signs the announcement."""
        key = self.signers.announce(new_key, self._origin(self._last_checkpoint()), who)
        self.sign_now(timeout_s=files.LOCK_TIMEOUT_S)
        self.signers.adopt_next()
        return key


def _last_note(path: str, keys: Sequence[PublicKey] | None = None) -> Checkpoint | None:
    """The last complete checkpoint in a file; signed by one of these keys, if keys are given."""
    try:
        with open_plain(path) as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            notes = find_notes(file.read())
    except FileNotFoundError:
        return None
    if not notes:
        return None
    try:
        return (
            unproven_checkpoint(notes[-1]) if keys is None else open_checkpoint(notes[-1], keys)[0]
        )
    except BadNote as problem:
        raise BadSegment(f"the last checkpoint does not hold: {problem}") from None


def _append_note(name: str, note: bytes, folder: int) -> None:
    with closing_fd(files.open_private(name, os.O_RDWR | os.O_CREAT, folder)) as file:
        size = os.fstat(file).st_size
        # A crash may have left the start of another note. A separator line keeps it apart,
        # otherwise half a signature would be taken for a forged one.
        gap = b"" if os.pread(file, 2, max(0, size - 2)) in (b"", b"\n\n") else b"\n-\n\n"
        data = gap + note + b"\n"
        if os.pwrite(file, data, size) != len(data):
            os.ftruncate(file, size)
            raise OSError(errno.ENOSPC, "short write of a checkpoint")
        os.fdatasync(file)
        if size == 0:
            os.fsync(folder)
