"""Spans to redact, the marks that replace them, and the context of a scan."""

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
"""What identified a secret: its name, its shape, its value; later ones win."""


@dataclass(frozen=True, slots=True)
class SecretHit:
    """A redacted secret: the rule and the position, never the value."""

    rule: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a window to redact."""

    start: int
    end: int
    rule: str
    weight: int = SHAPED
    is_long: bool = False
    """Longer than the limit; its mark may have been written before its end was seen."""
    goes_on: tuple[tuple[ValueRun, int], ...] = ()
    """Runs that continue beyond the data and are redacted as well, each with the position scanned
    so far."""


@dataclass(frozen=True, slots=True)
class ScanContext:
    """What is known about a text before shapes and names are checked."""

    starts: Sequence[int] = ()
    """Starts of known values, in order."""
    ends: frozenset[int] = frozenset()
    begun: int = 1 << 62
    """From here on a known value may begin."""
    words: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)
    """By the name in a mark: the keywords of its rule, one of which precedes the redacted value."""
    extents: Extents = field(default_factory=Extents)
    named: set[int] = field(default_factory=set)
    """Starts of values found by name: `api_key=` contains two keywords for one value."""
    is_strict: bool = False
    """Redact possible placeholders and chance matches too: for the record, which is kept for years
    and does not need them."""

    def cut(self, data: bytes, start: int, stop: int) -> int:
        """Start of the first known value or mark in a run, else the end of the run.

        Another secret may follow a value without a border. The part before it is judged by itself
        too, so that the result is the same once the other secret has become a mark.
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
        """Whether a mark that may be in the middle of a word precedes this position.

        Only user rules match inside words. All others end at word borders.
        """
        found = _MARK_ENDS.search(data, max(0, place - _MARK_BYTES), place)
        return found is not None and self.words.get(found[1].decode()) == ()

    def is_left_over(self, data: bytes, start: int, stop: int) -> bool:
        """Whether the value is the introduction of a secret that is a mark by now.

        It then contains a keyword of that rule. Without this check, a forged mark behind a secret
        would protect the secret.
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
        """A value that begins like a secret and exceeds the limit is redacted up to its end."""
        end, state = self.extents.end(run, data, stop)
        goes_on = ((run, end),) if state == "open" else ()
        return Span(start, end, rule, weight, is_long=True, goes_on=goes_on)


def sanitise_name(name: str) -> str:
    """A name as it may appear in a mark."""
    return _NOT_TOLD.sub("_", name)[:70]


def mark(rule: str) -> bytes:
    """The mark that replaces a secret."""
    return b"[redacted:%s]" % rule.encode()


def mark_zones(data: bytes, names: Container[str]) -> list[tuple[int, int]]:
    """Positions of marks: keywords in them are ignored, so that redaction is idempotent.

    Only complete marks that this redactor writes. Any other could be forged around a secret.
    """
    if MARK_BEGINNING not in data:
        return []
    return [found.span() for found in _MARKED.finditer(data) if found[1].decode() in names]


def placeholder_zones(data: bytes) -> list[tuple[int, int]]:
    """Positions of placeholders of leased secrets: code needs them, so they are kept."""
    return [found.span() for found in _LENT.finditer(data)] if b"hfsecret_" in data else []


def unfinished_zone(data: bytes) -> int:
    """Start of an incomplete mark or placeholder at the end of the data; else the end."""
    found = _UNFINISHED.search(data, max(0, len(data) - _MARK_BYTES))
    return len(data) if found is None else found.start()


def mark_name(data: bytes, place: int) -> str | None:
    """The name in the mark that begins here, if any."""
    found = _MARKED.match(data, place)
    return None if found is None else found[1].decode()


def is_mark_cut(data: bytes, place: int) -> bool:
    """Whether the data ends within a possible mark. A value that touches a mark is left alone."""
    rest = data[place : place + len(MARK_BEGINNING)]
    return len(rest) < len(MARK_BEGINNING) and MARK_BEGINNING.startswith(rest)


def before(data: bytes, place: int, max_bytes: int) -> bytes:
    """The bytes before a position. A mark counts as a letter: a secret was there, not a border."""
    if data[place - 1 : place] == b"]" and _MARK_ENDS.search(
        data[max(0, place - _MARK_BYTES) : place]
    ):
        return b"x"
    return data[max(0, place - max_bytes) : place]


def merged(spans: Iterable[Span]) -> list[Span]:
    """Spans in order without overlaps; overlapping spans are merged.

    The strongest evidence gives the name, unless it lies behind the start of a run that exceeded
    the limit: the mark of that run has been written already.
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
            # Where one ends the other may continue, as a token that begins with another.
            goes_on=tuple(dict.fromkeys(last.goes_on + span.goes_on)),
        )
    return found
