"""Rules that search with a regular expression around their keywords, as users bring them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from cellwall.parsing.credentials.entropy import shannon
from cellwall.parsing.credentials.spans import MARK_BEGINNING, ScanContext, Span
from cellwall.parsing.matching import Pattern

Target = Literal["secret", "match", "line"]

_LINE_BYTES = 4096
"""Bytes of the line before and after the secret that an allowlist sees."""
_BACK_BYTES = 512
AHEAD_BYTES = 4096
_NEAR_BYTES = 1024
_LINES = 3
"""Lines that a rule sees from its keyword on, unless its expression spans lines."""


class GroupedPattern(Pattern):
    """An expression whose matches include their groups."""

    @property
    def instructions(self) -> int:
        return int(self._compiled.programsize)

    @property
    def groups(self) -> int:
        return int(self._compiled.groups)

    def grouped_spans(self, data: bytes) -> Iterator[tuple[tuple[int, int], ...]]:
        """The spans of each match and of its groups; (-1, -1) for a group without a match."""
        numbers = range(self.groups + 1)
        for match in self._compiled.finditer(data):
            spans = tuple(match.span(number) for number in numbers)
            if spans[0][1] > spans[0][0]:
                yield spans


@dataclass(frozen=True)
class Allow:
    """An allowlist: matches of a rule that are not secrets."""

    patterns: tuple[Pattern, ...] = ()
    stopwords: tuple[bytes, ...] = ()
    target: Target = "secret"
    needs_all: bool = False
    needs_path: bool = False
    rules: tuple[str, ...] = ()
    """Ids of the rules it applies to; empty for all."""

    def allows(self, secret: bytes, match: bytes, line: bytes) -> bool:
        text = {"secret": secret, "match": match, "line": line}[self.target]
        small = secret.lower()
        verdicts: list[bool] = []
        if self.patterns:
            verdicts.append(any(pattern.matches(text) for pattern in self.patterns))
        if self.stopwords:
            verdicts.append(any(word in small for word in self.stopwords))
        if self.needs_all:
            return bool(verdicts) and all(verdicts) and not self.needs_path
        return any(verdicts)


@dataclass(frozen=True)
class SearchRule:
    """An expression that is searched for around its keywords."""

    id: str
    words: tuple[bytes, ...]
    pattern: GroupedPattern
    group: int = 0
    min_entropy: float = 0.0
    allows: tuple[Allow, ...] = ()
    ahead_bytes: int = AHEAD_BYTES
    reads_over_lines: bool = False

    def has_seen(self, data: bytes, last: int | None, start: int) -> bool:
        """Whether the search at the previous keyword covered this one.

        Without it, a text of nothing but keywords would be searched once for each.
        """
        if last is None or start - last > _NEAR_BYTES:
            return False
        return self.reads_over_lines or data.find(b"\n", last, start) < 0

    def look(
        self,
        data: bytes,
        start: int,
        end: int,
        *,
        is_final: bool,
        around: ScanContext,  # noqa: ARG002  # the signature of all rules; these have their own borders
    ) -> Iterator[int | Span]:
        """Positions to hold back and spans to redact, around the keyword at `start`."""
        stop = self._stop(data, end)
        if stop is None:
            if not is_final:
                # The secret may include the keyword and the text directly before it.
                yield _before_word(data, start)
                return
            stop = len(data)
        ahead = max(0, start - _BACK_BYTES)
        first = max(data.rfind(b"\n", ahead, start) + 1, ahead)
        yield from self._spans(data, first, stop)

    def lines(self, data: bytes, start: int, stop: int) -> Iterator[Span]:
        """Spans in whole lines, for a rule without keywords."""
        yield from self._spans(data, start, stop)

    def _stop(self, data: bytes, end: int) -> int | None:
        stop = end
        for _ in range(0 if self.reads_over_lines else _LINES):
            line_end = data.find(b"\n", stop, end + self.ahead_bytes)
            if line_end < 0:
                break
            stop = line_end + 1
        else:
            if not self.reads_over_lines:
                return stop
        return end + self.ahead_bytes if len(data) >= end + self.ahead_bytes else None

    def _spans(self, data: bytes, first: int, stop: int) -> Iterator[Span]:
        part = data[first:stop]
        for match, *groups in self.pattern.grouped_spans(part):
            span = self._secret(match, groups)
            secret = part[slice(*span)]
            if self.min_entropy and shannon(secret) <= self.min_entropy:
                continue
            if MARK_BEGINNING in secret or self._is_allowed(part, match, span):
                continue
            yield Span(first + span[0], first + span[1], self.id)

    def _secret(self, match: tuple[int, int], groups: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """The configured group; else the first group that is not empty; else the whole match."""
        wanted = groups[self.group - 1 : self.group] if self.group else groups
        return next((span for span in wanted if 0 <= span[0] < span[1]), match)

    def _is_allowed(self, part: bytes, match: tuple[int, int], span: tuple[int, int]) -> bool:
        if not self.allows:
            return False
        # Bounded: in a text of one line this would be the whole text for each match.
        ahead, behind = max(0, span[0] - _LINE_BYTES), span[1] + _LINE_BYTES
        first = part.rfind(b"\n", ahead, span[0])
        last = part.find(b"\n", span[0], behind)
        line = part[first + 1 if first >= 0 else ahead : last if last >= 0 else behind]
        secret, whole = part[slice(*span)], part[slice(*match)]
        return any(allow.allows(secret, whole, line) for allow in self.allows)


def _before_word(data: bytes, start: int) -> int:
    first = max(0, start - _BACK_BYTES)
    while start > first and not data[start - 1 : start].isspace():
        start -= 1
    return start
