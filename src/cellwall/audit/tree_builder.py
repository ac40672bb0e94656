"""Reads the records as the log grows and builds the Merkle tree over them."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from cellwall.audit import files
from cellwall.audit.files import closing_fd, log_altered
from cellwall.audit.merkle import Checkpoint, Frontier, leaf_hash
from cellwall.audit.records import MAX_RECORD_BYTES, BadRecord, parse_link
from cellwall.audit.segments import (
    RECORDS,
    SEAL,
    Seal,
    end_of_bytes,
    end_of_records,
    list_segments,
    read_lines,
    read_seal,
    segment_name,
)

_TIP = "tip.json"
_SEALED = b"seal"


class WrittenBatch(NamedTuple):
    """Records that this process has just made durable: they need not be read back."""

    segment: int
    before: int
    """The number of the record before the first of them."""
    start: int
    end: int
    """Byte offsets in the segment."""
    leaves: Sequence[bytes]


class TreeBuilder:
    """How far the tree was built. The caller holds the notary's lock."""

    def __init__(self, directory: str, frontier: Frontier, first: int, at: int) -> None:
        self._directory = directory
        self.frontier = frontier
        self.first = first
        self._offset = at

    @classmethod
    def resume(cls, directory: str, folder: int, signed: Checkpoint | None) -> TreeBuilder:
        """Start at the last checkpoint if the saved state matches its root; otherwise at the
        last seal, or at the beginning."""
        damaged = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
        with suppress(*damaged, BadRecord):
            descriptor = files.open_private(_TIP, os.O_RDONLY, folder)
            with os.fdopen(descriptor, "rb") as file:
                state = json.loads(file.read(65_536))
            frontier = Frontier(state["size"], [bytes.fromhex(each) for each in state["subtrees"]])
            first, at = state["segment"], state["offset"]
            is_signed = signed and (frontier.size, frontier.root()) == (signed.size, signed.root)
            # Resuming at a wrong offset would sign a tree that is not that of the records.
            if is_signed and frontier.size == _record_ending_at(first, at, folder):
                return cls(directory, frontier, first, at)
        for segment in reversed(list_segments(directory)):
            if SEAL in segment.parts:
                seal = read_seal(segment)
                return cls(directory, seal.frontier, seal.last + 1, 0)
        return cls(directory, Frontier(), 1, 0)

    def note(self, folder: int) -> None:
        """Save where to resume; losing this file costs only time."""
        state = {
            "segment": self.first,
            "offset": self._offset,
            "size": self.frontier.size,
            "subtrees": [each.hex() for each in self.frontier.hashes],
        }
        with suppress(OSError):
            files.replace_file(_TIP, json.dumps(state).encode(), folder, durable=False)

    def check(self, signed: Checkpoint | None) -> None:
        """The tree must not be beyond the last checkpoint, and at its size must have the same
        root."""
        if self.frontier.size > (0 if signed is None else signed.size):
            raise log_altered("checkpoints are gone from the audit log")
        if (
            signed is not None
            and self.frontier.size == signed.size
            and self.frontier.root() != signed.root
        ):
            raise log_altered("the audit log is not the one that was signed")

    def add_written(self, batches: Iterable[WrittenBatch]) -> None:
        """Advance over records known without reading; the rest is read.

        The signature then covers what was written, whatever happened to the file since.
        """
        frontier = self.frontier
        for each in batches:
            place = (each.segment, each.start, each.before)
            if place != (self.first, self._offset, frontier.size):
                continue  # already signed, or another process has written in between
            for leaf in each.leaves:
                frontier.push(leaf)
            self._offset = each.end

    def advance(
        self, folder: int, at_seal: Callable[[Seal], None], signed: Checkpoint | None
    ) -> None:
        """Read to the end of the log; `at_seal` is called at the end of each segment.

        Checks on the way that the tree has the root that was signed before.
        """
        size = 0 if signed is None else signed.size
        while (leaf := self._read_segment(folder, signed)) is not None:
            seal = Seal(self.first, self.frontier.size, leaf.hex(), self.frontier.copy())
            at_seal(seal)
            self.first, self._offset = seal.last + 1, 0
        if self.frontier.size < size:
            raise log_altered("records that were signed are gone from the audit log")

    def _read_segment(self, folder: int, signed: Checkpoint | None) -> bytes | None:
        """Read this segment to its end; returns the hash of its last record if that record seals
        it."""
        try:
            name = segment_name(self.first, RECORDS)
            file = os.fdopen(files.open_private(name, os.O_RDONLY, folder), "rb")
        except FileNotFoundError:
            if any(each.first >= self.first for each in list_segments(self._directory)):
                raise log_altered("a segment of the audit log is gone") from None
            return None  # the previous segment was just sealed, and this one is about to be created
        with file:
            size_bytes = _durable_size(file.fileno(), folder)
            if size_bytes < self._offset:
                raise log_altered("records that were signed are gone from the audit log")
            file.seek(self._offset)
            leaf, kind, watch = b"", b"", signed.size if signed else 0
            for line, is_whole in read_lines(file, size_bytes - self._offset):
                if not is_whole:
                    break
                kind = self._check_link(line, leaf)
                leaf = leaf_hash(line)
                self.frontier.push(leaf)
                self._offset += len(line) + 1
                if self.frontier.size == watch and signed and self.frontier.root() != signed.root:
                    raise log_altered("the audit log is not the one that was signed")
        return leaf if kind == _SEALED else None

    def _check_link(self, line: bytes, leaf: bytes) -> bytes:
        """The kind of a record, if it follows its predecessor: nothing else is signed."""
        try:
            kind, prev, seq = parse_link(line)
        except BadRecord:
            raise log_altered("the audit log contains a line that is not a record") from None
        if seq != self.frontier.size + 1 or (leaf and prev != leaf.hex().encode()):
            raise log_altered(f"record {self.frontier.size + 1} of the audit log does not follow")
        return kind


def _record_ending_at(first: int, offset: int, folder: int) -> int:
    """The number of the record that ends at an offset of a segment."""
    if offset == 0:
        return first - 1
    start = max(0, offset - MAX_RECORD_BYTES - 1)
    with closing_fd(files.open_private(segment_name(first, RECORDS), os.O_RDONLY, folder)) as file:
        before = os.pread(file, offset - start, start)
    if len(before) != offset - start or not before.endswith(b"\n"):
        raise ValueError("no record ends there")
    return parse_link(before[:-1].rpartition(b"\n")[2]).seq


def _durable_size(descriptor: int, folder: int) -> int:
    """The size after a flush, under the lock: excludes bytes that a writer may still truncate,
    and nothing is signed that a power cut could lose."""
    with (
        closing_fd(files.open_private("lock", os.O_RDWR, folder)) as lock,
        files.locked(lock, fcntl.LOCK_SH),
    ):
        size_bytes, end_bytes = end_of_records(descriptor), end_of_bytes(descriptor)
        rest = os.pread(descriptor, end_bytes - size_bytes, size_bytes)
    # A batch is written front to back, so a killed writer leaves its beginning and no gap. Records
    # behind a gap would never be signed and would be taken for what a power cut left; a process
    # that opens a log after a power cut repairs it before signing.
    if b"\0" in rest:
        raise log_altered("there is a gap in the audit log")
    os.fdatasync(descriptor)
    return size_bytes
