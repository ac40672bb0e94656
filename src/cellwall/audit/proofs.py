"""Evidence for a third party: a proof that one record is in the log, and the verifier as a file.

A proof is a text in C2SP's tlog-proof format: the record, its index, the hashes on the path to the
root, and the signed checkpoint with that root. It needs no access to the rest of the log.

The verifier needs plain Python and `cryptography`. It is not a second verifier: it concatenates the
modules that `cellwall audit verify` runs, without the lines by which they import each other.
"""

from __future__ import annotations

import ast
import base64
import binascii
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from cellwall import __version__
from cellwall.audit.files import io_failure, log_altered
from cellwall.audit.index import read_index
from cellwall.audit.merkle import (
    HASH_BYTES,
    BadProof,
    Checkpoint,
    Frontier,
    inclusion_path,
    leaf_hash,
    open_checkpoint,
    root_by_inclusion,
    unproven_checkpoint,
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
            raise BadProof("it is not a proof of a record")
    try:
        line = _decode_base64(_strip_prefix("extra ", extra))
        record = parse_record(line)
        place = int(_strip_prefix("index ", index))
        checkpoint, signed_by = open_checkpoint(note.encode(), keys)
        path = [_decode_base64(each) for each in hashes]
        if any(len(each) != HASH_BYTES for each in path):
            raise ValueError
    except BadRecord as problem:
        raise BadProof(f"its content is not a record: {problem}") from None
    except BadNote as problem:
        raise BadProof(f"its checkpoint does not hold: {problem}") from None
    except ValueError:
        raise BadProof("it is not a proof of a record") from None
    if origin is not None and checkpoint.origin != origin:
        raise BadProof("it is a proof of another log")
    root = root_by_inclusion(leaf_hash(line), place, checkpoint.size, path)
    if root != checkpoint.root:
        raise BadProof("the record is not in the log that was signed")
    if record["seq"] != place + 1:
        raise BadProof("the record is not at the index that it states")
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
                self._leaves += segment_leaves(segment)

    def subtree(self, start: int, end: int) -> bytes:
        frontier = Frontier()
        if start >= self._start:
            for leaf in self._leaves[start - self._start : end - self._start]:
                frontier.push(leaf)
            if frontier.size != end - start:
                raise BadProof("some records are missing")
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


def segment_leaves(segment: Segment) -> list[bytes]:
    """The leaf hashes of a segment's records."""
    index = read_index(segment)
    leaves = list(index.leaves())
    with open_records(segment) as file:
        # The index may lag behind, or be forged: `check_proof` detects the latter.
        for number, (line, is_whole) in enumerate(read_lines(file)):
            if number >= len(leaves) and is_whole:
                leaves.append(leaf_hash(line))
    return leaves


_VERIFIER_MODULES = (
    ("cellwall.core", "notes.py"),
    ("cellwall.audit", "merkle.py"),
    ("cellwall.audit", "records.py"),
    ("cellwall.audit", "segments.py"),
    ("cellwall.audit", "key_trust.py"),
    ("cellwall.audit", "verify.py"),
)
_VERIFIER_HEAD = '''#!/usr/bin/env python3
"""Checks an audit log of Cellwall (version {version}). Needs Python 3.11 and `cryptography`;
packed segments also need `zstandard`, or `zstd -d` on them first.

    python3 cellwall-verify.py DIRECTORY --key NAME+ID+BASE64 [--checkpoint FILE]... [--since N]

The log's owner gives you the key; `cellwall audit key` prints it.
"""

from __future__ import annotations
'''
_VERIFIER_MAIN = """

def _main() -> int:
    import argparse

    parser = argparse.ArgumentParser(description="Check an audit log of Cellwall.")
    parser.add_argument("directory")
    parser.add_argument("--key", action="append", required=True, help="a public key; repeatable")
    parser.add_argument("--checkpoint", action="append", default=[], help="a signed note to find")
    parser.add_argument("--since", type=int, help="begin with this record's segment")
    options = parser.parse_args()
    notes = []
    for path in options.checkpoint:
        with open(path, "rb") as file:
            notes.append(file.read(MAX_NOTE_BYTES))
    keys = [PublicKey.parse(each) for each in options.key]
    report = verify(options.directory, keys, checkpoints=notes, since=options.since)
    if report.ok:
        print(f"ok: {report.records} records, {report.signed} of them signed")
        return 0
    print(f"NOT OK after {report.records} sound records: {report.reason}")
    return 1


if __name__ == "__main__":
    raise SystemExit(_main())
"""


def verifier_source() -> str:
    """The text of the file."""
    sources = [
        resources.files(package).joinpath(name).read_text() for package, name in _VERIFIER_MODULES
    ]
    seen: set[str] = set()
    for source in sources:
        names = _top_level_names(source)
        if names & seen:
            raise AssertionError(f"two modules of the verifier define {sorted(names & seen)}")
        seen |= names
    head = _VERIFIER_HEAD.format(version=__version__)
    return "\n\n\n".join([head, *map(_without_own_imports, sources)]) + "\n" + _VERIFIER_MAIN


def _top_level_names(source: str) -> set[str]:
    """The top-level names of a module: in one file they must be unique."""
    found: set[str] = set()
    for node in ast.parse(source).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Assign(targets=targets):
                found |= {
                    each.id
                    for target in targets
                    for each in ast.walk(target)
                    if isinstance(each, ast.Name)
                }
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case _:
                pass
    return found


def _without_own_imports(source: str) -> str:
    """The module without its imports of ours. The imported names stand above it in the bundle."""
    lines = source.split("\n")
    for node in ast.parse(source).body:
        is_ours = isinstance(node, ast.ImportFrom) and (
            node.module == "__future__" or (node.module or "").startswith("cellwall.")
        )
        if is_ours:
            for number in range(node.lineno - 1, (node.end_lineno or node.lineno)):
                lines[number] = ""
    return "\n".join(lines).strip()
