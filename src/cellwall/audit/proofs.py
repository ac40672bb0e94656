"""Proofs that one record is in the log, for a verifier without access to the rest of the log.

A proof is a text in C2SP's tlog-proof format: the record, its index, the hashes on the path to the
root, and the signed checkpoint with that root.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cellwall.audit.checkpoints import Checkpoint, open_checkpoint, unproven_checkpoint
from cellwall.audit.files import io_failure, log_altered
from cellwall.audit.index import read_index
from cellwall.audit.merkle import (
    HASH_BYTES,
    BadProof,
    Frontier,
    inclusion_path,
    leaf_hash,
    root_by_inclusion,
)
from cellwall.audit.records import BadRecord, parse_record
from cellwall.audit.search import Query, search
from cellwall.audit.segments import (
    CHECKPOINTS,
    SEAL,
    BadSegment,
    Segment,
    list_segments,
    open_records,
    read_lines,
    read_notes,
    read_seal,
)
from cellwall.core.errors import BadInput
from cellwall.core.notes import BadNote, PublicKey

_HEAD = "c2sp.org/tlog-proof@v1"
_MAX_HASHES = 63


@dataclass(frozen=True, slots=True)
class Proof:
    """The content of a valid proof and its signers."""

    record: dict[str, Any]
    checkpoint: Checkpoint
    signed_by: tuple[PublicKey, ...]


def prove(directory: str, event_id: str, keys: Sequence[PublicKey]) -> str:
    """A proof for the record with this id, verified before it is returned."""
    try:
        return _prove(directory, event_id, keys)
    except (BadSegment, BadNote) as problem:
        raise log_altered(f"the audit log was altered: {problem}") from None
    except OSError as error:
        raise io_failure(error) from None


def _prove(directory: str, event_id: str, keys: Sequence[PublicKey]) -> str:
    found = next(search(directory, Query(id=event_id)), None)
    if found is None:
        raise BadInput(
            f"the audit log has no record with the id {event_id}",
            hint="It may have been deleted by the retention rule; see `cellwall audit tail`.",
            code="CW-NO-RECORD",
        )
    place = int(found.record["seq"]) - 1
    note = _checkpoint_over(directory, place)
    size = unproven_checkpoint(note).size
    tree = _LogTree(directory, size)
    path = inclusion_path(place, size, tree.subtree)
    lines = [_HEAD, f"extra {base64.b64encode(found.line).decode()}", f"index {place}"]
    lines += [base64.b64encode(each).decode() for each in path]
    text = "\n".join(lines) + "\n\n" + note.decode()
    check_proof(text, keys)
    return text


def check_proof(text: str, keys: Sequence[PublicKey], *, origin: str | None = None) -> Proof:
    """The record, if the proof is valid and signed by one of these keys; otherwise `BadProof`.

    One key may sign several logs: pass `origin` to require a certain log.
    """
    head, _, note = text.partition("\n\n")
    match head.split("\n"):
        case [first, extra, index, *hashes] if first == _HEAD and len(hashes) <= _MAX_HASHES:
            pass
        case _:
            raise BadProof("it is no proof of a record")
    try:
        line = _decode_base64(_strip_prefix("extra ", extra))
        record = parse_record(line)
        place = int(_strip_prefix("index ", index))
        checkpoint, signed_by = open_checkpoint(note.encode(), keys)
        path = [_decode_base64(each) for each in hashes]
        if any(len(each) != HASH_BYTES for each in path):
            raise ValueError
    except BadRecord as problem:
        raise BadProof(f"what it proves is no record: {problem}") from None
    except BadNote as problem:
        raise BadProof(f"its checkpoint does not hold: {problem}") from None
    except ValueError:
        raise BadProof("it is no proof of a record") from None
    if origin is not None and checkpoint.origin != origin:
        raise BadProof("it is of another log")
    root = root_by_inclusion(leaf_hash(line), place, checkpoint.size, path)
    if root != checkpoint.root:
        raise BadProof("the record is not in the log that was signed")
    if record["seq"] != place + 1:
        raise BadProof("the record stands in another place than it says")
    return Proof(record, checkpoint, signed_by)


def _strip_prefix(word: str, line: str) -> str:
    if not line.startswith(word) or not line.isascii():
        raise ValueError
    return line[len(word) :]


def _decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError from None


def _checkpoint_over(directory: str, place: int) -> bytes:
    """The smallest checkpoint that covers a record."""
    for segment in list_segments(directory):
        if CHECKPOINTS in segment.parts:
            for note in read_notes(segment.path(CHECKPOINTS)):
                if unproven_checkpoint(note).size > place:
                    return note
    raise BadInput(
        "the record is not signed yet",
        hint="Run `cellwall audit seal`, then try again.",
        code="CW-NOT-SIGNED",
    )


class _LogTree:
    """The leaves that exist and, for deleted segments, the subtrees of their seal."""

    def __init__(self, directory: str, size: int) -> None:
        self._start, self._known = 0, Frontier()
        self._leaves: list[bytes] = []
        for segment in list_segments(directory):
            if not segment.has_records and SEAL in segment.parts:
                seal = read_seal(segment)
                self._start, self._known, self._leaves = seal.last, seal.frontier, []
            elif segment.first <= size:
                self._leaves += _leaves(segment)

    def subtree(self, start: int, end: int) -> bytes:
        frontier = Frontier()
        if start >= self._start:
            for leaf in self._leaves[start - self._start : end - self._start]:
                frontier.push(leaf)
            if frontier.size != end - start:
                raise BadProof("some records are not there")
            return frontier.root()
        # On the path to an existing record, everything before it consists of complete subtrees of
        # the deleted part and of leaves that exist.
        if end < self._start and not self._is_known(start, end):
            raise BadProof("the record was deleted")
        hashes, sizes = self._known_from(start)
        if end <= self._start:
            return hashes[0]
        rest = Frontier(sum(sizes), hashes)
        for leaf in self._leaves[: end - self._start]:
            rest.push(leaf)
        return rest.root()

    def _parts(self) -> Iterator[tuple[int, int, bytes]]:
        at, left = 0, self._known.size
        for each in self._known.hashes:
            size = 1 << (left.bit_length() - 1)
            yield at, size, each
            at, left = at + size, left - size

    def _is_known(self, start: int, end: int) -> bool:
        return any((at, at + size) == (start, end) for at, size, _ in self._parts())

    def _known_from(self, start: int) -> tuple[list[bytes], list[int]]:
        parts = [(size, each) for at, size, each in self._parts() if at >= start]
        if not parts:
            raise BadProof("the record was deleted")
        return [each for _, each in parts], [size for size, _ in parts]


def _leaves(segment: Segment) -> list[bytes]:
    index = read_index(segment)
    leaves = list(index.leaves())
    with open_records(segment) as file:
        # The index may lag behind, or be forged: `check_proof` detects the latter.
        for number, (line, is_whole) in enumerate(read_lines(file)):
            if number >= len(leaves) and is_whole:
                leaves.append(leaf_hash(line))
    return leaves
