r"""Known values as shells, files and dumps print them, beyond `known_forms` (GRD-5).

Text: quoted for a shell (`'it'\''s'`, `'it'"'"'s'`, `\$`); with other line ends; indented, or
behind diff or quote markers; without the final newline; as JSON within JSON. Base64: wrapped and
indented. Dumps: `xxd`, `hexdump -C`, `od -tx1` and `od -c` spread a value over lines, with an
offset before and the text behind; so the bytes of consecutive lines are joined, and whole lines
are redacted.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from cellwall.parsing.credentials.known_forms import (
    MIN_BYTES,
    PLAIN,
    Unit,
    ValueForm,
    cores,
    pieces,
)
from cellwall.parsing.credentials.known_values import PREFIX_BYTES, form_prefixes
from cellwall.parsing.credentials.spans import KNOWN, Span

_LINE_BYTES = 16
"""Bytes per line, by default of all these programs."""
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
class _DumpBlock:
    """Consecutive dump lines: their bytes, and where each line shows them."""

    end: int
    data: bytearray = field(default_factory=bytearray)
    begins: list[int] = field(default_factory=list)
    shown: list[tuple[int, int]] = field(default_factory=list)

    def line(self, place: int) -> tuple[int, int]:
        return self.shown[bisect_right(self.begins, place) - 1]


class DumpMatcher:
    """Compiled once for a set of values."""

    def __init__(self, values: Iterable[tuple[str, bytes]]) -> None:
        self._values = tuple((name, piece) for name, value in values for piece in pieces(value))

    def find(self, data: bytes, start: int, *, is_final: bool) -> tuple[list[Span], int]:
        """Values shown from `start` on, and where a value may begin at the end of the data."""
        found: list[Span] = []
        if not self._values:
            return found, len(data)
        begun = len(data)
        unfinished = len(data) if is_final else _unfinished(data)
        for block in _blocks(data, data.rfind(b"\n", 0, start) + 1):
            found += (span for span in self._find_in_block(block) if span.end > start)
            if not is_final and block.end >= unfinished:
                begun = min(begun, self._begun(block, len(data)))
        last = _UNFINISHED.match(data, unfinished) if unfinished < len(data) else None
        if last is not None:
            begun = min(begun, last.start("hex" if last["hex"] is not None else "chars"))
        return found, max(start, begun)

    def _find_in_block(self, block: _DumpBlock) -> Iterator[Span]:
        for name, value in self._values:
            place = block.data.find(value)
            while place >= 0:
                first, last = block.line(place), block.line(place + len(value) - 1)
                yield Span(first[0], last[1], f"secret {name}", KNOWN)
                place = block.data.find(value, place + len(value))

    def _begun(self, block: _DumpBlock, end: int) -> int:
        """Start of the first line whose bytes may be the beginning of a value."""
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
    """Start of the last line if the line is incomplete."""
    return data.rfind(b"\n", max(0, len(data) - _LAST_LINE_BYTES)) + 1


def _blocks(data: bytes, start: int) -> Iterator[_DumpBlock]:
    end = start
    for place in (start, *(found.end() for found in _LIKE_ONE.finditer(data, start))):
        if place < end:
            continue  # part of the previous block
        block = _DumpBlock(place)
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


def _byte(match: re.Match[bytes]) -> int:
    if match[1] is not None:
        return match[1][0]
    return _NAMED_BYTES[match[2][0]] if match[2] is not None else int(match[3], 8) & 0xFF


_INDENTS = (
    *(b" " * count for count in range(17)),
    *(b"\t" * count for count in range(1, 5)),
    *(b"+", b"-", b"+ ", b"- ", b"> ", b">", b"| ", b"|", b"# ", b"// "),
)
_LINE_END: Unit = tuple(end + indent for end in (b"\n", b"\r\n") for indent in _INDENTS)
_WRAPS: Unit = (b"", *_LINE_END)
_ESCAPED = {0x0D: b"\\r", 0x09: b"\\t", 0x08: b"\\b", 0x0C: b"\\f"}
_PLAIN_RUN = re.compile(b"[%s]+" % re.escape(PLAIN))
_ALNUM_RUN = re.compile(rb"[A-Za-z0-9]+")
_WRAPPED = re.compile(
    rb"\n(?:(?<=[A-Za-z0-9+/_-]\n)(?<=[A-Za-z0-9+/_-]{16}\n)"
    rb"|(?<=\r\n)(?<=[A-Za-z0-9+/_-]{16}\r\n))"
    rb"[ \t+>|#/-]{1,16}[A-Za-z0-9+/=_-]{2,}[\"'\s]"
)
"""A long base64 line continued on the next line, indented, with nothing else on it."""
_BLANK = b" \t\r\n+->|#/"
_ANCHOR_BYTES = 4
_MAX_ANCHOR_BYTES = 48
_AROUND_BYTES = 256
"""More than the longest anchor with its line wraps."""
_MAX_UNIT_BYTES = 20


@dataclass(frozen=True)
class _PrintedForm:
    """One form of a value or piece, and the substring to search for. `repr` hides both."""

    name: str
    form: ValueForm
    anchor: bytes

    def __repr__(self) -> str:
        return f"_Printed({self.name})"


class PrintedValues:
    """Compiled once for a set of values."""

    def __init__(self, values: Iterable[tuple[str, bytes]]) -> None:
        known = [pair for pair in values if len(pair[1]) >= MIN_BYTES]
        self._texts = tuple(each for name, value in known for each in _texts(name, value))
        self._wrapped = tuple(each for name, value in known for each in _wrapped(name, value))
        self._dumps = DumpMatcher(known)

    def find(self, data: bytes, start: int, *, is_final: bool) -> tuple[list[Span], int]:
        """Values that begin at or after `start`, and where a value may begin at the end."""
        spans, begun = self._dumps.find(data, start, is_final=is_final)
        for each in self._worth_a_look(data):
            place = start
            while (found := each.form.first(data, place)) is not None:
                spans.append(Span(*found, f"secret {each.name}", KNOWN))
                place = found[1]
        if is_final:
            return spans, len(data)
        covered = max((span.end for span in spans), default=start)
        return spans, min(begun, self._begun(data, max(start, covered)))

    def _worth_a_look(self, data: bytes) -> Iterator[_PrintedForm]:
        yield from (each for each in self._texts if each.anchor in data)
        if self._wrapped and (joined := _joined(data)):
            yield from (each for each in self._wrapped if each.anchor in joined)

    def _begun(self, data: bytes, start: int) -> int:
        first = max(start, len(data) - self._max_bytes)
        for place in range(first, len(data) - PREFIX_BYTES + 1):
            wanted = self._beginnings.get(data[place : place + PREFIX_BYTES])
            if wanted is not None and any(form.is_begun(data, place) for form in wanted):
                return place
        return len(data)

    @cached_property
    def _forms(self) -> tuple[ValueForm, ...]:
        return tuple(each.form for each in (*self._texts, *self._wrapped))

    @cached_property
    def _max_bytes(self) -> int:
        return max((len(form.units) * _MAX_UNIT_BYTES for form in self._forms), default=0)

    @cached_property
    def _beginnings(self) -> dict[bytes, list[ValueForm]]:
        found: dict[bytes, list[ValueForm]] = {}
        for form in self._forms:
            for beginning in set(form_prefixes(form)):
                found.setdefault(beginning, []).append(form)
        return found


def _joined(data: bytes) -> bytes:
    """The surroundings of wrapped lines, without the wraps."""
    parts: list[bytes] = []
    end = 0
    for found in _WRAPPED.finditer(data + b"\n"):
        start = max(end, found.start() - _AROUND_BYTES)
        end = max(end, found.end() + _AROUND_BYTES)
        parts.append(data[start:end])
    return b"".join(parts).translate(None, _BLANK)


def _texts(name: str, value: bytes) -> Iterator[_PrintedForm]:
    bare = value.strip(b"\r\n")
    if len(bare) < MIN_BYTES:
        return
    if len(bare) == len(value) and not bare.translate(None, PLAIN):
        return  # no byte of it is ever escaped
    for piece in pieces(bare.replace(b"\r\n", b"\n")):
        anchor = max(_PLAIN_RUN.findall(piece), key=len, default=b"")
        units = tuple(_text_units(piece))
        yield _PrintedForm(name, ValueForm("escaped", units), anchor)


def _wrapped(name: str, value: bytes) -> Iterator[_PrintedForm]:
    for piece in pieces(value):
        for align, core in enumerate(cores(piece)):
            runs = _ALNUM_RUN.findall(core)
            anchor = max(runs, key=len, default=b"")[:_MAX_ANCHOR_BYTES]
            if len(anchor) < _ANCHOR_BYTES:
                continue
            units: list[Unit] = []
            for place, byte in enumerate(core):
                if place and (place + (0, 2, 3)[align]) % 4 == 0:
                    units.append(_WRAPS)
                units.append(_DIGITS.get(byte, (bytes([byte]),)))
            yield _PrintedForm(name, ValueForm("base64", tuple(units)), anchor)


_DIGITS: dict[int, Unit] = {ord("+"): (b"+", b"-"), ord("/"): (b"/", b"_")}


def _text_units(piece: bytes) -> Iterator[Unit]:
    # A part of a character, where a long value was cut, goes byte by byte.
    for character in piece.decode("utf-8", "surrogateescape"):
        written = character.encode("utf-8", "surrogateescape")
        if len(written) == 1:
            yield _text_unit(written[0])
        else:  # once or twice escaped: JSON, and JSON within JSON
            escaped = json.dumps(character)[1:-1].encode()
            yield (written, *(escaped.replace(b"\\", mark) for mark in (b"\\", b"\\\\")))


def _text_unit(byte: int) -> Unit:
    sign = bytes([byte])
    if sign == b"\n":
        return (*_LINE_END, b"\\n", b"\\\\n")
    if sign == b"'":
        return (b"'", b"\\'", b"'\\''", b"'\"'\"'")
    if sign in b'"\\':  # once more for JSON within JSON
        return (sign, b"\\" + sign, b"\\\\\\" + sign)
    if byte in _ESCAPED:
        return (sign, _ESCAPED[byte], b"\\" + _ESCAPED[byte])
    if byte in PLAIN or byte >= 0x7F or byte < 0x20:
        return (sign,)
    return (sign, b"\\" + sign)
