"""Every value that was ever stored, known by a keyed digest: enough to find it, not to guess it.

The digests are sealed in the vault and made with a key that is in it, so they tell nothing to
whoever has the file alone. Values that are in the vault now are found exactly, by `Vault.values`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cellwall.secrets.failures import tampered
from cellwall.secrets.sealing import Key, mac_of

MIN_KNOWN_BYTES = 6
"""Shorter ones stand in every text by chance."""
_DIGEST_BYTES = 16
_PLAIN = re.compile(rb"[^\s\"'`<>\\\x00-\x1f]+")
_BORDER = re.compile(rb"[=:,;&?#@/(){}\[\]|]")
_MAX_BORDERS = 24


def digest_of(key: Key, value: bytes | bytearray | memoryview) -> str:
    """Short enough to keep thousands, long enough for none to be met by chance."""
    return mac_of(key, bytes(value))[:_DIGEST_BYTES].hex()


@dataclass(frozen=True, slots=True)
class KnownDigests:
    """By length, since a text is only hashed where a value could stand."""

    by_length: dict[int, dict[str, str]] = field(default_factory=dict)
    """length -> digest -> the name it was stored by first."""

    def with_value(self, key: Key, name: str, value: bytes | bytearray) -> KnownDigests:
        lengths = {length: dict(each) for length, each in self.by_length.items()}
        lengths.setdefault(len(value), {}).setdefault(digest_of(key, value), name)
        return KnownDigests(lengths)

    def find(self, key: Key, text: bytes) -> tuple[str, ...]:
        """The names of the values that stand in the text as words of their own."""
        found = {
            name
            for token in tokens(text)
            if (names := self.by_length.get(len(token))) is not None
            and len(token) >= MIN_KNOWN_BYTES
            and (name := names.get(digest_of(key, token))) is not None
        }
        return tuple(sorted(found))

    def to_bytes(self) -> bytes:
        rows = [
            [length, digest, name]
            for length, each in self.by_length.items()
            for digest, name in each.items()
        ]
        return json.dumps(rows, separators=(",", ":")).encode()


def read_known(data: bytes | bytearray) -> KnownDigests:
    """The other way of `to_bytes`."""
    lengths: dict[int, dict[str, str]] = {}
    try:
        for length, digest, name in json.loads(data):
            lengths.setdefault(length, {})[digest] = name
    except (ValueError, TypeError):
        raise tampered("the digests") from None
    return KnownDigests(lengths)


def tokens(text: bytes) -> Iterator[bytes]:
    """Pieces of a text that could be a value: between blanks and quotes, and between the borders
    within those, as in `key=VALUE` or `user:VALUE@host`; borders may be part of a value."""
    for found in _PLAIN.finditer(text):
        yield from _within(found[0])


def _within(piece: bytes) -> Iterable[bytes]:
    borders = [each.start() for each in _BORDER.finditer(piece)]
    if not borders:
        return (piece,)
    # Bounded, or a long row of borders would cost its square.
    near = borders[:_MAX_BORDERS] + borders[-_MAX_BORDERS:]
    starts = sorted({0, *(at + 1 for at in near)})
    ends = sorted({len(piece), *near, *(at + 1 for at in near)})
    return {piece[start:end] for start in starts for end in ends if start < end}
