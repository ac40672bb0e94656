"""Maintains segments: indexes them, compresses sealed ones, deletes those past retention.

The seal of a deleted segment stays, with its checkpoints: the tree can still be verified from there
on, and a record states what was deleted. A legal hold suspends deletion.
"""

# ruff: noqa: PLC0415  # late imports: most runs compress and delete no segment

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO, Protocol

from cellwall.audit import files
from cellwall.audit.files import LogSettings, closing_fd, log_altered
from cellwall.audit.index import is_incomplete, parse_microseconds, update_index
from cellwall.audit.merkle import Frontier, deletion_lines, leaf_hash
from cellwall.audit.packed_frames import write_frames
from cellwall.audit.records import tail_fields
from cellwall.audit.search import Query, search
from cellwall.audit.segments import (
    INDEX,
    PACKED,
    RECORDS,
    SEAL,
    Seal,
    Segment,
    list_segments,
    open_records,
    read_lines,
    read_seal,
    segment_name,
)
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.ports import SessionKeysPort
from cellwall.core.types import Json, Principal

_BLOCK_BYTES = 1024 * 1024
_LOCK = "keeping.lock"
_DAY_S = 86_400.0
_STALE_DRAFT_S = 3600.0
Write = Callable[[Event], str]


class StatementSigner(Protocol):
    """The notary, as far as this module needs it."""

    session_keys: SessionKeysPort | None

    def sign_statement(self, lines: Callable[[str], Sequence[str]]) -> str: ...

    def is_own_statement(self, note: object, lines: Callable[[str], Sequence[str]]) -> bool: ...

    def has_signed(self, seal: Seal) -> bool: ...


def maintain_segments(
    directory: str,
    settings: LogSettings,
    write: Write,
    notary: StatementSigner,
    *,
    now_s: float | None = None,
) -> list[int]:
    """Compress sealed segments, delete expired ones; returns the first record numbers of deleted
    segments. `now_s`: the time of a probe that looks ahead.

    One process at a time: a process that finds the lock taken returns at once.
    """
    with closing_fd(files.open_folder(directory)) as folder:
        lock = files.open_private(_LOCK, os.O_RDWR | os.O_CREAT, folder)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return []
        else:
            segments = list_segments(directory)
            for segment in segments:
                if RECORDS in segment.parts or (segment.has_records and is_incomplete(segment)):
                    update_index(segment, folder)
                # Not the last segment: a crash may have come between its seal and the next segment,
                # and a writer takes a log that ends with a compressed segment for a truncated one.
                if {RECORDS, SEAL} <= segment.parts and segment is not segments[-1]:
                    _pack(segment, folder)
            _remove_stale_drafts(folder)
            now_s = time.time() if now_s is None else now_s
            return _delete_old(directory, settings, write, notary, folder, now_s)
        finally:
            # Closing is not enough: a child forked meanwhile holds the same open file description.
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)


def _remove_stale_drafts(folder: int) -> None:
    """Remove temporary files of killed processes; `files.replace_file` names them."""
    for name in os.listdir(folder):
        if name.startswith("."):
            with suppress(OSError):
                if os.stat(name, dir_fd=folder).st_mtime < time.time() - _STALE_DRAFT_S:
                    os.unlink(name, dir_fd=folder)


def _pack(segment: Segment, folder: int) -> None:
    import zstandard

    draft = f".{segment_name(segment.first, PACKED)}"
    descriptor = os.open(
        draft,
        os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC,
        0o600,
        dir_fd=folder,
    )
    with os.fdopen(descriptor, "r+b") as packed, open_records(segment) as plain:
        write_frames(plain, packed, level=6)
        packed.flush()
        os.fsync(packed.fileno())
        # Unlink the original only after the compressed copy was shown to decompress to the same
        # bytes.
        packed.seek(0)
        plain.seek(0)
        with zstandard.ZstdDecompressor().stream_reader(
            packed, closefd=False, read_across_frames=True
        ) as unpacked:
            is_same = _digest(unpacked) == _digest(plain)
    if not is_same:
        os.unlink(draft, dir_fd=folder)
        raise OSError("the compressed segment differs from the original")
    os.rename(draft, segment_name(segment.first, PACKED), src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)
    os.unlink(segment_name(segment.first, RECORDS), dir_fd=folder)


def _digest(file: IO[bytes]) -> bytes:
    digest = hashlib.sha256()
    while block := file.read(_BLOCK_BYTES):
        digest.update(block)
    return digest.digest()


def _delete_old(
    directory: str,
    settings: LogSettings,
    write: Write,
    notary: StatementSigner,
    folder: int,
    now_s: float,
) -> list[int]:
    if settings.keep_days is None or holds(directory):
        return []
    from cellwall.audit.text_indexing import remove_segment_chunks

    oldest_s = now_s - settings.keep_days * _DAY_S
    forwarded = _forwarded_up_to(settings)
    gone: list[int] = []
    before = Frontier()
    deleted = _deleted_up_to(directory, notary)
    for segment in list_segments(directory):
        if SEAL in segment.parts and not segment.has_records:
            before = read_seal(segment).frontier
            if before.size > deleted:  # not deleted by retention: do not sign for it
                raise log_altered("a segment of the audit log is gone")
            continue
        if not {SEAL, PACKED} <= segment.parts:
            break
        # Compressed after the last record was written, whatever the clocks showed. Any process of
        # the user can set mtime; the kernel sets ctime.
        status = os.stat(segment.path(PACKED), follow_symlinks=False)
        if max(status.st_mtime, status.st_ctime) > oldest_s:
            break
        seal = read_seal(segment)
        if forwarded is not None and seal.last > forwarded:
            break
        # Only the seal will remain: a segment that its seal does not prove must not be deleted.
        if not notary.has_signed(seal):
            raise log_altered("the seal of a segment does not match its checkpoint")
        if _last_record_s(segment, seal, before) > oldest_s:
            break
        # A forged index can hide hold records. Reading every record is slow, so it happens only
        # here.
        if not gone and holds(directory, is_sure=True):
            break
        before = seal.frontier
        body: dict[str, Json] = {
            "first": seal.first,
            "last": seal.last,
            "root": seal.frontier.root().hex(),
            "keep_days": settings.keep_days,
            # All earlier records are gone as well: this one record covers them.
            "note": notary.sign_statement(partial(deletion_lines, last=seal.last)),
        }
        # Recorded before the deletion: a record of a deletion that a crash prevented is harmless.
        write(Event(EventKind.RETENTION, "", "cellwall", "audit", body))
        # Before the records: a crash in between leaves no chunk without its segment.
        remove_segment_chunks(directory, segment.first, notary.session_keys)
        os.unlink(segment_name(segment.first, PACKED), dir_fd=folder)
        with suppress(FileNotFoundError):
            os.unlink(segment_name(segment.first, INDEX), dir_fd=folder)
        gone.append(segment.first)
    return gone


def _forwarded_up_to(settings: LogSettings) -> int | None:
    """None if nothing is forwarded."""
    if settings.forward_folder is None:
        return None
    from cellwall.audit.export.forwarding import forwarded_seq

    return forwarded_seq(settings.forward_folder)


def _last_record_s(segment: Segment, seal: Seal, before: Frontier) -> float:
    """When the last record was written; checks that the records are those that the seal covers."""
    frontier, line = before.copy(), b""
    with open_records(segment) as file:
        for line, _ in read_lines(file, may_grow=False):
            frontier.push(leaf_hash(line))
    is_same = (frontier.size, frontier.hashes) == (seal.last, seal.frontier.hashes)
    if not is_same or leaf_hash(line).hex() != seal.leaf:
        raise log_altered("the records of a segment differ from what was signed")
    return parse_microseconds(tail_fields(line).time) / 1e6


def _deleted_up_to(directory: str, notary: StatementSigner) -> int:
    """The last record deleted by retention so far, as the latest record that we signed states."""
    for found in search(directory, Query(kind=EventKind.RETENTION)):
        body = found.record["body"]
        last = body.get("last")
        if isinstance(last, int) and notary.is_own_statement(
            body.get("note"), partial(deletion_lines, last=last)
        ):
            return last
    return 0


def holds(directory: str, *, is_sure: bool = False) -> dict[str, str]:
    """The active legal holds, name to reason, as recorded in the log.

    While a hold is active nothing is deleted, so the records of it are always present. `is_sure`
    reads every record instead of relying on the index.
    """
    found: dict[str, str] = {}
    query = Query(kind=EventKind.HOLD, text=EventKind.HOLD.value)  # skips other records quickly
    for each in reversed(list(search(directory, query, is_indexed=not is_sure))):
        body = each.record["body"]
        if body.get("what") == "hold":
            found[str(body.get("name"))] = str(body.get("reason"))
        else:
            found.pop(str(body.get("name")), None)
    return found


@contextmanager
def frozen_holds(directory: str, *, is_sure: bool = False) -> Iterator[dict[str, str]]:
    """The active holds; none is placed or released within the block, and no segment is deleted."""
    with (
        closing_fd(files.open_folder(directory)) as folder,
        closing_fd(files.open_private(_LOCK, os.O_RDWR | os.O_CREAT, folder)) as lock,
        files.locked(lock),
    ):
        yield holds(directory, is_sure=is_sure)


def hold(directory: str, name: str, reason: str, write: Write, who: Principal) -> None:
    """Suspend deletion until the hold is released."""
    _change_holds(directory, write, who, "hold", name, reason)


def release(directory: str, name: str, write: Write, who: Principal) -> bool:
    """Returns False if there was no such hold."""
    return _change_holds(directory, write, who, "release", name, "")


def _change_holds(
    directory: str, write: Write, who: Principal, what: str, name: str, reason: str
) -> bool:
    with frozen_holds(directory) as found:  # not while another process deletes
        if what == "release" and name not in found:
            return False
        body: dict[str, Json] = {"what": what, "name": name, "reason": reason}
        write(Event(EventKind.HOLD, "", who.name, who.interface, body))
    return True
