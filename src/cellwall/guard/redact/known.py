"""Finds known values (of the vault) in any encoding, by `credentials.known_values`.

Values of MIN_BYTES and more are found anywhere, in every form of `known_forms` and as shells
and dumps print them (`printed`). Shorter ones, down to six bytes, are found only verbatim and as
whole words: inside other words they occur by chance. Still shorter values are not searched for, nor
is the text that redaction marks begin with.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from cellwall.guard.redact.printed import PrintedValues
from cellwall.parsing.credentials.known_forms import (
    MIN_BYTES,
)
from cellwall.parsing.credentials.known_values import (
    PREFIX_BYTES,
    AnchorIndex,
    KnownValueMatches,
    PrefixIndex,
)
from cellwall.parsing.credentials.spans import (
    KNOWN,
    MARK_BEGINNING,
    Span,
    before,
    is_mark_cut,
    mark,
    merged,
    sanitise_name,
)

_MIN_BYTES = 6
_WORD = re.compile(rb"[A-Za-z0-9_]")


class KnownValueSearch:
    """Compiled once for a set of values; shared by all texts and streams."""

    def __init__(self, values: Iterable[tuple[str, bytes]], *, marks: Iterable[str] = ()) -> None:
        pairs = [
            (sanitise_name(name), bytes(value))
            for name, value in values
            if len(value) >= _MIN_BYTES and bytes(value) not in MARK_BEGINNING
        ]
        self._anchors = AnchorIndex(pair for pair in pairs if len(pair[1]) >= MIN_BYTES)
        self._beginnings = PrefixIndex(self._anchors)
        self._printed = PrintedValues(pairs)
        short = [(name, value) for name, value in pairs if len(value) < MIN_BYTES]
        self._short = {value: name for name, value in short}
        self._words = _words(self._short) if short else None
        written_marks = [mark(rule) for rule in (*marks, *(f"secret {name}" for name, _ in pairs))]
        # Marks that contain a known value themselves; these are left whole.
        self._marks = frozenset(each for each in written_marks if self._stands_in(each))
        self.names = frozenset(f"secret {name}" for name, _ in pairs)
        """Names as they appear in marks."""
        self.is_empty = not pairs

    def find(self, data: bytes, start: int, *, is_final: bool) -> tuple[list[Span], int]:
        """Values that begin at or after `start`, and where one may begin at the end."""
        begun = len(data) if is_final else self._begun(data, start)
        found: list[Span] = []
        for first, last, name in chain(self._matches(data, start), self._free_words(data, start)):
            if first >= begun:
                continue
            found.append(Span(first, last, f"secret {name}", KNOWN))
            # A value that begins with the last bytes of a complete one is recognised by its third
            # byte, after these have left (`Window`).
            if last > begun > len(data) - PREFIX_BYTES:
                begun = self._begun(data, last)
        found = [span for span in found if not self._is_in_mark(data, span.start, span.end)]
        printed, printed_begun = self._printed.find(data, start, is_final=is_final)
        found += (span for span in printed if not self._is_in_mark(data, span.start, span.end))
        return merged(found), min(begun, printed_begun)

    def _matches(self, data: bytes, start: int) -> Iterator[tuple[int, int, str]]:
        matches, place = KnownValueMatches(self._anchors, data[start:]), 0
        while (match := matches.first(place)) is not None:
            first, place, name = match
            yield start + first, start + place, name

    def _free_words(self, data: bytes, start: int) -> Iterator[tuple[int, int, str]]:
        """Short values that touch no mark: where a secret was, there is no word border."""
        for word in self._words.finditer(data, start) if self._words is not None else ():
            if not data.startswith(MARK_BEGINNING, word.end()) and _is_free(data, word.start()):
                yield word.start(), word.end(), self._short[word[0]]

    def _begun(self, data: bytes, start: int) -> int:
        begun = self._beginnings.prefix_start(data, start)
        # The byte after a short value decides, so a complete value is held back.
        for value in self._short:
            for length in range(1, len(value) + 1):
                place = len(data) - length
                if place >= start and data.endswith(value[:length]) and _is_free(data, place):
                    begun = min(begun, place)
            # A mark that follows may be incomplete.
            place = data.rfind(value, max(start, len(data) - len(value) - len(MARK_BEGINNING)))
            if place >= 0 and _is_free(data, place) and is_mark_cut(data, place + len(value)):
                begun = min(begun, place)
        for each in self._marks:
            for length in range(1, len(each)):
                if len(data) - length >= start and data.endswith(each[:length]):
                    begun = min(begun, len(data) - length)
        return begun

    def _is_in_mark(self, data: bytes, start: int, end: int) -> bool:
        for each in self._marks:
            place = data.find(each, max(0, end - len(each)), start + len(each))
            if 0 <= place <= start and end <= place + len(each):
                return True
        return False

    def _stands_in(self, text: bytes) -> bool:
        if self._words is not None and self._words.search(text):
            return True
        return KnownValueMatches(self._anchors, text).first(0) is not None


def _words(values: Mapping[bytes, str]) -> re.Pattern[bytes]:
    def bordered(value: bytes) -> bytes:
        before = rb"(?<![A-Za-z0-9_])" if _WORD.match(value[:1]) else b""
        after = rb"(?![A-Za-z0-9_])" if _WORD.match(value[-1:]) else b""
        return before + re.escape(value) + after

    return re.compile(b"|".join(map(bordered, sorted(values, key=len, reverse=True))))


def _is_free(data: bytes, place: int) -> bool:
    stands = before(data, place, 1)
    return not (_WORD.match(stands) and _WORD.match(data[place : place + 1]))
