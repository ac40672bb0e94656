"""The text pieces of a message, their positions, and the tricks found while parsing.

The limits for all channels are here: number of pieces, amount of text, number of hits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from cellwall.core.outcomes import Severity
from cellwall.guard.report import Hit


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionLimits:
    """Limits for one message."""

    max_pieces: int = 5_000
    """Text beyond the limit is collected in one further piece."""
    max_runs: int = 200_000
    max_characters: int = 32 << 20
    max_hits: int = 1_000


class SourceRun(NamedTuple):
    """`length` characters of a piece, from `at` on, were made from `start:end` of the message."""

    at: int
    length: int
    start: int
    end: int


_AT = attrgetter("at")


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that a model may see; `is_hidden` if a person who looks at the message does not."""

    text: str
    where: str
    is_hidden: bool
    runs: tuple[SourceRun, ...] = field(default=(), repr=False, compare=False)

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Source range of these characters; the whole run if it was encoded."""
        if not self.runs:
            return 0, 0
        first = self._run(start)
        last = self._run(max(start, end - 1))
        if first.length == first.end - first.start:
            begin = first.start + min(start - first.at, first.length)
        else:
            begin = first.start
        if last.length == last.end - last.start:
            stop = last.start + min(end - last.at, last.length)
        else:
            stop = last.end
        return min(begin, stop), max(begin, stop)

    def _run(self, at: int) -> SourceRun:
        return self.runs[max(0, bisect_right(self.runs, at, key=_AT) - 1)]


@dataclass(frozen=True, slots=True)
class Extracted:
    """All text of a message, and the tricks of its form. Spans refer to the message."""

    pieces: tuple[Piece, ...]
    hits: tuple[Hit, ...] = ()
    is_complete: bool = True
    """False if a limit was reached."""


@dataclass(slots=True)
class _PieceGroup:
    parts: list[str] = field(default_factory=list)
    runs: list[SourceRun] = field(default_factory=list)
    length: int = 0


def _continues(last: SourceRun, start: int, end: int, length: int) -> bool:
    """Whether a text continues the last run, both verbatim."""
    return last.end == start and end - start == length and last.end - last.start == last.length


Place = Callable[[int, int], tuple[int, int]]
_BEYOND = "further pieces"


class Gathering:
    """Collects pieces. Texts of one location and visibility form one piece, so that words spread
    over many elements are scanned together, as a model reads them."""

    def __init__(self, limits: ExtractionLimits = ExtractionLimits()) -> None:  # noqa: B008  # frozen
        self._limits = limits
        self._groups: dict[tuple[str, bool], _PieceGroup] = {}
        self._hits: list[Hit] = []
        self._left = limits.max_characters
        self._runs_left = limits.max_runs
        self.is_complete = True

    @property
    def is_full(self) -> bool:
        return self._left <= 0 or self._runs_left <= 0

    def add(
        self, text: str, where: str, start: int, end: int, *, is_hidden: bool, glue: str = "\n"
    ) -> None:
        """Add a text; `glue` separates it from the previous one."""
        if not text:
            return
        if self.is_full:
            self.is_complete = False
            return
        if len(text) > self._left:
            text = text[: self._left]
            self.is_complete = False
        group = self._group(where, is_hidden=is_hidden)
        if group.parts and glue:
            group.parts.append(glue)
            group.length += len(glue)
        else:
            glue = ""
        group.parts.append(text)
        last = group.runs[-1] if group.runs else None
        if last is not None and not glue and _continues(last, start, end, len(text)):
            group.runs[-1] = last._replace(length=last.length + len(text), end=end)
        else:
            group.runs.append(SourceRun(group.length, len(text), start, end))
            self._runs_left -= 1
        group.length += len(text)
        self._left -= len(text)

    def note(self, trick: str, start: int, end: int) -> None:
        """Record a trick of `TRICKS` at this position."""
        if len(self._hits) >= self._limits.max_hits:
            self.is_complete = False
            return
        kind = TRICKS[trick]
        self._hits.append(
            Hit(
                category=kind.category,
                severity=kind.severity,
                rule=f"channel.{trick}",
                message=kind.message,
                start=start,
                end=end,
                score=kind.score,
            )
        )

    def take(self, inner: Extracted, place: Place, *, prefix: str, is_hidden: bool) -> None:
        """Add all pieces and tricks of a nested message."""
        for piece in inner.pieces:
            start, end = place(*piece.span(0, len(piece.text)))
            where = f"{prefix} {piece.where}".strip()
            self.add(piece.text, where, start, end, is_hidden=is_hidden or piece.is_hidden)
        for hit in inner.hits:
            self.note(hit.rule.removeprefix("channel."), *place(hit.start, hit.end))
        self.is_complete = self.is_complete and inner.is_complete

    def result(self) -> Extracted:
        pieces = tuple(
            Piece("".join(group.parts), where, is_hidden, tuple(group.runs))
            for (where, is_hidden), group in self._groups.items()
        )
        return Extracted(pieces, tuple(self._hits), self.is_complete)

    def _group(self, where: str, *, is_hidden: bool) -> _PieceGroup:
        key = (where, is_hidden)
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= self._limits.max_pieces:
                key = (_BEYOND, is_hidden)
            group = self._groups.setdefault(key, _PieceGroup())
        return group


class Trick(NamedTuple):
    """Category, severity, score and message of a trick."""

    category: str
    severity: Severity
    score: float
    message: str


TRICKS: dict[str, Trick] = {
    "beacon-template": Trick(
        "beacon",
        "high",
        0.9,
        "an address that is loaded without asking has a place for data to be filled in",
    ),
    "beacon-text": Trick(
        "beacon", "medium", 0.6, "an address that is loaded without asking carries encoded text"
    ),
    # Signed and versioned addresses look the same, so this alone is no more than worth knowing.
    "beacon-opaque": Trick(
        "beacon", "low", 0.15, "an address that is loaded without asking carries opaque data"
    ),
    "link-template": Trick(
        "beacon", "medium", 0.6, "a link has a place for data of the conversation to be filled in"
    ),
    "link-text": Trick("beacon", "low", 0.2, "a link carries encoded text"),
    # People mail links through counters of clicks, so a difference alone is no attack.
    "link-disguised": Trick("hidden", "low", 0.3, "a link shows another address than it opens"),
    "link-unseen": Trick("hidden", "medium", 0.5, "a link stands on text that nobody sees"),
    "link-script": Trick("code-injection", "medium", 0.5, "an address runs code when it is opened"),
    "text-unseen": Trick(
        "hidden", "low", 0.2, "text is styled so that people do not see it and programs do"
    ),
    "mail-alternatives": Trick(
        "hidden", "low", 0.3, "the plain part of a mail says something else than its HTML part"
    ),
    "mail-reply-to": Trick(
        "hidden", "low", 0.2, "answers to a mail go to another domain than it came from"
    ),
    "mail-twice": Trick(
        "hidden", "low", 0.3, "a mail has a header twice, and programs differ in which one counts"
    ),
    "json-twice": Trick(
        "hidden", "low", 0.3, "a message has a key twice, and programs differ in which one counts"
    ),
}
"""`beacon`: data leaves by an address. `hidden`: what people see is not what is there."""
