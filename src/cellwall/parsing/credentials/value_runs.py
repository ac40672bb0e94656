"""What a value is made of: from its first byte up to the first that cannot be part of it.

A value is always the longest run of its bytes. So where it ends does not depend on how a stream is
cut, and nothing has to be tried twice. These expressions cannot backtrack: every byte is in one
class or in none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

State = Literal["closed", "open", "capped"]
"""Its end is seen; it reaches the end of the data; it is longer than was asked for."""

_CLOSING_BYTES = 80


@dataclass(frozen=True, eq=False)
class ValueRun:
    """Bytes of some kinds, and for a key its last line."""

    pattern: re.Pattern[bytes]
    closing: re.Pattern[bytes] | None = None
    has_escapes: bool = False
    """A backslash takes the next byte with it: where it ends depends on where it begins."""

    def extent(self, data: bytes, start: int, max_bytes: int | None = None) -> tuple[int, State]:
        """Where the run from `start` ends, as far as the data tells."""
        limit = len(data) if max_bytes is None else min(len(data), start + max_bytes)
        found = self.pattern.match(data, start, limit)
        end = start if found is None else found.end()
        if limit < len(data) and (end == limit or (end == limit - 1 and data[end] == 0x5C)):
            return end, "capped"
        if self.closing is not None:
            return self._closed(data, start, end)
        is_cut_escape = end == len(data) - 1 and data[end] == 0x5C
        return end, "open" if end == len(data) or is_cut_escape else "closed"

    def _closed(self, data: bytes, start: int, end: int) -> tuple[int, State]:
        if end == len(data):
            # What ends with a line may be the first of those that close it.
            return max(start, end - (data[end - 1 : end] == b"-")), "open"
        if self.closing is not None and (found := self.closing.match(data, end)):
            return found.end(), "closed"
        rest = data[end : end + _CLOSING_BYTES]
        may_close = rest.startswith(b"-") and b"\n" not in rest and len(rest) < _CLOSING_BYTES
        return end, "open" if may_close else "closed"


class Extents:
    """Where runs end in one window. Each byte is read at most once for each kind of run.

    Every word of a text may begin a secret that is longer than was waited for (`xoxb-1-xoxb-1-…`).
    All of them end at the same place, which is looked for once: else each would read all the rest.
    """

    def __init__(self) -> None:
        self._seen: dict[ValueRun, tuple[int, int, State]] = {}

    def end(self, run: ValueRun, data: bytes, start: int) -> tuple[int, State]:
        """As `Run.extent` without a limit."""
        if run.has_escapes:
            # Two of the same quotes are never within each other: one would end the other.
            return run.extent(data, start)
        first, last, state = self._seen.get(run, (0, -1, "closed"))
        if start < first:
            reached, before = run.extent(data, start, first - start)
            if before != "capped":
                return reached, before
            first = start
        elif start > last:
            first = start
            last, state = run.extent(data, start)
        self._seen[run] = (first, last, state)
        return max(start, last), state


def _of(inside: bytes) -> ValueRun:
    return ValueRun(re.compile(b"[%s]*" % inside))


def quoted(mark: bytes) -> ValueRun:
    """What stands between two quotes, on one line."""
    inside = b"[^%s\\\\\r\n]*" % mark
    return ValueRun(re.compile(b"%s(?:\\\\[^\r\n]%s)*" % (inside, inside)), has_escapes=True)


_KEY_LINES = rb"[A-Za-z0-9+/=\s\\\"'`,;:.()#>|%&]*"

RUNS = {
    "word": _of(rb"A-Za-z0-9_\-"),
    "dotted": _of(rb"A-Za-z0-9_.\-"),
    "base64": _of(rb"A-Za-z0-9+/="),
    "base64_slashes": ValueRun(re.compile(rb"(?:[A-Za-z0-9+/=]|\\{1,3}/)*")),
    "base64url": _of(rb"A-Za-z0-9+/=_\-"),
    "query": _of(rb"A-Za-z0-9%+/_.~=\-"),
    "path": _of(rb"A-Za-z0-9_/@.%\-"),
    "colons": _of(rb"A-Za-z0-9:"),
    "dollars": _of(rb"A-Za-z0-9$"),
    "bang": _of(rb"A-Za-z0-9!._"),
    "bearer": _of(rb"A-Za-z0-9._~+/=\-"),
    "userinfo": _of(rb"^\s/?#\"'<>\\`"),
    "crypt": _of(rb"A-Za-z0-9./$=,+*@_:\-"),
    "argument": _of(rb"^\s\"'`"),
    "option": _of(rb"^\s;\"'&"),
    "lines64": _of(rb"A-Za-z0-9+/=\s"),
    "pem": ValueRun(
        re.compile(rb"%s(?:-(?!-)%s)*" % (_KEY_LINES, _KEY_LINES)),
        re.compile(rb"-----END [^\r\n-]{0,60}-----"),
    ),
}
"""By the name that rules use."""
