"""What is taken out of a text: from where to where, and what is told in its place."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cellwall.parsing.credentials.value_runs import Extents, ValueRun

_MARKED = re.compile(rb"\[redacted:([A-Za-z0-9 _-]{1,80})\]")
_LENT = re.compile(rb"hfsecret_[a-z0-9_]{1,64}?_[a-z2-7]{26}(?=hfsecret_|[^a-z0-9_]|\Z)")
_UNFINISHED = re.compile(rb"(?:\[redacted:[A-Za-z0-9 _-]{0,80}|hfsecret_[a-z0-9_]{0,91})$")
_MARK_ENDS = re.compile(rb"\[redacted:([A-Za-z0-9 _-]{1,80})\]$")
_MARK_BYTES = 100
_NOT_TOLD = re.compile(r"[^A-Za-z0-9 _-]")
MARK_BEGINNING = b"[redacted:"

NAMED, SHAPED, KNOWN = 0, 1, 2
"""How much is known of a secret: its name, its shape, its value."""


@dataclass(frozen=True, slots=True)
class SecretHit:
    """A secret that was taken out. It names the rule, never the value."""

    rule: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a window that has to go."""

    start: int
    end: int
    rule: str
    weight: int = SHAPED
    is_long: bool = False
    """Longer than was waited for; its mark may have been told before its end was seen."""
    goes_on: tuple[tuple[ValueRun, int], ...] = ()
    """Its end is not seen yet: all that belongs to one of these runs goes too. Each with the place
    up to which it was looked at."""


@dataclass(frozen=True, slots=True)
class ScanContext:
    """What is known of a text before its shapes and names are looked at."""

    starts: Sequence[int] = ()
    """Where known values begin, in order."""
    ends: frozenset[int] = frozenset()
    begun: int = 1 << 62
    """From here on a known value may have begun."""
    words: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)
    """By the name in a mark: one of these stood before what the mark stands for."""
    extents: Extents = field(default_factory=Extents)
    named: set[int] = field(default_factory=set)
    """Where values begin that are secrets by their name: `api_key=` holds two words that say so."""
    is_strict: bool = False
    """What may be a placeholder or a name by chance goes, too: for a record, where nobody misses
    it, and where it stays for years."""

    def cut(self, data: bytes, start: int, stop: int) -> int:
        """Where the first known value or mark begins in a run, else its end.

        A value may be followed by another secret without a border. What stands before that one is
        judged by itself too, so that it is judged the same when the other has become a mark.
        """
        if not self.starts and MARK_BEGINNING not in data[start:stop]:
            return stop
        number = bisect_right(self.starts, start)
        cut = self.starts[number] if number < len(self.starts) else stop
        marked = data.find(MARK_BEGINNING, start + 1, stop)
        if marked < 0 or self.is_left_over(data, start, marked):
            marked = stop
        return min(cut, stop, marked)

    def goes_on(self, data: bytes, place: int) -> bool:
        """Whether what stands before is a mark that may have been put into the middle of a word.

        Only rules of users find such parts. All others end where words do.
        """
        found = _MARK_ENDS.search(data, max(0, place - _MARK_BYTES), place)
        return found is not None and self.words.get(found[1].decode()) == ()

    def is_left_over(self, data: bytes, start: int, stop: int) -> bool:
        """Whether it is what introduced a secret that is a mark by now.

        It holds a word of that rule then. Else a mark that anybody has written behind a secret
        would protect it.
        """
        name = mark_name(data, stop) if data.startswith(MARK_BEGINNING, stop) else None
        words = None if name is None else self.words.get(name)
        if words is None:
            return False
        value = data[start:stop].lower()
        return not words or any(word in value for word in words)

    def long_span(
        self, data: bytes, start: int, stop: int, rule: str, run: ValueRun, weight: int = SHAPED
    ) -> Span:
        """What begins like a secret and is longer than was waited for goes up to its end."""
        end, state = self.extents.end(run, data, stop)
        goes_on = ((run, end),) if state == "open" else ()
        return Span(start, end, rule, weight, is_long=True, goes_on=goes_on)


def sanitise_name(name: str) -> str:
    """A name as it can stand in a mark."""
    return _NOT_TOLD.sub("_", name)[:70]


def mark(rule: str) -> bytes:
    """What stands in the place of a secret."""
    return b"[redacted:%s]" % rule.encode()


def mark_zones(data: bytes, names: Container[str]) -> list[tuple[int, int]]:
    """Where marks stand: their words name nothing, or what is clean would not stay so.

    Only whole ones that this redactor writes. Any other could be written around a secret.
    """
    if MARK_BEGINNING not in data:
        return []
    return [found.span() for found in _MARKED.finditer(data) if found[1].decode() in names]


def placeholder_zones(data: bytes) -> list[tuple[int, int]]:
    """Where placeholders of lent secrets stand: their names name nothing, and code needs them."""
    return [found.span() for found in _LENT.finditer(data)] if b"hfsecret_" in data else []


def unfinished_zone(data: bytes) -> int:
    """Where a mark or a placeholder may have begun that the data ends in; else its end."""
    found = _UNFINISHED.search(data, max(0, len(data) - _MARK_BYTES))
    return len(data) if found is None else found.start()


def mark_name(data: bytes, place: int) -> str | None:
    """The name in the mark that begins here, if one does."""
    found = _MARKED.match(data, place)
    return None if found is None else found[1].decode()


def is_mark_cut(data: bytes, place: int) -> bool:
    """Whether the data ends within what may be a mark. A value that touches one is let be."""
    rest = data[place : place + len(MARK_BEGINNING)]
    return len(rest) < len(MARK_BEGINNING) and MARK_BEGINNING.startswith(rest)


def before(data: bytes, place: int, max_bytes: int) -> bytes:
    """What stands before a place. A mark counts as a letter: a secret was there, and no border."""
    if data[place - 1 : place] == b"]" and _MARK_ENDS.search(
        data[max(0, place - _MARK_BYTES) : place]
    ):
        return b"x"
    return data[max(0, place - max_bytes) : place]


def merged(spans: Iterable[Span]) -> list[Span]:
    """From left to right without overlaps; parts of each other become one.

    Who knows most gives the name. Not if it stands behind the beginning of a run that was too long
    to wait for: its name has been told already.
    """
    found: list[Span] = []
    for span in sorted(spans, key=lambda each: (each.start, -each.end)):
        last = found[-1] if found else None
        if last is None or span.start >= last.end:
            found.append(span)
            continue
        is_told = last.is_long and span.start > last.start
        named = span if span.weight > last.weight and not is_told else last
        found[-1] = Span(
            start=last.start,
            end=max(last.end, span.end),
            rule=named.rule,
            weight=named.weight,
            is_long=last.is_long or span.is_long,
            # Where one of them ends the other may go on, as a token does that another begins with.
            goes_on=tuple(dict.fromkeys(last.goes_on + span.goes_on)),
        )
    return found
