"""Proofs that one state of a log is a continuation of another (RFC 9162, 2.1.4), and their text.

A proof needs the subtrees of the old tree and the leaves behind them, not the whole log. Pure.

An offer is the text in which a host shows a new checkpoint to the others, as C2SP's tlog-witness
has it: the size of the checkpoint before it, the proof, an empty line, and the signed note.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass

from cellwall.audit.merkle import HASH_BYTES, BadProof, Frontier, node_hash

_MAX_HASHES = 126


def consistency_path(old: Frontier, leaves: Sequence[bytes]) -> list[bytes]:
    """The proof that the tree with these leaves behind it continues the old one."""
    if old.size == 0 or not leaves:
        return []
    return _subproof(0, old.size + len(leaves), old, leaves, is_old_root=True)


def _subproof(
    start: int, end: int, old: Frontier, leaves: Sequence[bytes], *, is_old_root: bool
) -> list[bytes]:
    """SUBPROOF(m, D[start:end], b) of the RFC; m is the size of the old tree less `start`."""
    if end == old.size:
        return [] if is_old_root else [_subtree(start, end, old, leaves)]
    middle = start + (1 << ((end - start - 1).bit_length() - 1))
    if old.size <= middle:
        path = _subproof(start, middle, old, leaves, is_old_root=is_old_root)
        return [*path, _subtree(middle, end, old, leaves)]
    path = _subproof(middle, end, old, leaves, is_old_root=False)
    return [*path, _subtree(start, middle, old, leaves)]


def _subtree(start: int, end: int, old: Frontier, leaves: Sequence[bytes]) -> bytes:
    """Of old leaves, which are whole subtrees here, or of new ones."""
    found = Frontier()
    if start >= old.size:
        for leaf in leaves[start - old.size : end - old.size]:
            found.push(leaf)
        return found.root()
    at, left, parts = 0, old.size, []
    for each in old.hashes:
        size = 1 << (left.bit_length() - 1)
        if start <= at and at + size <= end:
            parts.append(each)
        at, left = at + size, left - size
    return Frontier(end - start, parts).root()


def check_consistency(
    old_size: int, old_root: bytes, new_size: int, new_root: bytes, path: Sequence[bytes]
) -> None:
    """Raises `BadProof` unless the path proves it (RFC 9162, 2.1.4.2)."""
    if not 0 <= old_size <= new_size:
        raise BadProof("the new state has fewer records than the old one")
    if old_size in (0, new_size):
        if path or (old_size == new_size and old_root != new_root):
            raise BadProof("two states of one size differ")
        return
    # A whole subtree is its own proof, and is left out.
    is_whole = old_size & (old_size - 1) == 0
    found = _roots(old_size, new_size, [old_root, *path] if is_whole else list(path))
    if found != (old_root, new_root):
        raise BadProof("the new state does not contain the old one")


def _roots(old_size: int, new_size: int, nodes: Sequence[bytes]) -> tuple[bytes, bytes]:
    """The roots of the old and the new tree that these nodes yield."""
    if not nodes:
        raise BadProof("the proof is too short")
    number, last = old_size - 1, new_size - 1
    while number & 1:
        number, last = number >> 1, last >> 1
    first = second = nodes[0]
    for each in nodes[1:]:
        if last == 0:
            raise BadProof("the proof is too long")
        if number & 1 or number == last:
            first, second = node_hash(each, first), node_hash(each, second)
            while not number & 1 and number:
                number, last = number >> 1, last >> 1
        else:
            second = node_hash(second, each)
        number, last = number >> 1, last >> 1
    if last != 0:
        raise BadProof("the proof is too short")
    return first, second


@dataclass(frozen=True, slots=True)
class CheckpointOffer:
    """A checkpoint as a host shows it."""

    old_size: int
    path: tuple[bytes, ...]
    note: bytes

    def text(self) -> str:
        lines = [f"old {self.old_size}", *(base64.b64encode(each).decode() for each in self.path)]
        return "\n".join(lines) + "\n\n" + self.note.decode()

    @classmethod
    def parse(cls, text: str) -> CheckpointOffer:
        head, gap, note = text.partition("\n\n")
        first, *hashes = head.split("\n")
        try:
            if not gap or not first.startswith("old ") or len(hashes) > _MAX_HASHES:
                raise ValueError  # one answer for all that is malformed
            path = tuple(base64.b64decode(each, validate=True) for each in hashes)
            old_size = int(first.removeprefix("old "))
            if old_size < 0 or any(len(each) != HASH_BYTES for each in path):
                raise ValueError  # as above
        except (ValueError, binascii.Error):
            raise BadProof("it is no offer of a checkpoint") from None
        return cls(old_size, path, note.encode())
