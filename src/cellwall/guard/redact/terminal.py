r"""What tells a terminal how to show a text, taken out of it and put back (GRD-5).

`grep --color` writes `ESC[01;31mESC[Kghp_ESC[mESC[K16C7…`: no rule knows a token that is cut so,
and the `m` before it is a letter like any other. So rules also see the text without sequences.
Some programs show them: `\x1b[31m`, `\u001b[31m`, `\033[31m`, `\e[31m`, `^[[31m`.

What is taken out is never judged to be harmless: the text with it is looked at too.
"""

from __future__ import annotations

import re
from collections import deque

_MAX_TITLE_BYTES = 1024
_BODY = rb"\[(?!redacted:)[0-9;:?<=>!]{0,32}[ -/]{0,4}"
"""Of a sequence up to its last byte. A mark of ours is none, whatever stands before it."""
_TITLE = rb"[^\x00-\x08\x0a-\x1f\x7f]{0,%d}" % _MAX_TITLE_BYTES
_SHOWN = rb"\\x1[bB]|\\u001[bB]|\\0?33|\\e|\^\["
# It begins with one of four signs, so that the engine skips what does not.
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
"""Each has one of these: a few looks at memory's speed instead of one that tries every sign."""
_UNFINISHED_SHOWN_BYTES = 48


class Sequences:
    """Those of one stream: `plain` takes them out, `before` gives them back. In order."""

    def __init__(self) -> None:
        self._waiting = b""
        """The end of what came, if it may be the beginning of one."""
        self._taken: deque[tuple[int, bytes]] = deque()
        self._place = 0
        """Of what comes next in the text without sequences."""

    @property
    def is_empty(self) -> bool:
        """Whether all that were taken out have been given back."""
        return not self._taken

    @property
    def kept_bytes(self) -> int:
        return len(self._waiting) + sum(len(each) for _, each in self._taken)

    def plain(self, data: bytes, *, is_final: bool) -> bytes:
        """The text without them."""
        data = self._waiting + data
        cut = len(data) if is_final else _unfinished(data)
        self._waiting, data = data[cut:], data[:cut]
        if may_hold(data):
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
        """Those that stood before a place in the text without them, and where; each once."""
        found: list[tuple[int, bytes]] = []
        while self._taken and self._taken[0][0] < place:
            found.append(self._taken.popleft())
        return found


def may_hold(data: bytes) -> bool:
    """Whether there may be a sequence in it."""
    return any(sign in data for sign in _SIGNS)


def _unfinished(data: bytes) -> int:
    """Where a sequence begins that the data ends in; else its end."""
    end = len(data)
    place = data.rfind(b"\x1b", max(0, end - _MAX_TITLE_BYTES - 4))
    if place == end - 1 and place > 0:
        # It may end a title that began before.
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
