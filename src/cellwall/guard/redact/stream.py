"""Redacts a stream that arrives in chunks of any size (GRD-5).

Bytes that cannot be part of a secret leave at once, so that prompts and terminals work: keywords
and the assignment behind them are not secret. Only the value is held until its end decides, and
the end of the data if a known value may begin there. No timer is involved.

The result does not depend on the chunking, with one exception: of an encoded known value, and of
each further 512 bytes of a long one, the first two characters may have left before the third
identifies it; they stand before the mark. Two characters of base64 are twelve bits; holding every
possible first character would stop at nearly every letter.

Text with terminal escape sequences is scanned twice: without the sequences, then with them, because
a removed sequence can hide a secret as well.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

from cellwall.guard.redact.known import KnownValues
from cellwall.guard.redact.terminal import EscapeSequences, may_contain_sequences
from cellwall.guard.redact.window import REMEMBERED_BYTES, OutputPart, Window
from cellwall.parsing.budget import NOT_SCANNED, ScanBudget, ScanUnfinished, checkpoint, grant
from cellwall.parsing.credentials.rule_set import SecretRules
from cellwall.parsing.credentials.spans import SecretHit, mark

BLOCK_BYTES = 256 * 1024
"""Scanned at once; longer data is scanned block by block."""
_FEED_BYTES = 250
"""Granted to each chunk, however short: a millisecond."""
MAX_HITS = 10_000
"""Hits that are listed. All are redacted."""


class RedactingStream:
    """`feed` it chunks and forward the result; `end` returns the rest. Thread-safe."""

    def __init__(
        self,
        rules: SecretRules,
        known: Callable[[], KnownValues],
        budget: ScanBudget | None = None,
    ) -> None:
        self._rules = rules
        self._known = known
        self._lock = threading.Lock()
        self._sequences = EscapeSequences()
        self._plain = Window(rules)
        self._as_shown: Window | None = None
        """Scans the text with its sequences, while there are any."""
        self._left = b""
        """The last bytes that have left, context for that scan."""
        self._is_mixed = False
        """Whether both scans may have hits."""
        self._offsets = _InputOffsets()
        self._hits: list[SecretHit] = []
        self._budget = ScanBudget() if budget is None else budget
        self._is_withheld = False

    @property
    def spent_s(self) -> float:
        """Processor time used so far."""
        return self._budget.spent_s

    @property
    def hits(self) -> Sequence[SecretHit]:
        """The first MAX_HITS hits; positions are those of the stream."""
        return _in_order(self._hits) if self._is_mixed else self._hits

    @property
    def kept_bytes(self) -> int:
        """Bytes in memory: context and held back."""
        shown = 0 if self._as_shown is None else self._as_shown.kept_bytes
        return self._plain.kept_bytes + shown + self._sequences.kept_bytes + len(self._left)

    def feed(self, data: bytes) -> bytes:
        """Redacted output that can leave now."""
        with self._lock:
            return b"".join(self._steps(data, is_last=False))

    def end(self, data: bytes = b"") -> bytes:
        """The remaining output, after these last bytes."""
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
        """Drop unscanned data, held back or still to come: it must not leave (GRD-11)."""
        self._is_withheld = True
        self._note(NOT_SCANNED, self._offsets.read, self._offsets.read)
        self._plain, self._as_shown, self._sequences = Window(self._rules), None, EscapeSequences()
        return mark(NOT_SCANNED)

    def _step(self, data: bytes, known: KnownValues, *, is_final: bool) -> bytes:
        plain = self._sequences.plain(data, is_final=is_final)
        if not self._sequences.is_empty and self._as_shown is None:
            self._as_shown = Window(self._rules, self._left, self._offsets.written)
            self._is_mixed = True
        parts = self._plain.step(plain, known, is_final=is_final)
        out = b"".join(self._with_sequences(parts))
        shown = self._as_shown
        if shown is None:
            self._left = (self._left + out[-REMEMBERED_BYTES:])[-REMEMBERED_BYTES:]
            return out
        parts = shown.step(out, known, is_final=is_final)
        if (
            self._sequences.is_empty
            and shown.is_idle
            and not may_contain_sequences(shown.remembered)
        ):
            self._as_shown, self._left = None, shown.remembered
        for part in parts:
            if part.rule is not None:
                self._note(part.rule, *self._offsets.of(part.start, part.end))
        return b"".join(part.data for part in parts)

    def _with_sequences(self, parts: Sequence[OutputPart]) -> Iterable[bytes]:
        offsets = self._offsets
        for part in parts:
            taken = self._sequences.before(part.end)
            if not part.is_covered:
                yield from map(offsets.same, _interleave(part, taken))
                continue
            ahead = [each for place, each in taken if place <= part.start]
            yield from map(offsets.same, ahead)
            # Sequences inside a secret are emitted behind the mark: the following text needs them.
            inside = b"".join(each for _, each in taken[len(ahead) :])
            start = offsets.read
            out = offsets.other(part.data + inside, part.end - part.start + len(inside))
            if part.rule is not None:
                self._note(part.rule, start, offsets.read)
            yield out
        yield from (offsets.same(each) for _, each in self._sequences.before(self._plain.left + 1))

    def _note(self, rule: str, start: int, end: int) -> None:
        if len(self._hits) < MAX_HITS:
            self._hits.append(SecretHit(rule, start, end))


class _InputOffsets:
    """Maps positions in the output to positions in the input."""

    def __init__(self) -> None:
        self.read = 0
        self.written = 0
        self._turns: list[tuple[int, int]] = [(0, 0)]

    def same(self, data: bytes) -> bytes:
        """Bytes copied from input to output."""
        self.read += len(data)
        self.written += len(data)
        return data

    def other(self, data: bytes, read_bytes: int) -> bytes:
        """Output that replaces `read_bytes` of input."""
        # Hits beyond the limit are not listed, so their positions are not needed.
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


def _interleave(part: OutputPart, taken: Sequence[tuple[int, bytes]]) -> Iterable[bytes]:
    """The text of a part with its sequences back in place."""
    at = part.start
    for place, each in taken:
        # Some were before the part, inside redacted text.
        stood = max(place, at)
        yield part.data[at - part.start : stood - part.start]
        yield each
        at = stood
    yield part.data[at - part.start :]


def _in_order(hits: Iterable[SecretHit]) -> list[SecretHit]:
    """By position; of overlapping hits the first and longest."""
    found: list[SecretHit] = []
    for hit in sorted(hits, key=lambda each: (each.start, -each.end)):
        if not found or hit.start >= found[-1].end:
            found.append(hit)
    return found
