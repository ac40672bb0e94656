"""Checkpoints: signed statements about the tree, in C2SP's tlog-checkpoint format. Pure.

origin (which log)
size (number of records)
base64 of the root over them
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cellwall.core.notes import BadNote, PublicKey, Signer, open_note, signed_note

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
