"""Forwards every record, as it is written, to a syslog receiver over TLS (RFC 5425).

  (1) take the lock of the bookmark: one process forwards, others wait for their turn;
  (2) continue after the bookmark. It has the hash of the last record sent: if the log has another
      record there (a power cut took what was not flushed yet), go back to the last signed record;
  (3) collect what is there, bounded; (4) send it, with a pause that grows while that fails;
  (5) move the bookmark, flushed. A kill between (4) and (5) sends the batch again.

Every record arrives at least once, in order, without a gap. Reading and sending happen in a thread
of their own: a receiver that is slow or away delays no action, and the records wait in the log.
Syslog and not JSON Lines: receivers exist for it (rsyslog, syslog-ng, every SIEM), RFC 5425 defines
its framing over TLS, and the message carries the record as JSON.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any

from cellwall.audit.export.sinks import ExportSink, NotDelivered
from cellwall.audit.export.syslog import UNCONFIRMED, SyslogSink
from cellwall.audit.export.target import ExportTarget
from cellwall.audit.files import (
    closing_fd,
    log_altered,
    make_folder,
    open_folder,
    open_private,
    replace_file,
)
from cellwall.audit.following import follow
from cellwall.audit.merkle import leaf_hash, unproven_checkpoint
from cellwall.audit.records import SEALED_VERSION
from cellwall.audit.sealed_bodies import is_locked
from cellwall.audit.search import FoundRecord, Query, match_line
from cellwall.audit.segments import CHECKPOINTS, BadSegment, list_segments, read_notes
from cellwall.core.errors import CellwallError
from cellwall.core.notes import BadNote
from cellwall.core.ports import SessionKeysPort

_log = logging.getLogger("cellwall")
_BOOKMARK = "bookmark"
_STATE = "state.json"
_MARK = re.compile(rb"([0-9]{20}) ([0-9a-f]{64})\n")
_NO_LEAF = "0" * 64
_MAX_STATE_BYTES = 64 * 1024
_FIRST_PAUSE_S = 1.0
_MAX_PAUSE_S = 60.0
_TURN_S = 2.0
_MAX_BATCH_RECORDS = 1000
_MAX_BATCH_BYTES = 4 * 1024 * 1024


class VaultLocked(Exception):
    """Bodies are to be decrypted, and the key is in a locked vault."""


@dataclass(frozen=True, slots=True)
class ForwardState:
    """How forwarding stands. `seq` is the last record that has arrived."""

    seq: int = 0
    is_running: bool = False
    state: str = "never ran"
    """`ok`, `retrying`, `locked`, `failed` or `never ran`."""
    problem: str = ""
    code: str = ""
    time_s: float = 0.0
    """When this was written."""
    gaps: int = 0
    """Records that retention had deleted before they were sent."""


class ForwardMark:
    """The bookmark: number and hash of the last record sent, in place and flushed."""

    def __init__(self, file: int) -> None:
        self._file = file
        found = _MARK.fullmatch(os.pread(file, 128, 0))
        self.seq, self.leaf = (int(found[1]), found[2].decode()) if found else (0, _NO_LEAF)

    def move(self, seq: int, leaf: str) -> None:
        # One write below the size of a sector: a power cut leaves the old mark or the new one.
        os.pwrite(self._file, b"%020d %b\n" % (seq, leaf.encode()), 0)
        os.fdatasync(self._file)
        self.seq, self.leaf = seq, leaf


class Forwarder:
    """Forwards the log of one directory until it is stopped."""

    def __init__(
        self,
        directory: str,
        folder: str,
        target: ExportTarget,
        keys: SessionKeysPort | None,
        *,
        pause_s: float = _FIRST_PAUSE_S,
        open_sink: Callable[[ExportTarget], ExportSink] = SyslogSink,
    ) -> None:
        """`folder` has the bookmark. Without `keys`, records are sent as stored, sealed."""
        self._directory, self._folder, self._target = directory, folder, target
        self._keys, self._pause_s, self._open_sink = keys, pause_s, open_sink
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._state = ForwardState()

    def start(self) -> None:
        """Run in a thread of its own."""
        self._thread = threading.Thread(target=self.run, name="cellwall-forward", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end, and wait a moment for it; what is unsent stays for the next."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_TURN_S)

    def run(self) -> None:
        """Until `stop`."""
        make_folder(self._folder)
        with closing_fd(open_folder(self._folder)) as folder:
            while not self._stop.is_set():
                with closing_fd(open_private(_BOOKMARK, os.O_RDWR | os.O_CREAT, folder)) as file:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # (1)
                    except BlockingIOError:
                        self._stop.wait(_TURN_S)
                        continue
                    self._forward_while_possible(ForwardMark(file), folder)

    def _forward_while_possible(self, mark: ForwardMark, folder: int) -> None:
        pause_s = self._pause_s
        self._state = replace(read_state(self._folder), seq=mark.seq)
        while not self._stop.is_set():
            before = mark.seq
            try:
                self._forward(mark, folder)
                return
            except VaultLocked:
                self._note(folder, "locked", mark, "the vault is locked", "CW-SESSION-LOCKED")
            except NotDelivered as error:
                self._note(folder, "retrying", mark, error.message, error.code)
            except CellwallError as error:
                self._note(folder, "failed", mark, error.message, error.code)
            except OSError as error:
                _log.warning("forwarding the audit log failed: %s", type(error).__name__)
                self._note(folder, "failed", mark, "the log or the bookmark cannot be used", "")
            if mark.seq != before:
                pause_s = self._pause_s
            self._stop.wait(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    def _forward(self, mark: ForwardMark, folder: int) -> None:
        with closing(self._open_sink(self._target)) as sink:
            start, leaf = self._starting_point(mark)  # (2)
            expected, last_leaf = start + 1, leaf
            for batch in self._batches(start):  # (3)
                if self._stop.is_set():
                    return
                if not batch:
                    if self._state.state != "ok":
                        self._note(folder, "ok", mark)
                    continue
                gaps = 0
                for found in batch:
                    gaps += _gap_before(found, expected, last_leaf)
                    last_leaf = leaf_hash(found.line).hex()
                    expected = found.record["seq"] + 1
                receipt = sink.send([self._opened(each) for each in batch])  # (4)
                if receipt.notice == UNCONFIRMED:
                    raise NotDelivered(
                        receipt.notice,
                        hint="The receiver must close its side after it has read to the end.",
                        code="CW-EXPORT-UNCONFIRMED",
                    )
                mark.move(expected - 1, last_leaf)  # (5)
                self._state = replace(self._state, gaps=self._state.gaps + gaps)
                self._note(folder, "ok", mark)

    def _opened(self, found: FoundRecord) -> FoundRecord:
        if self._keys is None or found.record["v"] != SEALED_VERSION:
            return found
        opened = match_line(Query(), found.record, found.line, found.segment, self._keys)
        if opened is None or is_locked(opened.record):
            raise VaultLocked
        return opened

    def _batches(self, after_seq: int) -> Iterator[list[FoundRecord]]:
        """Full batches, or what there is when the log has no more for now; empty while idle."""
        batch: list[FoundRecord] = []
        size_bytes = 0
        for found in follow(self._directory, Query(), after_seq=after_seq):
            if found is not None:
                batch.append(found)
                size_bytes += len(found.line)
                if len(batch) < _MAX_BATCH_RECORDS and size_bytes < _MAX_BATCH_BYTES:
                    continue
            yield batch
            batch, size_bytes = [], 0

    def _starting_point(self, mark: ForwardMark) -> tuple[int, str]:
        if mark.seq == 0 or self._leaf_at(mark.seq) in (mark.leaf, None):
            return mark.seq, mark.leaf
        return min(self._signed_size(), mark.seq - 1), _NO_LEAF

    def _leaf_at(self, seq: int) -> str | None:
        """The hash of a record; None if it was deleted by retention."""
        for found in follow(self._directory, Query(), after_seq=seq - 1):
            if found is None:
                return ""  # the log ends before it
            return leaf_hash(found.line).hex() if found.record["seq"] == seq else None
        return None

    def _signed_size(self) -> int:
        for segment in reversed(list_segments(self._directory)):
            if CHECKPOINTS in segment.parts:
                with suppress(OSError, BadSegment, BadNote, IndexError):
                    return unproven_checkpoint(read_notes(segment.path(CHECKPOINTS))[-1]).size
        return 0

    def _note(
        self, folder: int, state: str, mark: ForwardMark, problem: str = "", code: str = ""
    ) -> None:
        """For people; the bookmark alone decides."""
        self._state = ForwardState(
            seq=mark.seq,
            is_running=True,
            state=state,
            problem=problem,
            code=code,
            time_s=time.time(),
            gaps=self._state.gaps,
        )
        fields = {name: getattr(self._state, name) for name in ForwardState.__slots__}
        with suppress(OSError):
            replace_file(_STATE, json.dumps(fields).encode(), folder, durable=False)


def _gap_before(found: FoundRecord, expected: int, last_leaf: str) -> int:
    """How many records retention has deleted before this one.

    Raises if it does not follow the last one: it was replaced since that was read, and the next try
    looks again at (2), or the log was altered, and a person must know.
    """
    seq = found.record["seq"]
    is_linked = seq == expected and last_leaf in (_NO_LEAF, found.record["prev"])
    if not is_linked and not seq == found.segment.first > expected:
        raise log_altered(f"record {seq} does not follow the one before it")
    return int(seq - expected)


def read_state(folder: str) -> ForwardState:
    """How forwarding stands; whether a process has the lock is looked up."""
    fields: dict[str, Any] = {}
    with (
        suppress(OSError, ValueError, RecursionError),
        open(os.path.join(folder, _STATE), "rb") as file,
    ):
        fields = json.loads(file.read(_MAX_STATE_BYTES))
    try:
        state = ForwardState(**fields)
    except TypeError:
        state = ForwardState()
    is_running, seq = False, 0
    with (
        suppress(OSError),
        closing_fd(open_folder(folder)) as opened,
        closing_fd(open_private(_BOOKMARK, os.O_RDWR, opened)) as file,
    ):
        seq = ForwardMark(file).seq
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            is_running = True
    return replace(state, seq=seq, is_running=is_running)


def forwarded_seq(folder: str) -> int:
    """The last record that has arrived; 0 if none has."""
    return read_state(folder).seq
