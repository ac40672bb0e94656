"""The Merkle tree over the log (RFC 6962, RFC 9162), and checkpoints: signed notes on its root.

Pure. A leaf is hashed with the prefix 0, an inner node with the prefix 1, so that neither can be
passed off as the other. A tree of n leaves splits at the largest power of two below n.

A checkpoint has C2SP's tlog-checkpoint format: three lines with the origin (which log), the size
(number of records) and base64 of the root over them.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from cellwall.core.notes import BadNote, PublicKey, Signer, open_note, signed_note

HASH_BYTES = 32
EMPTY_ROOT = sha256(b"").digest()
_LEAF = sha256(b"\x00")


class BadProof(Exception):
    """The proof is invalid; the text says why."""


def leaf_hash(data: bytes) -> bytes:
    """The leaf hash of one record, without its newline."""
    leaf = _LEAF.copy()  # copying is a third faster than a new object
    leaf.update(data)
    return leaf.digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of an inner node."""
    return sha256(b"\x01" + left + right).digest()


class Frontier:
    """The part of a growing tree that is needed to append: its largest complete subtrees, left to
    right.

    Their sizes are the powers of two that sum to the tree's size.
    """

    def __init__(self, size: int = 0, hashes: Sequence[bytes] = ()) -> None:
        if size < 0 or len(hashes) != size.bit_count():
            raise ValueError("these are not the subtrees of a tree of that size")
        if any(len(each) != HASH_BYTES for each in hashes):
            raise ValueError("a hash has not the length of one")
        self.size = size
        self._hashes = list(hashes)

    @property
    def hashes(self) -> tuple[bytes, ...]:
        return tuple(self._hashes)

    def push(self, leaf: bytes) -> None:
        """Append one leaf hash."""
        size, hashes = self.size, self._hashes
        while size & 1:
            leaf = sha256(b"\x01" + hashes.pop() + leaf).digest()
            size >>= 1
        hashes.append(leaf)
        self.size += 1

    def root(self) -> bytes:
        if not self._hashes:
            return EMPTY_ROOT
        root = self._hashes[-1]
        for left in reversed(self._hashes[:-1]):
            root = node_hash(left, root)
        return root

    def copy(self) -> Frontier:
        return Frontier(self.size, self._hashes)


Subtree = Callable[[int, int], bytes]
"""Returns the hash of the subtree over leaves [first, second)."""


def inclusion_path(index: int, size: int, subtree: Subtree) -> list[bytes]:
    """The proof that leaf `index` is in the tree of `size` leaves (RFC 9162, 2.1.3.1)."""
    if not 0 <= index < size:
        raise BadProof("there is no such leaf in the tree")
    start, end, path = 0, size, []
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            path.append(subtree(middle, end))
            end = middle
        else:
            path.append(subtree(start, middle))
            start = middle
    return path[::-1]


def root_by_inclusion(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes:
    """The root that this path yields (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < size:
        raise BadProof("there is no such leaf in the tree")
    number, last, root = index, size - 1, leaf
    for each in path:
        if last == 0:
            raise BadProof("the path is too long")
        if number & 1 or number == last:
            root = node_hash(each, root)
            while not number & 1 and number:
                number, last = number >> 1, last >> 1
        else:
            root = node_hash(root, each)
        number, last = number >> 1, last >> 1
    if last != 0:
        raise BadProof("the path is too short")
    return root


def _split(size: int) -> int:
    """The largest power of two below the size."""
    return 1 << ((size - 1).bit_length() - 1)


_SIZE = re.compile(r"0|[1-9][0-9]{0,17}")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of the log at one moment."""

    origin: str
    size: int
    root: bytes

    def text(self) -> str:
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        lines = text.split("\n")
        try:
            origin, size, root = lines[0], lines[1], base64.b64decode(lines[2], validate=True)
        except (IndexError, binascii.Error, ValueError):
            raise BadNote("it is no checkpoint") from None
        if not origin or _SIZE.fullmatch(size) is None or len(root) != 32:
            raise BadNote("it is no checkpoint")
        return cls(origin, int(size), root)


def sign_checkpoint(checkpoint: Checkpoint, *signers: Signer) -> bytes:
    """The signed note."""
    return signed_note(checkpoint.text(), *signers)


def open_checkpoint(
    note: bytes, keys: Sequence[PublicKey]
) -> tuple[Checkpoint, tuple[PublicKey, ...]]:
    """The checkpoint and the keys that signed it; raises `BadNote` if none of them did."""
    text, signed = open_note(note, keys)
    return Checkpoint.parse(text), signed


def unproven_checkpoint(note: bytes) -> Checkpoint:
    """Parse a checkpoint without checking signatures, for work that is verified later."""
    try:
        return Checkpoint.parse(note.decode("utf-8").partition("\n\n")[0] + "\n")
    except UnicodeDecodeError:
        raise BadNote("it is not text") from None


def sign_statement(lines: Sequence[str], signer: Signer) -> str:
    """A signed note about the log itself, to be put into a record: anyone could forge the bare
    record."""
    return signed_note("".join(f"{line}\n" for line in lines), signer).decode()


def check_statement(note: object, lines: Sequence[str], keys: Sequence[PublicKey]) -> None:
    """Raises `BadNote` unless one of these keys has signed exactly these lines."""
    text, _ = open_note(str(note).encode(), keys)
    if text != "".join(f"{line}\n" for line in lines):
        raise BadNote("it says something else")


def key_lines(origin: str, key: object) -> tuple[str, ...]:
    """The statement with which the old key announces the new one."""
    return ("cellwall audit: the next key", origin, str(key))


def deletion_lines(origin: str, last: int) -> tuple[str, ...]:
    """The statement that all records up to one were deleted by retention."""
    return ("cellwall audit: deleted by rule up to", origin, str(last))
