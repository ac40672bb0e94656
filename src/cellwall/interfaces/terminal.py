"""Writes to terminals: untrusted bytes may show text, and nothing else.

Escape sequences can rename windows, send replies as if the user had typed them, write to the
clipboard and overwrite earlier output. So on a terminal every control character is escaped, except
line ends, tabs and, where requested, plain colours.
"""

from __future__ import annotations

import codecs
import os
import re
import select
from typing import Literal

Stream = Literal["stdout", "stderr"]
STREAMS: dict[Stream, int] = {"stdout": 1, "stderr": 2}

_MAX_COLOUR_CHARACTERS = 64
_COLOUR = rf"\x1b\[[0-9;]{{0,{_MAX_COLOUR_CHARACTERS}}}m"
_UNFINISHED = re.compile(rf"\x1b(?:\[[0-9;]{{0,{_MAX_COLOUR_CHARACTERS}}})?\Z")
# C0 without \t \n \r, DEL, C1; invalid UTF-8 bytes (an 8-bit terminal reads them as C1);
# bidirectional controls that reorder visible text (CVE-2021-42574).
_CONTROLS = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\udc80-\udcff\u202a-\u202e\u2066-\u2069"
_LENIENT = re.compile(f"({_COLOUR})|[{_CONTROLS}]")
_STRICT = re.compile(f"[{_CONTROLS}\r]")
_ONE_LINE = re.compile(f"[{_CONTROLS}\r\n\t\ud800-\udfff\u2028\u2029]")
_RESET = "\x1b[0m"


class TerminalFilter:
    """Makes bytes safe for a terminal; chunks may be split anywhere.

    With `colours`, plain colour sequences pass and are reset at the end. Without it, carriage
    returns are escaped as well: for text that a person reviews, such as a diff.
    """

    def __init__(self, *, colours: bool) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._colours = colours
        self._waiting = ""
        self._coloured = False

    def feed(self, data: bytes) -> bytes:
        """The safe output; an incomplete character or colour sequence is held back."""
        text = self._waiting + self._decoder.decode(data)
        unfinished = _UNFINISHED.search(text) if self._colours else None
        end = len(text) if unfinished is None else unfinished.start()
        self._waiting = text[end:]
        return self._escape(text[:end]).encode()

    def finish(self) -> bytes:
        """The held-back rest, and a colour reset if one is needed."""
        text = self._escape(self._waiting + self._decoder.decode(b"", final=True))
        self._waiting = ""
        reset, self._coloured = (_RESET if self._coloured else ""), False
        return (text + reset).encode()

    def _escape(self, text: str) -> str:
        return (_LENIENT if self._colours else _STRICT).sub(self._replacement, text)

    def _replacement(self, match: re.Match[str]) -> str:
        if self._colours and match[1] is not None:
            self._coloured = True
            return match[1]
        return visible(match[0])


def visible(character: str) -> str:
    """A control character in caret or hex notation: `^[` for ESC, `\\x9b` for a byte or C1."""
    code = ord(character)
    if code < 0x20 or code == 0x7F:
        return "^" + chr(code ^ 0x40)
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def one_line(text: str) -> str:
    """Untrusted text within one line: it can neither end the line nor control the terminal."""
    return _ONE_LINE.sub(lambda match: visible(match[0]), text)


def safe_text(text: str) -> str:
    """`one_line` for each line of a message."""
    return "\n".join(one_line(line) for line in text.split("\n"))


def write_all(number: int, data: bytes) -> None:
    """Write every byte, also where the kernel accepts only a part of them."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(number, view) :]
        except BlockingIOError:  # another process that shares the pipe or terminal set O_NONBLOCK
            select.select([], [number], [])


def is_terminal(stream: Stream) -> bool:
    """Whether the stream is a terminal."""
    return os.isatty(STREAMS[stream])
