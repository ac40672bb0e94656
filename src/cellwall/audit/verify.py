"""Verifies a log: offline, as a stream, with public keys only. Never writes.

  1. Every record has its number and is linked to its predecessor.
  2. Every checkpoint is signed by a key that is trusted at that place, and the tree has its root
     there. Two checkpoints of one size with different roots prove a rewritten history.
  3. A new key is trusted if a checkpoint over its announcement bears both its signature and the
     old key's. The old key is retired at the first checkpoint that the new key signs alone.
  4. A missing segment was deleted by retention: its seal has the root of a checkpoint, and a
     later record states the deletion.
  5. No checkpoint covers more records than there are.
Records after the last checkpoint are linked but not signed yet; the report counts them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cellwall.audit.key_trust import KeyTrust, UntrustedCheckpoint
from cellwall.audit.merkle import (
    Checkpoint,
    Frontier,
    check_statement,
    deletion_lines,
    key_lines,
    leaf_hash,
    unproven_checkpoint,
)
from cellwall.audit.records import GENESIS, BadRecord, parse_link, parse_record
from cellwall.audit.segments import (
    CHECKPOINTS,
    PACKED,
    RECORDS,
    SEAL,
    BadSegment,
    Segment,
    end_of_records,
    list_segments,
    open_plain,
    open_records,
    parts_agree,
    read_lines,
    read_notes,
    read_seal,
)
from cellwall.core.notes import BadNote, PublicKey

_MAX_TRIES = 5
_SPECIAL = frozenset((b"begin", b"key", b"retention"))
_PROGRESS_RECORDS = 4096

OnVerified = Callable[[int], None]
"""Called from time to time with the number of records that are verified."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of a verification. Records count from 1; `records` is how many are valid before
    the end or before `first_bad`."""

    ok: bool
    records: int
    first_bad: int | None
    reason: str
    signed: int = 0
    """How many of them a valid checkpoint covers."""
    checkpoints: int = 0
    deleted: int = 0
    """How many of them were deleted by retention; their tree is verified, the records cannot be."""
    origin: str | None = None
    """Which log this is."""
    keys: tuple[str, ...] = ()
    """The keys that signed, in the order of their first signature."""


class _Bad(Exception):
    """A problem of the log, and the number of its first bad record."""

    def __init__(self, record: int | None, problem: str) -> None:
        self.record = record
        self.reason = problem if record is None else f"record {record}: {problem}"
        super().__init__(self.reason)


def verify(
    directory: str,
    keys: Sequence[PublicKey],
    *,
    checkpoints: Iterable[bytes] = (),
    since: int | None = None,
    on_verified: OnVerified | None = None,
) -> VerifyReport:
    """Verify a log. `checkpoints` are signed notes kept elsewhere, which the log must contain.

    `since` skips the segments that end before this record; a checkpoint stands for them.
    """
    notes, tries = list(checkpoints), _MAX_TRIES
    while True:
        before, tries = _growth_state(directory), tries - 1
        report = _verify_once(directory, keys, notes, since, on_verified)
        # In the growing segment, half a record is one being written, and a preallocated range that
        # was read may have been truncated a moment later: try again.
        is_there = report.first_bad is not None and report.first_bad >= before[0]
        if not is_there or tries == 0 or _growth_state(directory) == before:
            return report


def _verify_once(
    directory: str,
    keys: Sequence[PublicKey],
    checkpoints: Sequence[bytes],
    since: int | None,
    on_verified: OnVerified | None,
) -> VerifyReport:
    check = _Verifier(keys, on_verified)
    bad: _Bad | None = None
    try:
        check.check_log(_segments(directory), checkpoints, since)
    except BadSegment as problem:
        bad = _Bad(check.frontier.size + 1, str(problem))
    except OSError as error:
        number, why = check.frontier.size + 1, errno.errorcode.get(error.errno or 0, "unknown")
        bad = _Bad(number, f"a file of the log cannot be read ({why})")
    except _Bad as problem:
        bad = problem
    sound = check.frontier.size
    return VerifyReport(
        ok=bad is None,
        records=sound if bad is None or bad.record is None else min(sound, bad.record - 1),
        first_bad=None if bad is None else bad.record,
        reason="" if bad is None else bad.reason,
        signed=check.signed,
        checkpoints=check.met,
        deleted=check.deleted,
        origin=check.origin,
        keys=tuple(check.keys.signers),
    )


class _Verifier:
    """One pass through a log."""

    def __init__(self, keys: Sequence[PublicKey], on_verified: OnVerified | None = None) -> None:
        self.keys = KeyTrust(keys)
        self._on_verified = on_verified
        self._notes: list[tuple[Checkpoint, bytes]] = []
        self.origin: str | None = None
        self._prev: bytes | None = GENESIS.encode()
        self._missing: list[tuple[int, int]] = []
        self._suspicion: _Bad | None = None
        self._kept_elsewhere: frozenset[bytes] = frozenset()
        self._is_partial = False
        self._last_note = 0
        self.frontier = Frontier()
        self.signed = self.met = self.deleted = 0

    def check_log(
        self, segments: Sequence[Segment], notes: Iterable[bytes], since: int | None
    ) -> None:
        if not segments:
            raise _Bad(None, "there is no audit log")
        if not self.keys.trusted:
            raise _Bad(None, "no public key is known; give one with --key")
        self._kept_elsewhere = frozenset(notes)
        self._notes = _all_notes(segments, self._kept_elsewhere)
        self._last_note = self._notes[0][0].size if self._notes else 0
        self._check_checkpoints()  # checkpoints of size 0
        start = 0
        if since is not None:
            start = max((at for at, each in enumerate(segments) if each.first <= since), default=0)
        # A segment that was just sealed is not signed yet: it is verified as well.
        while (
            start > 0 and segments[start - 1].has_records and SEAL not in segments[start - 1].parts
        ):
            start -= 1
        self._is_partial = start > 0
        if start > 0:
            self._skip_by_seal(segments[start - 1])
        for segment in segments[start:]:
            self._check_segment(segment, is_last=segment is segments[-1])
        self._check_end()

    def _check_segment(self, segment: Segment, *, is_last: bool) -> None:
        number = self.frontier.size + 1
        if segment.first != number:
            raise _Bad(number, "it is missing")
        if segment.has_records:
            if {RECORDS, PACKED} <= segment.parts and not parts_agree(segment):
                raise _Bad(number, "its segment exists twice, with different content")
            kind = self._check_records(segment, is_last=is_last)
            self._check_seal(segment)
            number = self.frontier.size + 1
            if not is_last and kind != b"seal":
                raise _Bad(number, "it is missing")
        elif SEAL in segment.parts:
            self._skip_by_seal(segment)  # (4), first half
            self._missing.append((segment.first, self.frontier.size))
        else:
            raise _Bad(number, "its segment is missing")

    def _check_seal(self, segment: Segment) -> None:
        """After retention only the seal will be left, so it must be right."""
        if SEAL not in segment.parts:
            return
        seal = read_seal(segment)
        is_same = seal.frontier.hashes == self.frontier.hashes and seal.last == self.frontier.size
        if not is_same or seal.leaf.encode() != self._prev:
            number = segment.first
            raise _Bad(number, "the seal of its segment is not of these records")

    def _skip_by_seal(self, segment: Segment) -> None:
        """Advance to the end of a segment by its seal, if a checkpoint confirms the seal."""
        if SEAL not in segment.parts:
            raise _Bad(segment.first, "its segment has no seal")
        seal = read_seal(segment)
        while self._notes and self._notes[-1][0].size < seal.last:
            if self._notes.pop()[1] in self._kept_elsewhere and self._is_partial:
                raise _Bad(None, "a checkpoint that was given is of the part that was skipped")
        if not self._notes or self._notes[-1][0].size != seal.last:
            raise _Bad(segment.first, "no signed checkpoint confirms its seal")
        self.frontier, self._prev = seal.frontier, seal.leaf.encode()
        self._check_checkpoints()

    def _check_records(self, segment: Segment, *, is_last: bool) -> bytes:
        """(1), and (2) as the tree grows. Returns the kind of the last record."""
        frontier, before, kind, last = self.frontier, self._prev, b"", b""
        with open_records(segment) as file:
            for line, is_whole in read_lines(file, may_grow=is_last):
                number = frontier.size + 1
                if not is_whole:
                    raise _Bad(number, "it is not complete")
                try:
                    kind, prev, seq = parse_link(line)
                except BadRecord as problem:
                    raise _Bad(number, str(problem)) from None
                if self._suspicion is not None:
                    raise self._blame_record(number, prev)
                if seq != number:
                    raise self._wrong_number(number, seq, is_rival=prev == before and line != last)
                if prev != self._prev:
                    # Either may have been changed; signed records were not.
                    bad = max(number - 1, self.signed + 1)
                    raise _Bad(bad, f"records {number - 1} and {number} are not linked")
                leaf = leaf_hash(line)
                before, self._prev, last = self._prev, leaf.hex().encode(), line
                frontier.push(leaf)
                if kind in _SPECIAL:
                    self._apply_log_record(line, kind, number)
                elif number > self._last_note:
                    self._read_whole(line, number)
                if self._notes and self._notes[-1][0].size <= number:
                    self._check_checkpoints()
                if number % _PROGRESS_RECORDS == 0 and self._on_verified is not None:
                    self._on_verified(number)
        return kind

    def _read_whole(self, line: bytes, number: int) -> None:
        """An unsigned record may be malformed JSON; a signed one has not changed since."""
        try:
            parse_record(line)
        except BadRecord as problem:
            raise _Bad(number, str(problem)) from None

    def _blame_record(self, number: int, prev: bytes) -> _Bad:
        """A signed root does not match; the next record's link may show which record was
        changed."""
        assert self._suspicion is not None  # noqa: S101  # set where a root did not match
        if prev == self._prev:
            return self._suspicion
        return _Bad(number - 1, "it is not the one that was signed")

    def _wrong_number(self, number: int, seq: int, *, is_rival: bool) -> _Bad:
        if seq == number - 1 and is_rival and seq > self.signed:
            return _Bad(seq, "two records are in its place")
        return _Bad(number, f"it says it is record {seq}")

    def _apply_log_record(self, line: bytes, kind: bytes, number: int) -> None:
        """Records about the log itself."""
        try:
            body = parse_record(line)["body"]
            if kind == b"begin":
                self.origin = str(body["origin"])
            elif kind == b"key":
                key = PublicKey.parse(str(body["key"]))
                if body["reason"] == "rotation":  # (3)
                    self.keys.rotate(key, number, body["note"], key_lines(self.origin or "", key))
                else:
                    self.keys.announce(key, number)
            else:  # (4), second half
                last = int(body["last"])
                lines = deletion_lines(self.origin or "", last)
                check_statement(body["note"], lines, self.keys.trusted)
                self._mark_deleted(last)
        except (BadRecord, BadNote, KeyError, ValueError, TypeError) as problem:
            raise _Bad(number, f"it cannot be read: {problem}") from None

    def _mark_deleted(self, last: int) -> None:
        """Retention deleted all records up to this one."""
        for begin, end in list(self._missing):
            if end <= last:
                self._missing.remove((begin, end))
                self.deleted += end - begin + 1

    def _check_checkpoints(self) -> None:
        """(2): all checkpoints of the tree's current size."""
        size, root = self.frontier.size, self.frontier.root()
        while self._notes and self._notes[-1][0].size <= size:
            claimed, note = self._notes.pop()
            if claimed.size < size:
                continue  # in the skipped part
            checkpoint = self._open_trusted(note, self.signed + 1)
            if checkpoint.root != root and self._suspicion is None:
                self._suspicion = _Bad(
                    self.signed + 1,
                    f"from here to record {size} the log is not the one that was signed",
                )
            self.met += 1
        if self._suspicion is None:
            self.signed = size

    def _open_trusted(self, note: bytes, number: int) -> Checkpoint:
        """(2), (3): the checkpoint in a note, if trusted keys signed it."""
        try:
            checkpoint = self.keys.open(note, self.origin)
        except BadNote as problem:
            raise _Bad(number, f"the checkpoint after it: {problem}") from None
        except UntrustedCheckpoint as problem:
            raise _Bad(problem.record or number, str(problem)) from None
        self.origin = checkpoint.origin
        return checkpoint

    def _check_end(self) -> None:
        """(4), (5)"""
        size = self.frontier.size
        if self._suspicion is not None:
            raise self._suspicion
        if self._missing:
            first = self._missing[0][0]
            raise _Bad(first, "it was deleted, and no record states the deletion")
        for claimed, note in reversed(self._notes):
            self._open_trusted(note, size + 1)
            problem = f"it is missing, but a checkpoint over {claimed.size} is signed"
            raise _Bad(size + 1, problem)
        if not self.met:
            raise _Bad(1, "nothing of this log is signed")


def _growth_state(directory: str) -> tuple[int, int, int, int]:
    """The growing segment, its end of records, its size and its ctime: any write changes one of
    them. On a full disk writers truncate what they could not write, to the size of before."""
    try:
        segment = _segments(directory)[-1]
        with open_plain(segment.path(RECORDS)) as file:
            end = end_of_records(file.fileno())
            status = os.fstat(file.fileno())
            return segment.first, end, status.st_size, status.st_ctime_ns
    except (OSError, IndexError, BadSegment):
        return -1, -1, -1, -1


def _segments(directory: str) -> list[Segment]:
    try:
        return list_segments(directory)
    except FileNotFoundError:
        return []


def _all_notes(
    segments: Sequence[Segment], others: Iterable[bytes]
) -> list[tuple[Checkpoint, bytes]]:
    """Every checkpoint, last first to pop from the end: they are few and small."""
    notes = list(others)
    for segment in segments:
        if CHECKPOINTS in segment.parts:
            notes += read_notes(segment.path(CHECKPOINTS))
    try:
        found = [(unproven_checkpoint(note), note) for note in notes]
    except BadNote as problem:
        raise _Bad(None, f"a checkpoint cannot be read: {problem}") from None
    found.sort(key=lambda each: each[0].size, reverse=True)
    return found
