"""Reading the record: check it whole, or walk through it. Never writes, trusts no writer."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

from holdfast.audit import chain
from holdfast.core.errors import AuditFailed

LOG_NAME = "audit.jsonl"
LOCK_TIMEOUT_S = 10.0

_FIRST_PAUSE_S = 0.000_05
_LONGEST_PAUSE_S = 0.002
_BUFFER_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a check found. Records count from 1; `records` is how many are sound before the end
    or before `first_bad`."""

    ok: bool
    records: int
    first_bad: int | None
    reason: str


def verify(directory: str) -> VerifyReport:
    """Check every record's own hash, its number and its link to the record before it.

    Finds altered, removed, reordered, inserted and doubled records and names the first line that
    is not what it should be. Two things leave a chain that is sound in itself: records cut off the
    end, and a history written anew from some record on by somebody who computes every hash again.
    Only a signed checkpoint kept elsewhere shows those; this version has none.
    """
    try:
        with _snapshot(directory) as (file, size_bytes):
            return _verify_lines(file, size_bytes)
    except FileNotFoundError:
        return VerifyReport(False, 0, None, "there is no audit log")
    except OSError as error:
        raise failed(error) from None


def _verify_lines(file: BinaryIO, size_bytes: int) -> VerifyReport:
    count, prev = 0, chain.GENESIS
    for line, is_whole in _lines(file, size_bytes):
        number = count + 1
        if not is_whole:
            return VerifyReport(False, count, number, f"record {number}: it is not complete")
        try:
            chain.follow(line, seq=number, prev=prev)
        except chain.BadRecord as problem:
            return VerifyReport(False, count, number, f"record {number}: {problem}")
        count, prev = number, chain.line_digest(line)
    return VerifyReport(True, count, None, "")


def read(directory: str, *, action_id: str | None = None) -> Iterator[dict[str, Any]]:
    """The records in order, or only those of one action; an altered one among them raises.

    Each record's own hash is checked, the links are not: that is `verify`'s work. What a crash
    left unfinished at the end was never acknowledged and is left out, and no log means no records.
    """
    # Canonical lines spell an id in one way only, so most lines need not be parsed.
    wanted = None if action_id is None else b'"action_id":' + json.dumps(action_id).encode("ascii")
    try:
        with _snapshot(directory) as (file, size_bytes):
            for number, (line, is_whole) in enumerate(_lines(file, size_bytes), start=1):
                if not is_whole and len(line) <= chain.MAX_RECORD_BYTES:
                    return
                if wanted is not None and wanted not in line:
                    continue
                try:
                    record = chain.parse(line)
                except chain.BadRecord as problem:
                    raise altered(
                        f"record {number} of the audit log was altered: {problem}"
                    ) from None
                if action_id is None or record["action_id"] == action_id:
                    yield record
    except FileNotFoundError:
        return
    except OSError as error:
        raise failed(error) from None


@contextmanager
def _snapshot(directory: str) -> Iterator[tuple[BinaryIO, int]]:
    """The log and its size at a moment when no writer was in the middle of a record.

    The lock is kept for that moment only; a long check must not hold up the writers.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(os.path.join(directory, LOG_NAME), flags)
    with os.fdopen(descriptor, "rb", buffering=_BUFFER_BYTES) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise PermissionError(errno.EPERM, "not a regular file")
        wait_for_lock(descriptor, fcntl.LOCK_SH)
        try:
            size_bytes = os.fstat(descriptor).st_size
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        yield file, size_bytes


def _lines(file: BinaryIO, size_bytes: int) -> Iterator[tuple[bytes, bool]]:
    """Each line without its newline, and whether it had one; never more than a record at a time."""
    left_bytes = size_bytes
    while left_bytes > 0:
        line = file.readline(min(left_bytes, chain.MAX_RECORD_BYTES + 1))
        if not line:
            return
        left_bytes -= len(line)
        if not line.endswith(b"\n"):
            yield line, False
            return
        yield line[:-1], True


def wait_for_lock(descriptor: int, kind: int) -> None:
    """Lock a file, for `LOCK_TIMEOUT_S` at most: a stopped process must not stop all others."""
    deadline_s = time.monotonic() + LOCK_TIMEOUT_S
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                raise TimeoutError(errno.ETIMEDOUT, "the log stayed locked") from None
        else:
            return
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def failed(error: OSError) -> AuditFailed:
    """What may be told of an error of the system; the path stays out (ERR-1)."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        mend = "Free some disk space or move old audit logs away."
    elif error.errno == errno.ETIMEDOUT:
        mend = "Look for a stopped Holdfast process that keeps the log locked."
    else:
        mend = (
            "Check that the audit folder is yours with mode 0700, its log a plain file with mode "
            "0600, and the disk writable."
        )
    return AuditFailed(
        "the audit log cannot be used",
        mend=mend,
        detail=errno.errorcode.get(error.errno or 0, "unknown"),
    )


def altered(message: str) -> AuditFailed:
    """Somebody else wrote into the log; nothing is built upon it and nothing of it is removed."""
    return AuditFailed(
        message,
        mend="Check the log with `holdfast audit verify`, keep it, and move it away to begin anew.",
        code="HF-AUDIT-ALTERED",
    )
