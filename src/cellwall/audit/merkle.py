"""The Merkle tree over the log, as defined in RFC 6962 and RFC 9162. Pure.

A leaf is hashed with the prefix 0, an inner node with the prefix 1, so that neither can be passed
off as the other. A tree of n leaves splits at the largest power of two below n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256

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


def tree_hash(leaves: Iterable[bytes]) -> bytes:
    """The root over these leaf hashes."""
    frontier = Frontier()
    for leaf in leaves:
        frontier.push(leaf)
    return frontier.root()


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


def consistency_path(old: int, new: int, subtree: Subtree) -> list[bytes]:
    """The proof that the tree of `old` leaves is a prefix of the tree of `new` leaves (2.1.4.1)."""
    if not 0 < old <= new:
        raise BadProof("the older tree is empty, or larger than the newer one")
    start, end, path, is_whole = 0, new, [], True
    while old != end:
        middle = start + _split(end - start)
        if old <= middle:
            path.append(subtree(middle, end))
            end = middle
        else:
            path.append(subtree(start, middle))
            start, is_whole = middle, False
    if not is_whole:
        path.append(subtree(start, end))
    return path[::-1]


def check_consistency(
    old: int, old_root: bytes, new: int, new_root: bytes, path: Sequence[bytes]
) -> None:
    """Raises `BadProof` unless the path proves the prefix relation (RFC 9162, 2.1.4.2)."""
    if not 0 < old <= new:
        raise BadProof("the older tree is empty, or larger than the newer one")
    if old == new:
        if path or old_root != new_root:
            raise BadProof("two trees of one size differ")
        return
    rest = [old_root, *path] if old & (old - 1) == 0 else list(path)
    if not rest:
        raise BadProof("the path is too short")
    number, last = old - 1, new - 1
    while number & 1:
        number, last = number >> 1, last >> 1
    older = newer = rest[0]
    for each in rest[1:]:
        if last == 0:
            raise BadProof("the path is too long")
        if number & 1 or number == last:
            older, newer = node_hash(each, older), node_hash(each, newer)
            while not number & 1 and number:
                number, last = number >> 1, last >> 1
        else:
            newer = node_hash(newer, each)
        number, last = number >> 1, last >> 1
    if last != 0:
        raise BadProof("the path is too short")
    if older != old_root or newer != new_root:
        raise BadProof("the older tree is not the beginning of the newer one")


def _split(size: int) -> int:
    """The largest power of two below the size."""
    return 1 << ((size - 1).bit_length() - 1)
