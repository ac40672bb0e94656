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

import re
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from cellwall.guard.redact.known import KnownValueSearch
from cellwall.guard.redact.window import REMEMBERED_BYTES, OutputPart, Window
from cellwall.parsing.budget import NOT_SCANNED, ScanBudget, ScanUnfinished, checkpoint, grant
from cellwall.parsing.credentials.rule_set import SecretRules
from cellwall.parsing.credentials.spans import SecretHit, mark

# Removes terminal escape sequences before a scan and restores them afterwards (GRD-5).
#
# `grep --color` writes `ESC[01;31mESC[Kghp_ESC[mESC[K16C7…`: no rule matches a token split like
# this,
# and the `m` before it counts as a letter. So rules also see the text without sequences. Some
# programs print sequences in escaped form: `\x1b[31m`, `\u001b[31m`, `\033[31m`, `\e[31m`,
# `^[[31m`.
#
# A sequence is never assumed to be harmless: the text with its sequences is scanned too.

_MAX_TITLE_BYTES = 4096
"""Of a title or link (OSC): terminals accept addresses of two thousand bytes."""
_BODY = rb"\[(?!redacted:)[0-9;:?<=>!]{0,32}[ -/]{0,4}"
"""A sequence up to its final byte. A redaction mark is no sequence, whatever precedes it."""
_TITLE = rb"[^\x00-\x08\x0a-\x1f\x7f]{0,%d}" % _MAX_TITLE_BYTES
_SHOWN = rb"\\x1[bB]|\\u001[bB]|\\0?33|\\e|\^\["
# Begins with one of four bytes, so that the engine can skip ahead.
_SEQUENCE = re.compile(
    rb"[\x1b\\^\xc2](?:(?<=\x1b)(?:%(b)s[@-Z_-~]|\]%(t)s(?:\x07|\x1b\\)|[ -/]{0,4}[0-Z\\^-~])"
    rb"|(?:(?<=\\)(?:x1[bB]|u001[bB]|0?33|e)|(?<=\^)\[)%(b)s[@-Z_-~]"
    rb"|(?<=\xc2)\x9b[0-9;:?<=>!]{0,32}[ -/]{0,4}[@-Z_-~])" % {b"b": _BODY, b"t": _TITLE}
)
_CUT_MARK = rb"\[" + b"".join(b"(?:%c" % byte for byte in b"redacted") + b")?" * 8
_UNFINISHED = re.compile(
    rb"\x1b(?:%(b)s|%(m)s|\]%(t)s\x1b?|[ -/]{0,4})?|(?:%(s)s)(?:%(b)s|%(m)s)?"
    rb"|\\(?:x1?|u(?:0{0,2}|001)|03?|3)?|\^|\xc2(?:\x9b[0-9;:?<=>!]{0,32}[ -/]{0,4})?"
    % {b"b": _BODY, b"m": _CUT_MARK, b"t": _TITLE, b"s": _SHOWN}
)
_SIGNS = (b"\x1b", b"1b[", b"1B[", b"33[", rb"\e[", b"^[[", b"\xc2\x9b")
"""Every sequence contains one of these; a few substring searches are faster than the pattern."""
_FIRST_BYTE = re.compile(rb"[\x1b\\^\xc2]")
_UNFINISHED_SHOWN_BYTES = 48


class EscapeSequences:
    """The sequences of one stream: `plain` removes them, `before` returns them in order."""

    def __init__(self) -> None:
        self._waiting = b""
        """The end of the data, if a sequence may begin there."""
        self._taken: deque[tuple[int, bytes]] = deque()
        self._place = 0
        """Position of the next byte in the text without sequences."""

    @property
    def is_empty(self) -> bool:
        """Whether all removed sequences have been returned."""
        return not self._taken

    @property
    def kept_bytes(self) -> int:
        return len(self._waiting) + sum(len(each) for _, each in self._taken)

    def plain(self, data: bytes, *, is_final: bool) -> bytes:
        """The text without sequences."""
        data = self._waiting + data
        pieces: list[bytes] = []
        at = 0
        for found in _SEQUENCE.finditer(data) if may_contain_sequences(data) else ():
            pieces.append(data[at : found.start()])
            self._place += len(pieces[-1])
            self._taken.append((self._place, found[0]))
            at = found.end()
        cut = len(data) if is_final else _unfinished(data, at)
        self._waiting = data[cut:]
        self._place += cut - at
        return b"".join((*pieces, data[at:cut]))

    def before(self, place: int) -> list[tuple[int, bytes]]:
        """Sequences before a position of the plain text; each is returned once."""
        found: list[tuple[int, bytes]] = []
        while self._taken and self._taken[0][0] < place:
            found.append(self._taken.popleft())
        return found


def may_contain_sequences(data: bytes) -> bool:
    """Whether the data may contain a sequence."""
    for sign in _SIGNS:  # noqa: SIM110  # for each chunk of output: `any` takes three times as long
        if sign in data:
            return True
    return False


def _unfinished(data: bytes, start: int) -> int:
    """Start of an incomplete sequence at the end of the data; else the end.

    `start`: the end of the last complete sequence. Its final byte begins no other one: a title that
    ends in `ESC \\`, cut before the `\\`, would not be recognised (nor the value around it).
    """
    end = len(data)
    # The first one: in a title, a byte that may begin another sequence is part of the title.
    for found in _FIRST_BYTE.finditer(data, max(start, end - _MAX_TITLE_BYTES - 4)):
        place = found.start()
        is_near = place >= end - _UNFINISHED_SHOWN_BYTES or found[0] == b"\x1b"
        if is_near and _UNFINISHED.fullmatch(data, place):
            return place
    return end


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
        known: Callable[[], KnownValueSearch],
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
            return self._steps(data, is_last=False)

    def end(self, data: bytes = b"") -> bytes:
        """The remaining output, after these last bytes."""
        with self._lock:
            return self._steps(data, is_last=True)

    def _steps(self, data: bytes, *, is_last: bool) -> bytes:
        if self._is_withheld or (not data and not is_last):
            return b""
        known = self._known()
        grant(self._budget, len(data) + _FEED_BYTES)
        out: list[bytes] = []
        with self._budget.running():
            for start in range(0, max(1, len(data)), BLOCK_BYTES):
                is_final = is_last and start + BLOCK_BYTES >= len(data)
                try:
                    checkpoint()
                    block = data[start : start + BLOCK_BYTES]
                    out.append(self._step(block, known, is_final=is_final))
                except ScanUnfinished:
                    out.append(self._withhold())
                    break
        return b"".join(out)

    def _withhold(self) -> bytes:
        """Drop unscanned data, held back or still to come: it must not leave (GRD-11)."""
        self._is_withheld = True
        self._note(NOT_SCANNED, self._offsets.read, self._offsets.read)
        self._plain, self._as_shown, self._sequences = Window(self._rules), None, EscapeSequences()
        return mark(NOT_SCANNED)

    def _step(self, data: bytes, known: KnownValueSearch, *, is_final: bool) -> bytes:
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
