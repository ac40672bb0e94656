"""Views of a text: the normalised text and every layer decoded from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from cellwall.guard.ctext.inline import PatchedLines
from cellwall.guard.normalise.characters import as_image, lowered
from cellwall.guard.normalise.cleaning import Cleaned, clean_text
from cellwall.guard.normalise.disguises import undo_disguises
from cellwall.guard.normalise.encoded_runs import Decoded, decode_runs
from cellwall.guard.normalise.encoding_survey import MIN_ENCODED_CHARS, survey
from cellwall.guard.normalise.inline_escapes import DecodedLines, decode_inline, has_token_signs
from cellwall.guard.normalise.invisible import (
    hidden_messages,
    invisible_hit,
    invisible_hits,
    kinds_in,
)
from cellwall.guard.normalise.offsets import (
    IDENTITY,
    DecodedPiece,
    OffsetMap,
    PatchMap,
    PieceMap,
    join,
)
from cellwall.guard.normalise.split_words import join_split_words
from cellwall.guard.report import Hit
from cellwall.parsing.budget import AttemptBudget, checkpoint

_DISGUISES = frozenset({"rot13", "reversed", "leet", "spaced"})
_MAX_HITS = 256
_MAX_ATTEMPTS = {"masks": 30_000, "runs": 20_000, "inline": 150_000, "disguises": 30_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfoldLimits:
    """Bounds on the size of the input and on the work that decoding may cause."""

    max_chars: int = 4 << 20
    """Of a longer text only the first and the last half of this many characters are read."""
    max_depth: int = 4
    """Nested encodings that are decoded."""
    max_views: int = 32
    max_decoded_chars: int = 2 << 20
    """Over all layers together."""


@dataclass(frozen=True, slots=True)
class View:
    """One reading of a text: normalised, or decoded from it."""

    plain: str
    """Without invisible characters, in NFKC, confusables folded; case preserved."""
    _folded: str = field(default="", repr=False, compare=False)
    via: tuple[str, ...] = ()
    """Encodings that were decoded, outermost first; empty for the text itself."""
    _track: OffsetMap = field(default=IDENTITY, repr=False, compare=False)
    _image: bytes = field(default=b"", repr=False, compare=False)
    _lower: bytes = field(default=b"", repr=False, compare=False)

    @property
    def folded(self) -> str:
        """`plain` in lower case, character by character. Computed on each access: for a long text
        that costs as much as a search, and few callers need more than `lower` or a part."""
        return self._folded or lowered(self.plain)

    @property
    def lower(self) -> bytes:
        """`folded` in UTF-8; lone surrogates become bytes that no pattern matches."""
        return self._lower or self.folded.encode("utf-8", "surrogatepass")

    @property
    def image(self) -> bytes:
        """One byte per character, so that positions agree."""
        return self._image or as_image(self.plain)

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Position of a part of this view in characters of the original text."""
        size = len(self.plain)
        start = min(max(start, 0), size)
        return self._track.span(start, min(max(end, start), size))


@dataclass(frozen=True, slots=True)
class Unfolded:
    """All views of a text; the first is the text itself."""

    views: tuple[View, ...]
    hits: tuple[Hit, ...]
    """Hits for the character tricks themselves, with spans of the original."""
    is_complete: bool


_DEFAULT = UnfoldLimits()


def unfold(text: str, bounds: UnfoldLimits = _DEFAULT) -> Unfolded:
    """All views of a text within the limits. Never raises."""
    return _Unfolder(bounds).run(text)


_Layer = tuple[str, OffsetMap, tuple[str, ...]]
"""A text, its map to the original, and the encodings that led to it."""


class _Unfolder:
    """Unfolds one text, breadth first, so that shallow layers are never crowded out."""

    def __init__(self, bounds: UnfoldLimits) -> None:
        self._bounds = bounds
        self._views: list[View] = []
        self._hits: list[Hit] = []
        self._left_chars = bounds.max_decoded_chars
        self._is_complete = True
        # A budget per decoder, so that one decoder cannot exhaust another.
        self._attempts = {way: AttemptBudget(most) for way, most in _MAX_ATTEMPTS.items()}

    def run(self, text: str) -> Unfolded:
        track: OffsetMap = IDENTITY
        if len(text) > self._bounds.max_chars:
            # An attacker controls the filler in the middle; a model weighs beginning and end most.
            self._is_complete = False
            text, track = _keep_ends(text, self._bounds.max_chars)
        waiting: deque[_Layer] = deque([(text, track, ())])
        while waiting:
            checkpoint()
            waiting.extend(self._layer(*waiting.popleft()))
        is_complete = self._is_complete and not any(one.is_spent for one in self._attempts.values())
        return Unfolded(tuple(self._views), tuple(self._hits), is_complete)

    def _layer(self, text: str, track: OffsetMap, via: tuple[str, ...]) -> Iterator[_Layer]:
        """Adds the view of one layer; yields the layers inside it."""
        clean = clean_text(text, track, self._attempts["masks"])
        if via and not clean.is_odd and self._is_known(clean.plain):
            return
        if len(self._views) >= self._bounds.max_views:
            self._is_complete = False
            return
        plain, image = clean.plain, clean.image
        self._views.append(View(plain, "", via, clean.track, image, clean.lower))
        hidden = kinds_in(clean.excerpt, clean.letters) if clean.is_odd else frozenset[str]()
        self._note(invisible_hits(clean.excerpt, hidden), clean.excerpt_track, via)
        self._note(_mixed_script_hits(clean), clean.track, via)
        yield from self._group_layers(
            hidden_messages(clean.excerpt, hidden), clean.excerpt_track, via
        )
        yield from self._group_layers(self._decode(plain, image, via), clean.track, via)

    def _is_known(self, plain: str) -> bool:
        return not plain.strip() or any(plain == view.plain for view in self._views)

    def _note(self, hits: Iterable[Hit], track: OffsetMap, via: tuple[str, ...]) -> None:
        for one in hits:
            if len(self._hits) >= _MAX_HITS:
                return
            start, end = track.span(one.start, one.end)
            self._hits.append(replace(one, start=start, end=end, via=via))

    def _group_layers(
        self, opened: Iterator[Decoded | DecodedLines], track: OffsetMap, via: tuple[str, ...]
    ) -> Iterator[_Layer]:
        found: dict[tuple[str, ...], list[DecodedPiece] | PatchedLines] = {}
        for one in opened:
            if self._left_chars <= 0:
                self._is_complete = False
                break
            if len(via) + len(one.via) > self._bounds.max_depth:
                self._is_complete = False
                continue
            if isinstance(one, DecodedLines):
                self._left_chars -= one.lines.characters
                found[one.via] = one.lines
                if one.lines.is_cut:
                    self._is_complete = False
                    break
                continue
            self._left_chars -= len(one.piece.text)
            pieces = found.setdefault(one.via, [])
            assert isinstance(pieces, list)  # noqa: S101  # lines are decoded in other ways
            pieces.append(one.piece)
        for names, pieces in found.items():
            if isinstance(pieces, PatchedLines):
                text = pieces.text
                yield text, PatchMap(pieces.patches, len(text), track), (*via, *names)
                continue
            joined = join(pieces)
            text = "".join(piece.text for piece in joined)
            yield text, PieceMap(joined, track), (*via, *names)

    def _decode(
        self, plain: str, image: bytes, via: tuple[str, ...]
    ) -> Iterator[Decoded | DecodedLines]:
        def room() -> int:
            return self._left_chars

        if len(image) >= MIN_ENCODED_CHARS or has_token_signs(image):
            yield from decode_runs(image, survey(image), self._attempts["runs"])
            yield from decode_inline(plain, image, self._attempts["inline"], room)
        yield from join_split_words(plain, image, self._attempts["inline"], room)
        yield from undo_disguises(plain, image, _last_disguises(via), self._attempts["disguises"])


def _last_disguises(via: tuple[str, ...]) -> frozenset[str]:
    """Disguises that were undone last; undoing them again would restore them."""
    worn: set[str] = set()
    for name in reversed(via):
        if name not in _DISGUISES:
            break
        worn.add(name)
    return frozenset(worn)


def _mixed_script_hits(clean: Cleaned) -> Iterator[Hit]:
    for span in clean.masked:
        message = "a word in letters of several scripts that look alike"
        yield invisible_hit("mixed-script", "medium", message, span, 0.5)


def _keep_ends(text: str, size: int) -> tuple[str, OffsetMap]:
    half = size // 2
    start = len(text) - (size - half)
    pieces = join(
        [DecodedPiece(text[:half], 0, half), DecodedPiece(text[start:], start, len(text))]
    )
    return "".join(piece.text for piece in pieces), PieceMap(pieces, IDENTITY)
