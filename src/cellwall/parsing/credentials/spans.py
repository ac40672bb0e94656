"""Values and spans: the run of bytes that a value is made of, and the mark that replaces it.

A value is always the longest run of its bytes. So its end does not depend on how a stream is cut,
and nothing is tried twice. These expressions cannot backtrack: every byte is in one class or in
none.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

State = Literal["closed", "open", "capped"]
"""The end was seen; the run reaches the end of the data; the run exceeds the limit."""

_CLOSING_BYTES = 80


@dataclass(frozen=True, eq=False)
class ValueRun:
    """A run of bytes of some classes; for a PEM key, with its last line."""

    pattern: re.Pattern[bytes]
    closing: re.Pattern[bytes] | None = None
    has_escapes: bool = False
    """A backslash escapes the next byte, so the end depends on the start."""

    def extent(self, data: bytes, start: int, max_bytes: int | None = None) -> tuple[int, State]:
        """The end of the run from `start`, as far as the data shows."""
        limit = len(data) if max_bytes is None else min(len(data), start + max_bytes)
        match = self.pattern.match(data, start, limit)
        end = start if match is None else match.end()
        if limit < len(data) and (end == limit or (end == limit - 1 and data[end] == 0x5C)):
            return end, "capped"
        if self.closing is not None:
            return self._closed(data, start, end)
        is_cut_escape = end == len(data) - 1 and data[end] == 0x5C
        return end, "open" if end == len(data) or is_cut_escape else "closed"

    def _closed(self, data: bytes, start: int, end: int) -> tuple[int, State]:
        if end == len(data):
            # A final hyphen may be the first of those that begin the closing line.
            return max(start, end - (data[end - 1 : end] == b"-")), "open"
        if self.closing is not None and (match := self.closing.match(data, end)):
            return match.end(), "closed"
        rest = data[end : end + _CLOSING_BYTES]
        may_close = rest.startswith(b"-") and b"\n" not in rest and len(rest) < _CLOSING_BYTES
        return end, "open" if may_close else "closed"


class Extents:
    """The ends of runs in one window. Each byte is read at most once for each kind of run.

    Every keyword of a text may begin a secret that exceeds the limit (`xoxb-1-xoxb-1-…`). All of
    them have the same end, which is searched for once: otherwise the work would be quadratic.
    """

    def __init__(self) -> None:
        self._ends: dict[ValueRun, tuple[int, int, State]] = {}

    def end(self, run: ValueRun, data: bytes, start: int) -> tuple[int, State]:
        """As `ValueRun.extent` without a limit."""
        if run.has_escapes:
            # Equal quotes are never nested: one would end the other.
            return run.extent(data, start)
        first, last, state = self._ends.get(run, (0, -1, "closed"))
        if start < first:
            reached, before = run.extent(data, start, first - start)
            if before != "capped":
                return reached, before
            first = start
        elif start > last:
            first = start
            last, state = run.extent(data, start)
        self._ends[run] = (first, last, state)
        return max(start, last), state


def _run_of(inside: bytes) -> ValueRun:
    return ValueRun(re.compile(b"[%s]*" % inside))


def quoted(mark: bytes) -> ValueRun:
    """The text between two quotes, on one line."""
    inside = b"[^%s\\\\\r\n]*" % mark
    return ValueRun(re.compile(b"%s(?:\\\\[^\r\n]%s)*" % (inside, inside)), has_escapes=True)


_KEY_LINES = rb"[A-Za-z0-9+/=\s\\\"'`,;:.()#>|%&]*"

RUNS = {
    "word": _run_of(rb"A-Za-z0-9_\-"),
    "dotted": _run_of(rb"A-Za-z0-9_.\-"),
    "base64": _run_of(rb"A-Za-z0-9+/="),
    "base64_slashes": ValueRun(re.compile(rb"(?:[A-Za-z0-9+/=]|\\{1,3}/)*")),
    "base64url": _run_of(rb"A-Za-z0-9+/=_\-"),
    "query": _run_of(rb"A-Za-z0-9%+/_.~=\-"),
    "path": _run_of(rb"A-Za-z0-9_/@.%\-"),
    "colons": _run_of(rb"A-Za-z0-9:"),
    "dollars": _run_of(rb"A-Za-z0-9$"),
    "bang": _run_of(rb"A-Za-z0-9!._"),
    "bearer": _run_of(rb"A-Za-z0-9._~+/=\-"),
    "userinfo": _run_of(rb"^\s/?#\"'<>\\`"),
    "crypt": _run_of(rb"A-Za-z0-9./$=,+*@_:\-"),
    "argument": _run_of(rb"^\s\"'`"),
    "option": _run_of(rb"^\s;\"'&"),
    "lines64": _run_of(rb"A-Za-z0-9+/=\s"),
    "pem": ValueRun(
        re.compile(rb"%s(?:-(?!-)%s)*" % (_KEY_LINES, _KEY_LINES)),
        re.compile(rb"-----END [^\r\n-]{0,60}-----"),
    ),
}
"""By the name in the rules."""


_MARKED = re.compile(rb"\[redacted:([A-Za-z0-9 _-]{1,80})\]")
_LEASED = re.compile(rb"hfsecret_[a-z0-9_]{1,64}?_[a-z2-7]{26}(?=hfsecret_|[^a-z0-9_]|\Z)")
_UNFINISHED = re.compile(rb"(?:\[redacted:[A-Za-z0-9 _-]{0,80}|hfsecret_[a-z0-9_]{0,91})$")
_MARK_ENDS = re.compile(rb"\[redacted:([A-Za-z0-9 _-]{1,80})\]$")
_MARK_BYTES = 100
_NOT_IN_MARK = re.compile(r"[^A-Za-z0-9 _-]")
MARK_BEGINNING = b"[redacted:"

NAMED, SHAPED, KNOWN = 0, 1, 2
"""The evidence for a secret: its name, its shape, its value; later ones win."""


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
    """Facts about a text before shapes and names are checked."""

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
        match = _MARK_ENDS.search(data, max(0, place - _MARK_BYTES), place)
        return match is not None and self.words.get(match[1].decode()) == ()

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
    return _NOT_IN_MARK.sub("_", name)[:70]


def mark(rule: str) -> bytes:
    """The mark that replaces a secret."""
    return b"[redacted:%s]" % rule.encode()


def mark_zones(data: bytes, names: Container[str]) -> list[tuple[int, int]]:
    """Positions of marks: keywords in them are ignored, so that redaction is idempotent.

    Only complete marks that this redactor writes. Any other could be forged around a secret.
    """
    if MARK_BEGINNING not in data:
        return []
    return [match.span() for match in _MARKED.finditer(data) if match[1].decode() in names]


def placeholder_zones(data: bytes) -> list[tuple[int, int]]:
    """Positions of placeholders of leased secrets: code needs them, so they are kept."""
    return [match.span() for match in _LEASED.finditer(data)] if b"hfsecret_" in data else []


def unfinished_zone(data: bytes) -> int:
    """Start of an incomplete mark or placeholder at the end of the data; else the end."""
    match = _UNFINISHED.search(data, max(0, len(data) - _MARK_BYTES))
    return len(data) if match is None else match.start()


def mark_name(data: bytes, place: int) -> str | None:
    """The name in the mark that begins here, if any."""
    match = _MARKED.match(data, place)
    return None if match is None else match[1].decode()


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
    merged_spans: list[Span] = []
    for span in sorted(spans, key=lambda each: (each.start, -each.end)):
        last = merged_spans[-1] if merged_spans else None
        if last is None or span.start >= last.end:
            merged_spans.append(span)
            continue
        is_mark_written = last.is_long and span.start > last.start
        named = span if span.weight > last.weight and not is_mark_written else last
        merged_spans[-1] = Span(
            start=last.start,
            end=max(last.end, span.end),
            rule=named.rule,
            weight=named.weight,
            is_long=last.is_long or span.is_long,
            # Where one ends the other may continue, as a token that begins with another.
            goes_on=tuple(dict.fromkeys(last.goes_on + span.goes_on)),
        )
    return merged_spans
