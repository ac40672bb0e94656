"""The forms in which a known value can appear in traffic and output.

A form is a sequence of units, one for each byte, character or digit of the value; a unit lists its
spellings. So one form covers every mixture: libraries differ in the characters that they escape,
and `%2f` is as good as `%2F`.

Searched: the value verbatim and reversed; percent-encoding; the escapes of JSON and of C; HTML
entities, by name or number; base64 at each of its three alignments, with either alphabet, wrapped
or not; hexadecimal with or without separators. Not searched: values shorter than MIN_BYTES, which
occur by chance; nested encodings; ciphers. Code that holds a value and means to smuggle it out has
endless ways, so it should hold a placeholder (SEC-5). This search finds accidents and the usual
one-liners.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import pairwise, product
from typing import Literal

MIN_BYTES = 8
"""The shortest value that can be searched for without false alarms."""
PIECE_BYTES = 512
"""Longer values are searched for piece by piece, so that the bytes held back are bounded."""

Encoding = Literal["raw", "reversed", "url", "json", "escaped", "html", "base64", "hex"]
Unit = tuple[bytes, ...]

PLAIN = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-."
"""Bytes that no encoder has to escape, and that are escaped by number only."""
_HEAD_UNITS = 4
_CORE_OFFSET = (0, 2, 3)
"""Base64 characters that hold bits of the preceding bytes, for each alignment."""
_WRAPS: Unit = (b"", b"\n", b"\r\n", b"\\n", b"\\r\\n", b"%0A", b"%0a", b"%0D%0A", b"%0d%0a")
_GAPS: Unit = (*_WRAPS, b" ", b":", b"-", b",", b"\\x", b"0x", b" 0x", b",0x", b", 0x")
_C_ESCAPES = {0: b"0", 7: b"a", 8: b"b", 9: b"t", 10: b"n", 11: b"v", 12: b"f", 13: b"r"}
_HTML_NAMES = {"&": b"&amp;", "<": b"&lt;", ">": b"&gt;", '"': b"&quot;", "'": b"&apos;"}


@dataclass(frozen=True)
class ValueForm:
    """One encoding of a value. Neither `repr` nor an error shows the value."""

    encoding: Encoding
    units: tuple[Unit, ...]

    def __repr__(self) -> str:
        return f"ValueForm({self.encoding})"

    @cached_property
    def head(self) -> re.Pattern[bytes]:
        """Matches the first units of this form."""
        # A regular expression of the whole form could backtrack exponentially; these few units only
        # find the positions where `walk` is worthwhile.
        return heads((self,))

    @cached_property
    def _shortest(self) -> bytes:
        return b"".join(min(unit, key=len) for unit in self.units)

    def walk(self, data: bytes, start: int) -> int | None:
        """The end of the shortest match that begins at `start`.

        Linear in the form's length: all paths through the units are followed at once.
        """
        places = {start}
        for unit in self.units:
            places = {
                place + len(option)
                for place in places
                for option in unit
                if data.startswith(option, place)
            }
            if not places:
                return None
        return min(places)

    def is_begun(self, data: bytes, start: int) -> bool:
        """Whether the data from `start` on is a proper prefix of this form."""
        places = {start}
        for unit in self.units:
            reached: set[int] = set()
            for place in places:
                for option in unit:
                    if data.startswith(option, place):
                        reached.add(place + len(option))
                    elif option.startswith(data[place : place + len(option)]):
                        return True  # the data ends within this option
            if not reached:
                return False
            places = reached
        return False

    def first(self, data: bytes, start: int = 0) -> tuple[int, int] | None:
        """Start and end of the leftmost match."""
        for place in self._possible_starts(data, start):
            if data.startswith(self._shortest, place):
                return place, place + len(self._shortest)
            if (end := self.walk(data, place)) is not None:
                return place, end
        return None

    def _possible_starts(self, data: bytes, start: int) -> Iterator[int]:
        while match := self.head.search(data, start):
            yield match.start()
            start = match.start() + 1


def heads(these_forms: Iterable[ValueForm]) -> re.Pattern[bytes]:
    """Matches the first units of any of these forms."""
    # Each branch begins with a literal, so the engine skips all other positions.
    branches = (
        re.escape(option) + b"".join(map(_group, form.units[1:_HEAD_UNITS]))
        for form in these_forms
        for option in form.units[0]
    )
    return re.compile(b"|".join(dict.fromkeys(branches)))


def _group(unit: Unit) -> bytes:
    return b"(?:%s)" % b"|".join(map(re.escape, unit))


def forms(value: bytes) -> tuple[ValueForm, ...]:
    """Every form of a value, or of one piece of a value; the first is the verbatim one."""
    all_forms = [
        ValueForm("raw", tuple((value[i : i + 1],) for i in range(len(value)))),
        ValueForm("url", tuple(map(_url_unit, value))),
        ValueForm("json", tuple(map(_json_unit, _characters(value)))),
        ValueForm("escaped", tuple(map(_c_unit, value))),
        ValueForm("html", tuple(map(_html_unit, _characters(value)))),
        *(
            ValueForm("base64", _base64_units(core, align))
            for align, core in enumerate(cores(value))
        ),
        ValueForm("hex", _hex_units(value)),
    ]
    if value != value[::-1]:
        all_forms.append(ValueForm("reversed", tuple((bytes([byte]),) for byte in reversed(value))))
    return tuple(all_forms)


def max_bytes(count: int) -> int:
    """The longest form of `count` bytes.

    By their number alone: the number of bytes held back must disclose nothing about the value.
    """
    # Base64 of only `+` as `\\u002b`, wrapped every four characters, is the longest.
    return 10 * count + 5


def pieces(value: bytes) -> tuple[bytes, ...]:
    """The value in pieces of nearly equal length, none longer than PIECE_BYTES."""
    count = -(-len(value) // PIECE_BYTES)
    ends = [len(value) * number // count for number in range(count + 1)]
    return tuple(value[a:b] for a, b in pairwise(ends))


def cores(value: bytes) -> tuple[bytes, bytes, bytes]:
    """The characters of base64 that depend on the value alone, for each alignment."""

    def core(align: int) -> bytes:
        whole_characters = (align + len(value)) * 8 // 6
        encoded = base64.b64encode(bytes(align) + value)
        return encoded[_CORE_OFFSET[align] : whole_characters]

    return core(0), core(1), core(2)


def _characters(value: bytes) -> list[str | int]:
    # Bytes that are not UTF-8 are single characters: JSON of Latin-1 text writes \u00ff.
    try:
        return list(value.decode())
    except UnicodeDecodeError:
        return list(value)


def _both_cases(digits: bytes) -> set[bytes]:
    pairs = ((bytes([digit]).upper(), bytes([digit]).lower()) for digit in digits)
    return {b"".join(mix) for mix in product(*pairs)}


def _unit(options: set[bytes]) -> Unit:
    return tuple(sorted(options, key=lambda option: (len(option), option)))


@cache
def _url_unit(byte: int) -> Unit:
    options = {bytes([byte]), *(b"%" + digits for digits in _both_cases(b"%02x" % byte))}
    if byte == ord(" "):
        options.add(b"+")
    return _unit(options)


@lru_cache(maxsize=1024)
def _json_unit(character: str | int) -> Unit:
    if isinstance(character, int):
        return _unit({bytes([character]), *_u_escapes(character)})
    options = {character.encode(), json.dumps(character)[1:-1].encode()}
    if character == "/":
        options.add(b"\\/")
    if ord(character) <= 0xFFFF:
        options |= _u_escapes(ord(character))
    else:
        high, low = divmod(ord(character) - 0x10000, 0x400)
        options |= {a + b for a in _u_escapes(0xD800 + high) for b in _u_escapes(0xDC00 + low)}
    return _unit(options)


def _u_escapes(code: int) -> set[bytes]:
    return {b"\\u" + digits for digits in _both_cases(b"%04x" % code)}


@cache
def _c_unit(byte: int) -> Unit:
    options = {bytes([byte]), *(b"\\x" + digits for digits in _both_cases(b"%02x" % byte))}
    if byte in b"\\'\"":
        options.add(b"\\" + bytes([byte]))
    if byte in _C_ESCAPES:
        options.add(b"\\" + _C_ESCAPES[byte])
    return _unit(options)


@lru_cache(maxsize=1024)
def _html_unit(character: str | int) -> Unit:
    if isinstance(character, int):
        return (bytes([character]),)
    code = ord(character)
    # Padded as PHP (`&#039;`) and others (`&#x0027;`) do; some encoders escape every letter.
    options = {character.encode(), *(form % code for form in (b"&#%d;", b"&#%03d;", b"&#%04d;"))}
    options |= {
        mark + digits + b";"
        for mark in (b"&#x", b"&#X")
        for form in (b"%x", b"%04x")
        for digits in _both_cases(form % code)
    }
    if character in _HTML_NAMES:
        options.add(_HTML_NAMES[character])
    return _unit(options)


def _base64_units(core: bytes, align: int) -> tuple[Unit, ...]:
    # Every encoder that wraps lines does so between groups of four characters.
    units: list[Unit] = []
    for place, byte in enumerate(core):
        if place and (place + _CORE_OFFSET[align]) % 4 == 0:
            units.append(_WRAPS)
        units.append(_base64_unit(byte))
    return tuple(units)


@cache
def _base64_unit(byte: int) -> Unit:
    if byte == ord("+"):
        return _unit({b"+", b"-", b"%2B", b"%2b", *_u_escapes(byte)})
    if byte == ord("/"):
        return _unit({b"/", b"_", b"%2F", b"%2f", b"\\/", *_u_escapes(byte)})
    return (bytes([byte]),)


def _hex_units(value: bytes) -> tuple[Unit, ...]:
    units: list[Unit] = []
    for byte in value:
        if units:
            units.append(_GAPS)
        units.append(_hex_unit(byte))
    return tuple(units)


@cache
def _hex_unit(byte: int) -> Unit:
    return _unit(_both_cases(b"%02x" % byte))
