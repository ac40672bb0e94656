"""Maps from positions in a view to the original text, computed on demand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol


class OffsetMap(Protocol):
    """Maps positions of a view to the original."""

    def span(self, start: int, end: int) -> tuple[int, int]:
        """In characters of the original text."""
        ...


class IdentityMap:
    """The identity map."""

    def span(self, start: int, end: int) -> tuple[int, int]:
        return start, max(start, end)


IDENTITY = IdentityMap()


class Edit(NamedTuple):
    """A part of the source and the part of the result that replaced it, possibly empty."""

    source_start: int
    source_end: int
    start: int
    end: int


class EditedMap:
    """A text with few edits; between them it is the shifted source."""

    __slots__ = ("_edits", "_find", "_finer", "_parent", "_refine", "_starts")

    def __init__(
        self,
        find: Callable[[], Sequence[Edit]],
        parent: OffsetMap,
        refine: Callable[[Edit], Sequence[Edit]] | None = None,
    ) -> None:
        self._find = find
        self._parent = parent
        self._refine = refine
        self._edits: Sequence[Edit] | None = None
        self._starts: list[int] = []
        self._finer: dict[int, Sequence[Edit]] = {}

    def span(self, start: int, end: int) -> tuple[int, int]:
        first = self._place(start)[0]
        last = self._place(end - 1)[1] if end > start else first
        return self._parent.span(first, max(first, last))

    def _place(self, at: int) -> tuple[int, int]:
        edits = self._edits
        if edits is None:
            # Two threads may both compute this, with equal results.
            edits = self._find()
            self._starts = [edit.start for edit in edits]
            self._edits = edits
        number = bisect_right(self._starts, at) - 1
        if number < 0:
            return at, at + 1
        edit = edits[number]
        if at >= edit.end:
            at += edit.source_end - edit.end
            return at, at + 1
        if self._refine is not None:
            if number not in self._finer:
                self._finer[number] = self._refine(edit)
            finer = self._finer[number]
            edit = finer[bisect_right(finer, at, key=_start) - 1]
        return edit.source_start, edit.source_end


def _start(edit: Edit) -> int:
    return edit.start


def without(spans: Iterable[tuple[int, int]]) -> list[Edit]:
    """The edits that remove these spans, given in order."""
    edits: list[Edit] = []
    gone = 0
    for start, end in spans:
        edits.append(Edit(start, end, start - gone, start - gone))
        gone += end - start
    return edits


def merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge touching spans, given in order."""
    found: list[tuple[int, int]] = []
    for start, end in spans:
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


class SplicedPart(NamedTuple):
    """A part of the source that was edited in an excerpt and put back."""

    source_end: int
    inside: int
    """Where it begins in the excerpt, as that is now."""
    start: int
    end: int


class SplicedMap:
    """A text of which an excerpt was changed; between its stretches it is the source, moved."""

    __slots__ = ("_excerpt", "_parent", "_starts", "_stretches")

    def __init__(
        self, stretches: Sequence[SplicedPart], excerpt: OffsetMap, parent: OffsetMap
    ) -> None:
        self._stretches = stretches
        self._starts = [stretch.start for stretch in stretches]
        self._excerpt = excerpt
        self._parent = parent

    def span(self, start: int, end: int) -> tuple[int, int]:
        first = self._place(start)
        if end <= start:
            return first[0], first[0]
        last = self._place(end - 1)
        return min(first[0], last[0]), max(first[1], last[1])

    def _place(self, at: int) -> tuple[int, int]:
        number = bisect_right(self._starts, at) - 1
        if number < 0:
            return self._parent.span(at, at + 1)
        stretch = self._stretches[number]
        if at < stretch.end:
            at += stretch.inside - stretch.start
            return self._excerpt.span(at, at + 1)
        at += stretch.source_end - stretch.end
        return self._parent.span(at, at + 1)


class DecodedPiece(NamedTuple):
    """Text decoded from a span of another text. If both have the same length, characters correspond
    one to one, in reverse order if `is_mirrored`."""

    text: str
    start: int
    end: int
    is_mirrored: bool = False


GAP = "\n\n\n"
"""Separates pieces that were not adjacent, so that nothing matches across them."""


class _JoinedMap(ABC):
    """A text whose parts stand for parts of another one, its parent."""

    __slots__ = ("_parent",)

    def __init__(self, parent: OffsetMap) -> None:
        self._parent = parent

    def span(self, start: int, end: int) -> tuple[int, int]:
        first = self._place(start)
        if end <= start:
            return self._parent.span(first[0], first[0])
        last = self._place(end - 1)
        return self._parent.span(min(first[0], last[0]), max(first[1], last[1]))

    @abstractmethod
    def _place(self, at: int) -> tuple[int, int]:
        """What a character of the text stands for, in the parent."""


class PieceMap(_JoinedMap):
    """A text joined from pieces of another."""

    __slots__ = ("_pieces", "_starts")

    def __init__(self, pieces: Sequence[DecodedPiece], parent: OffsetMap) -> None:
        super().__init__(parent)
        self._pieces = pieces
        self._starts: list[int] = []

    def _place(self, at: int) -> tuple[int, int]:
        if len(self._starts) != len(self._pieces):
            starts: list[int] = []
            size = 0
            for piece in self._pieces:
                starts.append(size)
                size += len(piece.text)
            self._starts = starts
        number = max(0, bisect_right(self._starts, at) - 1)
        piece = self._pieces[number]
        size = piece.end - piece.start
        if len(piece.text) != size or not size:
            return piece.start, piece.end
        inside = min(max(at - self._starts[number], 0), size - 1)
        place = piece.end - 1 - inside if piece.is_mirrored else piece.start + inside
        return place, place + 1


class PatchMap(_JoinedMap):
    """Lines that were patched: three numbers for each part, where it begins and the part of the
    source that it stands for. Parts of the same length correspond as pieces do."""

    __slots__ = ("_patches", "_size", "_starts")

    def __init__(self, patches: Sequence[int], size: int, parent: OffsetMap) -> None:
        """`size`: of the text."""
        super().__init__(parent)
        self._patches, self._size = patches, size
        self._starts: Sequence[int] = ()

    def _place(self, at: int) -> tuple[int, int]:
        starts = self._starts = self._starts or self._patches[::3]
        number = max(0, bisect_right(starts, at) - 1)
        begin, start, end = self._patches[3 * number : 3 * number + 3]
        past = starts[number + 1] if number + 1 < len(starts) else self._size
        if past - begin != end - start or start == end:
            return start, end
        place = start + min(max(at - begin, 0), end - start - 1)
        return place, place + 1


def join(pieces: Iterable[DecodedPiece]) -> list[DecodedPiece]:
    """The pieces, with a gap between those that were not adjacent."""
    joined: list[DecodedPiece] = []
    for piece in pieces:
        if joined and not _are_neighbours(joined[-1], piece):
            joined.append(_gap(joined[-1], piece))
        joined.append(piece)
    return joined


def _gap(one: DecodedPiece, other: DecodedPiece) -> DecodedPiece:
    """It stands for what was left out; where that is nothing, for the piece before it."""
    if other.start > one.end:
        return DecodedPiece(GAP, one.end, other.start)
    return DecodedPiece(GAP, one.start, one.end)


def _are_neighbours(one: DecodedPiece, other: DecodedPiece) -> bool:
    if one.is_mirrored or other.is_mirrored:
        return one.start == other.end
    return one.end == other.start
