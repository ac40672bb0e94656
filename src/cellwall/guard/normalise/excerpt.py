"""The parts of a long text that have controls or letters beyond ASCII, looked at in place of all
of it.

Prose has a few quotes, dashes and accents in a megabyte. What is done about them looks at nothing
that is far from them, so the rest, which is plain ASCII, can stay as it is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from cellwall.guard.ctext.library import Block, blocks
from cellwall.guard.normalise.characters import COMMON, as_image, in_lower_case
from cellwall.guard.normalise.offsets import (
    DecodedPiece,
    OffsetMap,
    PieceMap,
    SplicedMap,
    SplicedPart,
)

_MIN_CHARS = 4096
_BLOCK_BYTES = 128
"""Kept on both sides of a block with such letters: more than any look around a letter takes in."""
_ESCAPED_BYTES = 640
"""Kept where there are terminal sequences: more than the longest of them."""
_BETWEEN = "\v"
"""Between the parts: nothing takes it out, and nothing joins it."""

Spans = tuple[tuple[int, int], ...]


class Restored(NamedTuple):
    """The whole text, after its excerpt was changed."""

    plain: str
    lower: bytes
    """In lower case and in UTF-8."""
    image: bytes
    track: OffsetMap
    words: Spans


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Parts of a text, one after the other."""

    text: str
    track: OffsetMap
    _source: str
    _data: bytes
    _parts: list[Block]
    _parent: OffsetMap

    def restore(self, plain: str, track: OffsetMap, words: Spans, cased: str) -> Restored:
        """The text with the parts as they are now. `words` are places in them, `cased` what is
        known of their letters."""
        is_same = plain == self.text
        pieces: list[str] = []
        lower: list[bytes] = []
        image: list[bytes] = []
        stretches: list[SplicedPart] = []
        moved: list[tuple[int, int]] = []
        waiting = deque(words)
        done = past_byte = size = inside = 0
        for (start, end, first_byte, last_byte), part in zip(
            self._parts, plain.split(_BETWEEN), strict=True
        ):
            size += start - done
            past = inside + len(part)
            if not is_same:
                pieces += self._source[done:start], part
            # What lies between is ASCII, and many times faster to go through as bytes.
            between = self._data[past_byte:first_byte]
            lower += between.lower(), in_lower_case(part, cased)
            image += between, as_image(part)
            stretches.append(SplicedPart(end, inside, size, size + len(part)))
            while waiting and waiting[0][0] < past:
                first, last = waiting.popleft()
                moved.append((first - inside + size, last - inside + size))
            size += len(part)
            inside = past + len(_BETWEEN)
            done, past_byte = end, last_byte
        pieces.append(self._source if is_same else self._source[done:])
        between = self._data[past_byte:]
        lower.append(between.lower())
        image.append(between)
        return Restored(
            "".join(pieces),
            b"".join(lower),
            b"".join(image),
            SplicedMap(stretches, track, self._parent),
            tuple(moved),
        )


def take_excerpt(text: str, data: bytes, parent: OffsetMap) -> Excerpt | None:
    """None where the parts would be most of the text, of which `data` is the UTF-8."""
    # Bytes are searched many times as fast as a text with letters from beyond its first plane.
    if len(text) < _MIN_CHARS or _BETWEEN.encode() in data:
        return None
    most = len(text) // 2 // (3 * _BLOCK_BYTES)
    # A letter that is cut makes both blocks such ones.
    rich = blocks(data, COMMON, _BLOCK_BYTES, most + 1)
    if len(rich) > most:
        return None
    parts = _joined(rich, _ESCAPED_BYTES if b"\x1b" in data else _BLOCK_BYTES, len(text), len(data))
    pieces: list[DecodedPiece] = []
    for start, end, _, _ in parts:
        pieces += DecodedPiece(text[start:end], start, end), DecodedPiece(_BETWEEN, end, end)
    del pieces[-1:]
    joined = "".join([piece.text for piece in pieces])
    return Excerpt(joined, PieceMap(pieces, parent), text, data, parts, parent)


def _joined(rich: list[Block], around: int, size: int, size_bytes: int) -> list[Block]:
    """With what is kept around them; those that touch are one. All that is kept of other blocks is
    ASCII, so that it is as many characters as bytes."""
    parts: list[Block] = []
    for start, end, first, last in rich:
        begin, begin_byte = max(0, start - around), max(0, first - around)
        if parts and begin <= parts[-1][1]:
            begin, _, begin_byte, _ = parts.pop()
        reach, reach_byte = min(size, end + around), min(size_bytes, last + around)
        parts.append((begin, reach, begin_byte, reach_byte))
    return parts
