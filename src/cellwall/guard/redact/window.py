"""The sliding window over a stream: what leaves, what waits, what is kept as context (GRD-5).

1. Find known values, and where one may begin at the end.
2. Find keywords; the rules check the bytes behind them.
3. Merge overlapping spans.
4. Release everything before the first undecided position, with marks for the spans in it.
5. Keep as much of the released bytes as a rule looks back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cellwall.guard.redact.known import KnownValueSearch
from cellwall.parsing.credentials.known_values import PREFIX_BYTES
from cellwall.parsing.credentials.rule_set import SecretRules, is_within, scan_with_rules
from cellwall.parsing.credentials.shape_rules import LEAD_BYTES
from cellwall.parsing.credentials.spans import (
    KNOWN,
    MARK_BEGINNING,
    ScanContext,
    Span,
    ValueRun,
    mark,
    mark_zones,
    merged,
    unfinished_zone,
)

REMEMBERED_BYTES = 2 * LEAD_BYTES
"""Released bytes kept as context: as far as a rule looks back."""
_UNSEEN_BYTES = 64
"""At the start of the context: keywords there were checked before."""
_WORD_BYTES = 512
"""Of an incomplete word that is held while rules exist that may match before their keyword."""
_LINE_BYTES = 16 * 1024
_MANY = 1 << 40


@dataclass(frozen=True, slots=True)
class OutputPart:
    """Output of a window: original bytes, or a mark that replaces a secret.

    Positions are those of the stream.
    """

    start: int
    end: int
    data: bytes
    rule: str | None = None
    """Rule of the redacted secret."""
    is_covered: bool = False
    """Whether the data replaces bytes that do not leave."""


class Window:
    """`step` takes the next bytes and returns the output that can leave."""

    def __init__(self, rules: SecretRules, left: bytes = b"", at: int = 0) -> None:
        """`left`: bytes released before, up to position `at` of the stream."""
        self._rules = rules
        self._window = left
        """Released context, then the bytes that have not left."""
        self._base = at - len(left)
        """Position of the window in the stream."""
        self._done = len(left)
        """Bytes before this index have left, or a mark replaces them."""
        self._covered_until = 0
        """End of the last redacted span."""
        self._known_from = max(0, len(left) - PREFIX_BYTES + 1)
        self._gone: frozenset[int] = frozenset()
        """Ends of known values in the released bytes."""
        self._covering: tuple[tuple[ValueRun, int], ...] = ()
        """Runs of a secret longer than the limit, each with the position scanned so far."""
        self._covering_rule = ""
        self._undecided = _MANY
        """Start of the first undecided value. It may overlap redacted bytes."""

    @property
    def kept_bytes(self) -> int:
        return len(self._window)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held back."""
        return self._done == len(self._window) and not self._covering

    @property
    def remembered(self) -> bytes:
        """The last released bytes."""
        return self._window[max(0, self._done - REMEMBERED_BYTES) : self._done]

    @property
    def left(self) -> int:
        """Position in the stream up to which everything has left or is redacted."""
        return self._base + self._done

    def step(self, data: bytes, known: KnownValueSearch, *, is_final: bool) -> list[OutputPart]:
        """Output that can leave now; everything if `is_final`."""
        self._window += data
        found: list[Span] = []
        begun = len(self._window)
        if not known.is_empty:
            found, begun = known.find(self._window, self._known_from, is_final=is_final)  # (1)
        around = ScanContext(
            [span.start for span in found],
            self._gone.union(span.end for span in found),
            begun if begun < len(self._window) else _MANY,
            self._rules.words_of,
        )
        found = [*map(self._clip_released, found)]
        hold = self._look(found, around, known, is_final=is_final)  # (2)
        if self._covering:
            found.append(self._continue_covering())
        out = self._release(  # (3) and (4)
            merged(found), max(self._done, min(hold, begun)), is_final=is_final
        )
        taken = [span.end for span in found if span.weight == KNOWN and span.start < self._done]
        self._gone = self._gone.union(taken)
        known_from = min(self._done, begun) - PREFIX_BYTES + 1
        inside = [end - PREFIX_BYTES + 1 for end in taken]
        self._known_from = max([self._known_from, known_from, *inside])
        self._forget()  # (5)
        return out

    def _look(
        self, found: list[Span], around: ScanContext, known: KnownValueSearch, *, is_final: bool
    ) -> int:
        """Adds spans to `found`; returns the first position that must be held back."""
        window, rules = self._window, self._rules
        self._undecided = _MANY
        hold = len(window) if is_final else max(self._done, unfinished_zone(window))
        unseen = _UNSEEN_BYTES if self._base else 0
        zones: list[tuple[int, int]] = []
        if MARK_BEGINNING in window:  # the set of all names is larger than most chunks
            zones = mark_zones(window, known.names | rules.ids)
        for seen in scan_with_rules(
            rules, window, around, zones=zones, first=unseen, is_final=is_final
        ):
            if isinstance(seen, int):
                hold = min(hold, max(seen, self._done))
                self._undecided = min(self._undecided, seen)
            elif seen.end > self._done:
                found.append(seen)
        if rules.searches and not is_final:
            hold = min(hold, self._unfinished())
        for rule in rules.wordless:
            spans = rule.lines(window, self._line(), hold)
            found += (s for s in spans if s.end > self._done and not is_within(zones, s.start))
        return hold

    def _unfinished(self) -> int:
        """Start of the last word, or of the last line if a rule has no keywords."""
        if self._rules.wordless:
            return self._line(len(self._window))
        tail = self._window[max(self._done, len(self._window) - _WORD_BYTES) :]
        last = tail.split()[-1:] if tail and not tail[-1:].isspace() else []
        return len(self._window) - len(last[0]) if last else len(self._window)

    def _line(self, before: int | None = None) -> int:
        before = self._done if before is None else before
        return max(self._window.rfind(b"\n", 0, before) + 1, before - _LINE_BYTES, 0)

    def _continue_covering(self) -> Span:
        looked = [(run, *run.extent(self._window, place)) for run, place in self._covering]
        # It begins in released bytes: its mark has been written.
        return Span(
            self._done - 1,
            max(self._done, *(end for _, end, _ in looked)),
            self._covering_rule,
            is_long=True,
            goes_on=tuple((run, end) for run, end, state in looked if state == "open"),
        )

    def _clip_released(self, span: Span) -> Span:
        """A form of a value whose first two bytes have left: the third byte identifies it."""
        is_late = self._covered_until <= span.start < self._done
        return replace(span, start=self._done) if is_late else span

    def _release(self, spans: list[Span], hold: int, *, is_final: bool) -> list[OutputPart]:
        out: list[OutputPart] = []
        place = self._done
        self._covering = ()
        for span in spans:
            is_marked = span.start < self._done
            if not is_marked and (span.start >= hold or (not span.goes_on and span.end > hold)):
                hold = min(hold, span.start)
                break
            if span.end > place or span.goes_on:
                if span.start > place:
                    out.append(self._copy(place, span.start))
                out.append(self._replacement(place, span, is_marked=is_marked))
                place = max(place, span.end)
            if span.goes_on and not is_final:
                # The bytes that may end the value are held as well.
                self._covering, self._covering_rule = span.goes_on, span.rule
                hold = place
                break
        if place > self._done:
            self._covered_until = place
        self._done = max(place, min(hold, len(self._window)))
        if self._done > place:
            out.append(self._copy(place, self._done))
        return out

    def _copy(self, start: int, end: int) -> OutputPart:
        return OutputPart(self._base + start, self._base + end, self._window[start:end])

    def _replacement(self, place: int, span: Span, *, is_marked: bool) -> OutputPart:
        start, end = max(place, span.start), max(place, span.end)
        data, rule = (b"", None) if is_marked else (mark(span.rule), span.rule)
        return OutputPart(self._base + start, self._base + end, data, rule, is_covered=True)

    def _forget(self) -> None:
        keep = min(self._done, self._known_from, self._undecided)
        keep = min(keep, *(place for _, place in self._covering), _MANY)
        keep = max(0, keep - REMEMBERED_BYTES)
        if keep:
            self._window = self._window[keep:]
            self._base += keep
            self._done -= keep
            self._known_from -= keep
            self._covered_until -= keep
            self._undecided -= keep
            self._gone = frozenset(end - keep for end in self._gone if end > keep)
            self._covering = tuple((run, place - keep) for run, place in self._covering)
