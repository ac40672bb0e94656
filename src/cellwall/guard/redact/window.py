"""The part of a stream that is looked at: what leaves it, what waits, what is remembered (GRD-5).

1. Known values are found, and where one may have begun.
2. Words are found in the window, and rules look at what stands behind them.
3. What overlaps becomes one span.
4. What is before the first thing to wait for leaves, with marks for the spans in it.
5. Of what has left as much is remembered as a rule looks back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cellwall.guard.redact.known import KnownValues
from cellwall.parsing.credentials.known.matcher import BEGINNING_BYTES
from cellwall.parsing.credentials.rule_set import SecretRules, is_within, looks
from cellwall.parsing.credentials.shape_rules import LEAD_BYTES
from cellwall.parsing.credentials.spans import (
    KNOWN,
    Around,
    Span,
    mark,
    marked_zones,
    merged,
    unfinished_zone,
)
from cellwall.parsing.credentials.value_runs import Run

REMEMBERED_BYTES = 2 * LEAD_BYTES
"""Of what has left: as far as a rule looks back."""
_UNSEEN_BYTES = 64
"""At the beginning of what is remembered: words there have had their look."""
_WORD_BYTES = 512
"""Of an unfinished word that is held while rules are loaded that may begin before their words."""
_LINE_BYTES = 16 * 1024
_MANY = 1 << 40


@dataclass(frozen=True, slots=True)
class Part:
    """What leaves a window: bytes as they came, or what stands for a secret; one after the other.

    Places are the stream's.
    """

    start: int
    end: int
    data: bytes
    rule: str | None = None
    """Of the secret whose mark this is."""
    is_covered: bool = False
    """It stands for what does not leave."""


class Window:
    """`step` takes the next bytes and gives what can leave."""

    def __init__(self, rules: SecretRules, left: bytes = b"", at: int = 0) -> None:
        """`left`: what has left before it, up to the place `at` of the stream."""
        self._rules = rules
        self._window = left
        """What has left before, as far as rules look back, and what has not."""
        self._base = at - len(left)
        """Where the window stands in the stream."""
        self._done = len(left)
        """What is before this in the window has left, or is covered by a mark that has."""
        self._covered_until = 0
        """What is before this and has not left as it was is covered by a mark."""
        self._known_from = max(0, len(left) - BEGINNING_BYTES + 1)
        self._gone: frozenset[int] = frozenset()
        """Where known values ended in what has left."""
        self._covering: tuple[tuple[Run, int], ...] = ()
        """A secret that was too long to wait for: what it is made of, and looked at up to where."""
        self._covering_rule = ""
        self._undecided = _MANY
        """Where something has begun of which it is not known yet whether it is a secret. It may lie
        in what is covered, and reach beyond it."""

    @property
    def kept_bytes(self) -> int:
        return len(self._window)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits."""
        return self._done == len(self._window) and not self._covering

    @property
    def remembered(self) -> bytes:
        """The last of what has left."""
        return self._window[max(0, self._done - REMEMBERED_BYTES) : self._done]

    @property
    def left(self) -> int:
        """Up to this place of the stream all has left or is covered."""
        return self._base + self._done

    def step(self, data: bytes, known: KnownValues, *, is_final: bool) -> list[Part]:
        """What can leave now; all that is left if nothing follows."""
        self._window += data
        found: list[Span] = []
        begun = len(self._window)
        if not known.is_empty:
            found, begun = known.find(self._window, self._known_from, is_final=is_final)  # (1)
        around = Around(
            [span.start for span in found],
            self._gone.union(span.end for span in found),
            begun if begun < len(self._window) else _MANY,
            self._rules.words_of,
        )
        found = [*map(self._seen_late, found)]
        names = known.names | self._rules.ids
        hold = self._look(found, around, names, is_final=is_final)  # (2)
        if self._covering:
            found.append(self._covered())
        out = self._leave(  # (3) and (4)
            merged(found), max(self._done, min(hold, begun)), is_final=is_final
        )
        taken = [span.end for span in found if span.weight == KNOWN and span.start < self._done]
        self._gone = self._gone.union(taken)
        known_from = min(self._done, begun) - BEGINNING_BYTES + 1
        inside = [end - BEGINNING_BYTES + 1 for end in taken]
        self._known_from = max([self._known_from, known_from, *inside])
        self._forget()  # (5)
        return out

    def _look(
        self, found: list[Span], around: Around, names: frozenset[str], *, is_final: bool
    ) -> int:
        """Adds what goes; gives the first place from which on there is something to wait for."""
        window, rules = self._window, self._rules
        self._undecided = _MANY
        hold = len(window) if is_final else max(self._done, unfinished_zone(window))
        unseen = _UNSEEN_BYTES if self._base else 0
        zones = marked_zones(window, names)
        for seen in looks(rules, window, around, zones=zones, first=unseen, is_final=is_final):
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
        """Where the last word begins, or the last line where any line may hold a secret."""
        if self._rules.wordless:
            return self._line(len(self._window))
        tail = self._window[max(self._done, len(self._window) - _WORD_BYTES) :]
        last = tail.split()[-1:] if tail and not tail[-1:].isspace() else []
        return len(self._window) - len(last[0]) if last else len(self._window)

    def _line(self, before: int | None = None) -> int:
        before = self._done if before is None else before
        return max(self._window.rfind(b"\n", 0, before) + 1, before - _LINE_BYTES, 0)

    def _covered(self) -> Span:
        looked = [(run, *run.extent(self._window, place)) for run, place in self._covering]
        # It begins in what has left: its mark is told.
        return Span(
            self._done - 1,
            max(self._done, *(end for _, end, _ in looked)),
            self._covering_rule,
            is_long=True,
            goes_on=tuple((run, end) for run, end, state in looked if state == "open"),
        )

    def _seen_late(self, span: Span) -> Span:
        """A form of a value whose first two bytes have left: it is known by its third."""
        is_late = self._covered_until <= span.start < self._done
        return replace(span, start=self._done) if is_late else span

    def _leave(self, spans: list[Span], hold: int, *, is_final: bool) -> list[Part]:
        out: list[Part] = []
        place = self._done
        self._covering = ()
        for span in spans:
            is_told = span.start < self._done
            if not is_told and (span.start >= hold or (not span.goes_on and span.end > hold)):
                hold = min(hold, span.start)
                break
            if span.end > place or span.goes_on:
                if span.start > place:
                    out.append(self._as_it_came(place, span.start))
                out.append(self._instead(place, span, is_told=is_told))
                place = max(place, span.end)
            if span.goes_on and not is_final:
                # What may close it waits with it.
                self._covering, self._covering_rule = span.goes_on, span.rule
                hold = place
                break
        if place > self._done:
            self._covered_until = place
        self._done = max(place, min(hold, len(self._window)))
        if self._done > place:
            out.append(self._as_it_came(place, self._done))
        return out

    def _as_it_came(self, start: int, end: int) -> Part:
        return Part(self._base + start, self._base + end, self._window[start:end])

    def _instead(self, place: int, span: Span, *, is_told: bool) -> Part:
        start, end = max(place, span.start), max(place, span.end)
        told, rule = (b"", None) if is_told else (mark(span.rule), span.rule)
        return Part(self._base + start, self._base + end, told, rule, is_covered=True)

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
