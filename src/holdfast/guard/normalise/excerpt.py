"""The parts of a long text that have letters beyond ASCII, looked at in place of all of it.

Prose has a few quotes, dashes and accents in a megabyte. What is done about them looks at nothing
that is far from them, so the rest, which is plain ASCII, can stay as it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from holdfast.guard.normalise.characters import CONTINUATION, as_image, in_lower_case
from holdfast.guard.normalise.offsets import Collage, Piece, Spliced, Stretch, Track

_LEAST_CHARS = 4096
_BLOCK_BYTES = 128
"""Kept on both sides of a block with such letters: more than any look around a letter takes in."""
_PAGE_BYTES = 8 * _BLOCK_BYTES
"""Looked at first: most have no such letter."""
_BETWEEN = "\v"
"""Between the parts: nothing takes it out, and nothing joins it."""

Spans = tuple[tuple[int, int], ...]


class Restored(NamedTuple):
    """The whole text, after its excerpt was changed."""

    plain: str
    lower: bytes
    """In lower case and in UTF-8."""
    image: bytes
    track: Track
    words: Spans


_Part = tuple[int, int, int, int]
"""Where it stands in the text: in characters, and in bytes of its UTF-8."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Parts of a text, one after the other."""

    text: str
    track: Track
    _source: str
    _data: bytes
    _parts: list[_Part]
    _parent: Track

    def restored(self, plain: str, track: Track, words: Spans, cased: str | None) -> Restored:
        """The text with the parts as they are now. `words` are places in them, `cased` what is
        known of their letters."""
        is_same = plain == self.text
        pieces: list[str] = []
        lower: list[bytes] = []
        image: list[bytes] = []
        stretches: list[Stretch] = []
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
            stretches.append(Stretch(end, inside, size, size + len(part)))
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
            Spliced(stretches, track, self._parent),
            tuple(moved),
        )


def excerpt(text: str, data: bytes, parent: Track) -> Excerpt | None:
    """None where the parts would be most of the text, of which `data` is the UTF-8."""
    if len(text) < _LEAST_CHARS or _BETWEEN in text:
        return None
    pages = range(0, len(data), _PAGE_BYTES)
    rich_pages = [page for page in pages if not data[page : page + _PAGE_BYTES].isascii()]
    most = len(text) // 2 // (3 * _BLOCK_BYTES)
    if 2 * len(rich_pages) > len(pages):
        return None
    rich = list(islice(_rich(data, rich_pages), most + 1))
    if len(rich) > most:
        return None
    parts = _joined(rich, len(text), len(data))
    pieces: list[Piece] = []
    for start, end, _, _ in parts:
        pieces += Piece(text[start:end], start, end), Piece(_BETWEEN, end, end)
    del pieces[-1:]
    joined = "".join([piece.text for piece in pieces])
    return Excerpt(joined, Collage(pieces, parent), text, data, parts, parent)


def _rich(data: bytes, pages: Iterable[int]) -> Iterator[_Part]:
    """Blocks with letters beyond ASCII. A letter that is cut makes both blocks such ones."""
    start = done = 0
    for page in pages:
        start += page - done
        done = page + _PAGE_BYTES
        whole = data[page:done]
        for at in range(0, len(whole), _BLOCK_BYTES):
            block = whole[at : at + _BLOCK_BYTES]
            if block.isascii():
                start += len(block)
                continue
            end = start + len(block.translate(None, CONTINUATION))
            yield start, end, page + at, page + at + len(block)
            start = end


def _joined(rich: list[_Part], size: int, size_bytes: int) -> list[_Part]:
    """With what is kept around them; those that touch are one. All that is kept of other blocks is
    ASCII, so that it is as many characters as bytes."""
    around = _BLOCK_BYTES
    parts: list[_Part] = []
    for start, end, first, last in rich:
        begin, begin_byte = max(0, start - around), max(0, first - around)
        if parts and begin <= parts[-1][1]:
            begin, _, begin_byte, _ = parts.pop()
        reach, reach_byte = min(size, end + around), min(size_bytes, last + around)
        parts.append((begin, reach, begin_byte, reach_byte))
    return parts
