"""Known values in the lines of a hexadecimal dump: `xxd`, `hexdump -C`, `od -tx1`, `od -c` (GRD-5).

A value is spread over lines there, with offsets before and its text behind them. So the bytes of
all lines that follow each other are put together, and the lines of a value go whole.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cellwall.parsing.credentials.known.encodings import pieces
from cellwall.parsing.credentials.spans import KNOWN, Span

_LINE_BYTES = 16
"""That all of them write on a line, unless they are asked for others."""
_OFFSET = rb"[0-9A-Fa-f]{6,16}:?"
_PAIRS = rb"(?:[0-9A-Fa-f]{2}){1,4}(?:[ \t]{1,2}(?:[0-9A-Fa-f]{2}){1,4}){0,15}"
_LINE = re.compile(
    rb"(?:(?:%s)?[ \t]{1,2}(?P<hex>%s)(?:[ \t]{2,60}[^\r\n]{0,40})?"
    rb"|[0-7]{7}(?P<chars>(?:   [ -~]|  \\[0abtnvfr]| [0-7]{3}){1,16}))[ \t]*(?P<end>\r?\n|\r?\Z)"
    % (_OFFSET, _PAIRS)
)
_UNFINISHED = re.compile(
    rb"(?:%s[ \t]{1,2}|[ \t](?=[0-9A-Fa-f]{2} [0-9A-Fa-f]))(?P<hex>[0-9A-Fa-f][^\n]{0,120})\Z"
    rb"|[0-7]{7}(?P<chars> [^\n]{0,64})\Z" % _OFFSET
)
_FIELD = re.compile(rb"   ([ -~])|  \\([0abtnvfr])| ([0-7]{3})")
_NAMED_BYTES = dict(zip(b"0abtnvfr", b"\0\a\b\t\n\v\f\r", strict=True))
_LIKE_ONE = re.compile(
    rb"\n(?=[0-9A-Fa-f]{6,16}:?[ \t]|[ \t]{1,2}+[0-9A-Fa-f]{2} [0-9A-Fa-f]{2}[ \r\n])"
)
_LAST_LINE_BYTES = 200


@dataclass(slots=True)
class _Block:
    """Lines that follow each other: their bytes, and where each line shows them."""

    end: int
    data: bytearray = field(default_factory=bytearray)
    begins: list[int] = field(default_factory=list)
    shown: list[tuple[int, int]] = field(default_factory=list)

    def line(self, place: int) -> tuple[int, int]:
        return self.shown[bisect_right(self.begins, place) - 1]


class Dumps:
    """Made once for a set of values."""

    def __init__(self, values: Iterable[tuple[str, bytes]]) -> None:
        self._values = tuple((name, piece) for name, value in values for piece in pieces(value))

    def find(self, data: bytes, start: int, *, is_final: bool) -> tuple[list[Span], int]:
        """Those that are shown from `start` on, and where one may have begun at the end."""
        found: list[Span] = []
        if not self._values:
            return found, len(data)
        begun = len(data)
        unfinished = len(data) if is_final else _unfinished(data)
        for block in _blocks(data, data.rfind(b"\n", 0, start) + 1):
            found += (span for span in self._met(block) if span.end > start)
            if not is_final and block.end >= unfinished:
                begun = min(begun, self._begun(block, len(data)))
        last = _UNFINISHED.match(data, unfinished) if unfinished < len(data) else None
        if last is not None:
            begun = min(begun, last.start("hex" if last["hex"] is not None else "chars"))
        return found, max(start, begun)

    def _met(self, block: _Block) -> Iterator[Span]:
        for name, value in self._values:
            place = block.data.find(value)
            while place >= 0:
                first, last = block.line(place), block.line(place + len(value) - 1)
                yield Span(first[0], last[1], f"secret {name}", KNOWN)
                place = block.data.find(value, place + len(value))

    def _begun(self, block: _Block, end: int) -> int:
        """Where the first line is shown whose bytes may go on to be a value."""
        size = len(block.data)
        longest = max(
            (
                count
                for _, value in self._values
                for count in range(1, min(len(value), size + 1))
                if block.data.endswith(value[:count])
            ),
            default=0,
        )
        return block.line(size - longest)[0] if longest else end


def _unfinished(data: bytes) -> int:
    """Where the last line begins, if it has no end."""
    return data.rfind(b"\n", max(0, len(data) - _LAST_LINE_BYTES)) + 1


def _blocks(data: bytes, start: int) -> Iterator[_Block]:
    end = start
    for place in (start, *(found.end() for found in _LIKE_ONE.finditer(data, start))):
        if place < end:
            continue  # a line of the block before
        block = _Block(place)
        while block.end < len(data) and (line := _LINE.match(data, block.end)) is not None:
            name = "hex" if line["hex"] is not None else "chars"
            block.begins.append(len(block.data))
            block.shown.append((line.start(name), line.start("end")))
            block.data += _bytes(line[name], is_hex=name == "hex")
            block.end = line.end()
        end = block.end
        if block.shown:
            yield block


def _bytes(shown: bytes, *, is_hex: bool) -> bytes:
    if is_hex:
        return bytes.fromhex(shown.decode())[:_LINE_BYTES]
    return bytes(map(_byte, _FIELD.finditer(shown)))


def _byte(told: re.Match[bytes]) -> int:
    if told[1] is not None:
        return told[1][0]
    return _NAMED_BYTES[told[2][0]] if told[2] is not None else int(told[3], 8) & 0xFF
