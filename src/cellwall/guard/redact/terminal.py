r"""Removes terminal escape sequences before a scan and restores them afterwards (GRD-5).

`grep --color` writes `ESC[01;31mESC[Kghp_ESC[mESC[K16C7…`: no rule matches a token split like this,
and the `m` before it counts as a letter. So rules also see the text without sequences. Some
programs print sequences in escaped form: `\x1b[31m`, `\u001b[31m`, `\033[31m`, `\e[31m`, `^[[31m`.

A sequence is never assumed to be harmless: the text with its sequences is scanned too.
"""

from __future__ import annotations

import re
from collections import deque

_MAX_TITLE_BYTES = 1024
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
        cut = len(data) if is_final else _unfinished(data)
        self._waiting, data = data[cut:], data[:cut]
        if may_contain_sequences(data):
            data = self._without(data)
        self._place += len(data)
        return data

    def _without(self, data: bytes) -> bytes:
        pieces: list[bytes] = []
        at, place = 0, self._place
        for found in _SEQUENCE.finditer(data):
            pieces.append(data[at : found.start()])
            place += len(pieces[-1])
            self._taken.append((place, found[0]))
            at = found.end()
        return b"".join((*pieces, data[at:]))

    def before(self, place: int) -> list[tuple[int, bytes]]:
        """Sequences before a position of the plain text; each is returned once."""
        found: list[tuple[int, bytes]] = []
        while self._taken and self._taken[0][0] < place:
            found.append(self._taken.popleft())
        return found


def may_contain_sequences(data: bytes) -> bool:
    """Whether the data may contain a sequence."""
    return any(sign in data for sign in _SIGNS)


def _unfinished(data: bytes) -> int:
    """Start of an incomplete sequence at the end of the data; else the end."""
    end = len(data)
    place = data.rfind(b"\x1b", max(0, end - _MAX_TITLE_BYTES - 4))
    if place == end - 1 and place > 0:
        # The ESC may terminate a title that began earlier.
        before = data.rfind(b"\x1b", max(0, end - _MAX_TITLE_BYTES - 4), place)
        if before >= 0 and _UNFINISHED.fullmatch(data, before):
            return before
    if place >= 0 and _UNFINISHED.fullmatch(data, place):
        return place
    tail = max(0, end - _UNFINISHED_SHOWN_BYTES)
    for sign in (b"\\", b"^", b"\xc2"):
        place = data.rfind(sign, tail)
        if place >= 0 and _UNFINISHED.fullmatch(data, place):
            return place
    return end
