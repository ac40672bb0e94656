"""Takes secrets out of a stream that comes in pieces of any size (GRD-5).

What cannot be part of a secret leaves at once, so that prompts and terminals work: words that name
a secret, and what introduces it, are none themselves. Only what follows them is held, up to where
it is clear whether it is one; or an end that may be the beginning of a known value. Nothing waits
for a clock.

What is taken out does not depend on how the stream is cut, with one exception: of a known value in
another form than its own, and of each further 512 bytes of a long one, the first two characters
may have left when the third tells what it is. They stand before the mark then. Two characters of
base64 are twelve bits; to wait for every one of them would be to wait at nearly every letter.

The text is looked at twice where it holds colours: without what only tells a terminal how to show
it, then as it is, for what was taken out can hide a secret as well.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

from cellwall.guard.redact.known import KnownValues
from cellwall.guard.redact.terminal import Sequences, may_hold
from cellwall.guard.redact.window import REMEMBERED_BYTES, Part, Window
from cellwall.parsing.budget import NOT_SCANNED, ScanBudget, ScanUnfinished, checkpoint, grant
from cellwall.parsing.credentials.rule_set import SecretRules
from cellwall.parsing.credentials.spans import SecretHit, mark

BLOCK_BYTES = 256 * 1024
"""Looked at together; of more, a part after the other."""
_FEED_BYTES = 250
"""What each piece may cost, however short: a millisecond."""
MAX_HITS = 10_000
"""That are listed. All are taken out."""


class RedactingStream:
    """`feed` it pieces and pass on what comes back; `end` gives the rest. Thread-safe."""

    def __init__(
        self,
        rules: SecretRules,
        known: Callable[[], KnownValues],
        budget: ScanBudget | None = None,
    ) -> None:
        self._rules = rules
        self._known = known
        self._lock = threading.Lock()
        self._sequences = Sequences()
        self._plain = Window(rules)
        self._as_shown: Window | None = None
        """Looks at the text with its sequences, while there are some."""
        self._left = b""
        """The last of what has left, for when there are."""
        self._is_mixed = False
        """Whether hits were found by both."""
        self._way_back = _WayBack()
        self._hits: list[SecretHit] = []
        self._budget = ScanBudget() if budget is None else budget
        self._is_withheld = False

    @property
    def spent_s(self) -> float:
        """Processor time that it took so far."""
        return self._budget.spent_s

    @property
    def hits(self) -> Sequence[SecretHit]:
        """What was taken out so far, the first MAX_HITS of it. Places are the stream's."""
        return _in_order(self._hits) if self._is_mixed else self._hits

    @property
    def kept_bytes(self) -> int:
        """Remembered or held back."""
        shown = 0 if self._as_shown is None else self._as_shown.kept_bytes
        return self._plain.kept_bytes + shown + self._sequences.kept_bytes + len(self._left)

    def feed(self, data: bytes) -> bytes:
        """What can leave now."""
        with self._lock:
            return b"".join(self._steps(data, is_last=False))

    def end(self, data: bytes = b"") -> bytes:
        """All the rest, after these last bytes."""
        with self._lock:
            return b"".join(self._steps(data, is_last=True))

    def _steps(self, data: bytes, *, is_last: bool) -> Iterable[bytes]:
        if self._is_withheld or (not data and not is_last):
            return
        known = self._known()
        grant(self._budget, len(data) + _FEED_BYTES)
        with self._budget.running():
            for start in range(0, max(1, len(data)), BLOCK_BYTES):
                is_final = is_last and start + BLOCK_BYTES >= len(data)
                try:
                    checkpoint()
                    cleaned = self._step(
                        data[start : start + BLOCK_BYTES], known, is_final=is_final
                    )
                except ScanUnfinished:
                    yield self._withhold()
                    return
                yield cleaned

    def _withhold(self) -> bytes:
        """What was not looked at does not leave: neither what is held nor what follows (GRD-11)."""
        self._is_withheld = True
        self._note(NOT_SCANNED, self._way_back.read, self._way_back.read)
        self._plain, self._as_shown, self._sequences = Window(self._rules), None, Sequences()
        return mark(NOT_SCANNED)

    def _step(self, data: bytes, known: KnownValues, *, is_final: bool) -> bytes:
        plain = self._sequences.plain(data, is_final=is_final)
        if not self._sequences.is_empty and self._as_shown is None:
            self._as_shown = Window(self._rules, self._left, self._way_back.written)
            self._is_mixed = True
        parts = self._plain.step(plain, known, is_final=is_final)
        out = b"".join(self._with_sequences(parts))
        shown = self._as_shown
        if shown is None:
            self._left = (self._left + out[-REMEMBERED_BYTES:])[-REMEMBERED_BYTES:]
            return out
        parts = shown.step(out, known, is_final=is_final)
        if self._sequences.is_empty and shown.is_idle and not may_hold(shown.remembered):
            self._as_shown, self._left = None, shown.remembered
        for part in parts:
            if part.rule is not None:
                self._note(part.rule, *self._way_back.of(part.start, part.end))
        return b"".join(part.data for part in parts)

    def _with_sequences(self, parts: Sequence[Part]) -> Iterable[bytes]:
        back = self._way_back
        for part in parts:
            taken = self._sequences.before(part.end)
            if not part.is_covered:
                yield from map(back.same, _woven(part, taken))
                continue
            ahead = [each for place, each in taken if place <= part.start]
            yield from map(back.same, ahead)
            # Colours within a secret are shown behind it: what follows needs them.
            inside = b"".join(each for _, each in taken[len(ahead) :])
            start = back.read
            out = back.other(part.data + inside, part.end - part.start + len(inside))
            if part.rule is not None:
                self._note(part.rule, start, back.read)
            yield out
        yield from (back.same(each) for _, each in self._sequences.before(self._plain.left + 1))

    def _note(self, rule: str, start: int, end: int) -> None:
        if len(self._hits) < MAX_HITS:
            self._hits.append(SecretHit(rule, start, end))


class _WayBack:
    """From places in what is written to places in what was read."""

    def __init__(self) -> None:
        self.read = 0
        self.written = 0
        self._turns: list[tuple[int, int]] = [(0, 0)]

    def same(self, data: bytes) -> bytes:
        """This was read and is written."""
        self.read += len(data)
        self.written += len(data)
        return data

    def other(self, data: bytes, read_bytes: int) -> bytes:
        """This is written for so many bytes."""
        # Beyond these no hit is listed, so nobody asks for its place.
        if len(self._turns) < 2 * MAX_HITS:
            self._turns.append((self.written, self.read))
            self._turns.append((self.written + len(data), self.read + read_bytes))
        self.written += len(data)
        self.read += read_bytes
        return data

    def of(self, start: int, end: int) -> tuple[int, int]:
        return self._of(start), self._of(end)

    def _of(self, place: int) -> int:
        number = bisect_right(self._turns, (place, self.read)) - 1
        written, read = self._turns[number]
        found = read + place - written
        return min(found, self._turns[number + 1][1]) if number + 1 < len(self._turns) else found


def _woven(part: Part, taken: Sequence[tuple[int, bytes]]) -> Iterable[bytes]:
    """The text of a part with its sequences where they stood."""
    at = part.start
    for place, each in taken:
        # Some stood before it, where something was covered.
        stood = max(place, at)
        yield part.data[at - part.start : stood - part.start]
        yield each
        at = stood
    yield part.data[at - part.start :]


def _in_order(hits: Iterable[SecretHit]) -> list[SecretHit]:
    """By their places; of those over each other the first and longest."""
    found: list[SecretHit] = []
    for hit in sorted(hits, key=lambda each: (each.start, -each.end)):
        if not found or hit.start >= found[-1].end:
            found.append(hit)
    return found
