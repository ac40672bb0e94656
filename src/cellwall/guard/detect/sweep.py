"""One pass over a text that finds the keywords of all rules and detectors.

Everything after it looks only at the neighbourhood of these keywords, so ordinary text costs one
run of the keyword engine and little else. Positions are bytes of the folded text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cellwall.core.outcomes import Severity
from cellwall.guard.normalise import View
from cellwall.guard.normalise.characters import CONTINUATION
from cellwall.guard.normalise.offsets import merged
from cellwall.parsing.budget import checkpoint
from cellwall.parsing.matching import Pattern, WordIndex

Span = tuple[int, int]

REACH_BYTES = 480
"""Maximum distance of a match from one of its keywords."""
_PIECE_BYTES = 512 << 10
"""Swept at once: a text made of nothing but words fills memory only with those of one piece."""
_MAX_WORD_BYTES = 256
_FEW_WINDOWS = 2
"""Looked at one by one."""
# Words of several parts are found across the ends of lines, and however their parts are joined.
_GAPS = bytes.maketrans(b"\n\r\t_-*", b"      ")


def folded_bytes(text: str) -> bytes:
    """A text of ours as it stands in a view: in lower case, character by character."""
    return _utf8(text.lower().replace("i\u0307", "i"))


def as_word(text: str) -> bytes:
    """A word of ours, in the form that is searched for."""
    return folded_bytes(text).translate(_GAPS)


def searchable(data: bytes) -> bytes:
    """Folded text in the form in which words are searched for; as long as before."""
    return data.translate(_GAPS)


def _utf8(text: str) -> bytes:
    # Half surrogates become bytes that no pattern matches.
    return text.encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class Sweep:
    """A view, its folded text as bytes, and the stretches where each keyword occurs."""

    view: View
    data: bytes
    stretches: Mapping[bytes, Sequence[Span]]
    """By word: from its first end to its last, as long as they follow each other within reach."""
    _reached: dict[bytes, list[Span]] = field(default_factory=dict, repr=False, compare=False)
    """Stretches with what is in reach of them, of words that were asked for: many rules share
    theirs."""

    def has(self, words: Iterable[bytes]) -> bool:
        return not self.stretches.keys().isdisjoint(words)

    def around(self, words: Iterable[bytes], near: Sequence[bytes] = ()) -> list[Span]:
        """What lies within reach of any of `words` and, if given, of any of `near`."""
        found = self._windows(words)
        return _common(found, self._windows(near)) if near and found else found

    def spans(
        self, pattern: Pattern, words: Iterable[bytes], near: Sequence[bytes] = ()
    ) -> Iterator[Span]:
        """Where the pattern matches in the neighbourhood of its words."""
        windows = self.around(words, near)
        if len(windows) > _FEW_WINDOWS and not self._may_match(pattern, windows):
            return
        for window in windows:
            yield from pattern.spans(self.data, *window)

    def _may_match(self, pattern: Pattern, windows: Sequence[Span]) -> bool:
        """Whether it matches in any of them, asked at once: most rules match nowhere in a text
        that has their words, and to ask of each window costs more than to look at it.

        What matches in one matches here as well: a line's end between them is the begin and the
        end of a line and of a word. "Not at a word's end" is the one thing it is not.
        """
        if "\\B" in pattern.source:
            return True
        return pattern.matches(b"\n".join([self.data[start:end] for start, end in windows]))

    def characters(self, offsets: Iterable[int]) -> dict[int, int]:
        """Each offset in bytes as one in characters of the view."""
        wanted = sorted(set(offsets))
        if len(self.data) == len(self.view.plain):
            return {offset: offset for offset in wanted}
        found: dict[int, int] = {}
        at = count = 0
        for offset in wanted:
            # So it works for damaged text too.
            count += len(self.data[at:offset].translate(None, CONTINUATION))
            found[offset] = count
            at = offset
        return found

    def _windows(self, words: Iterable[bytes]) -> list[Span]:
        present = [word for word in words if word in self.stretches]
        if len(present) < 2:
            return merged(self._reach(present[0])) if present else []
        found: list[Span] = []
        for word in present:
            found += self._reach(word)
        found.sort()
        return merged(found)

    def _reach(self, word: bytes) -> list[Span]:
        reached = self._reached.get(word)
        if reached is None:
            before, most = len(word) + REACH_BYTES, len(self.data)
            reached = self._reached[word] = [
                (max(0, first - before), min(most, last + REACH_BYTES))
                for first, last in self.stretches[word]
            ]
        return reached


class Vocabulary:
    """The keywords of all rules and detectors, found in one pass."""

    def __init__(self, words: Iterable[bytes]) -> None:
        self._words = tuple(dict.fromkeys(words))
        self._index = WordIndex(self._words)

    def sweep(self, view: View) -> Sweep:
        data = view.lower
        stretches: dict[bytes, list[Span]] = {}
        for at in range(0, len(data), _PIECE_BYTES):
            checkpoint()
            # Pieces overlap, so that no word is cut in two; twice the same place does no harm.
            begin = max(0, at - _MAX_WORD_BYTES)
            whole = begin == 0 and len(data) <= _PIECE_BYTES
            piece = data if whole else data[begin : at + _PIECE_BYTES]
            self._note(searchable(piece), begin, stretches)
        return Sweep(view, data, stretches)

    def _note(self, piece: bytes, begin: int, stretches: dict[bytes, list[Span]]) -> None:
        words = self._words
        for number, end in self._index.places(piece, most=len(piece) * 8):
            place = begin + end
            known = stretches.get(words[number])
            if known is None:
                stretches[words[number]] = [(place, place)]
                continue
            first, last = known[-1]
            if place - last > REACH_BYTES:
                known.append((place, place))
            elif place > last:
                known[-1] = (first, place)


def _common(left: Sequence[Span], right: Sequence[Span]) -> list[Span]:
    """The parts of `left` that touch `right`, whole: both sorted and merged."""
    found: list[Span] = []
    at = 0
    for start, end in left:
        while at < len(right) and right[at][1] < start:
            at += 1
        if at < len(right) and right[at][0] <= end:
            found.append((start, end))
    return found


MAX_SPOTS = 300
"""Of one rule or detector in one view."""
_BEFORE_SENTENCE = b" \t\r\n.?:;,>\"'"
_FULL_STOP = "。".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """As a `Hit`, with its place in bytes of the view's folded text."""

    category: str
    severity: Severity
    rule: str
    message: str
    start: int
    end: int
    score: float


def without_flood(spots: Iterable[Spot], end: int) -> Iterator[Spot]:
    """The first of them; if there are more, one that reaches to `end` stands for all others.

    So a flood costs little, and still no attack behind it is left out of the report.
    """
    for count, spot in enumerate(spots, 1):
        if count > MAX_SPOTS:
            yield replace(spot, end=max(spot.end, end))
            return
        yield spot


def trim_spot(spot: Spot, data: bytes) -> Spot:
    """Without the end of the sentence before it, by which a pattern knew that a new one begins.

    What is found is taken out by sentences (GRD-3), and the one before has done nothing.
    """
    text = data[spot.start : spot.end]
    rest = text.lstrip(_BEFORE_SENTENCE).removeprefix(_FULL_STOP).lstrip(_BEFORE_SENTENCE)
    return replace(spot, start=spot.end - len(rest)) if rest else spot
