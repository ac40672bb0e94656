"""The forms in which a value can appear in traffic. Shared by the leak scan and the echo filter.

A form is a row of units, one for each byte, character or digit of the value; a unit is what may
stand there. So one form covers every mixture: which characters an encoder leaves as they are
differs from library to library, and `%2f` is as good as `%2F`.

What is searched: the value as it is and reversed; percent-encoding; the escapes of JSON and of
C; HTML's entities, by name or number; base64 at each of its three alignments, with either
alphabet, wrapped or not; hexadecimal with or without separators. What is not: values shorter than
MIN_BYTES, for any traffic holds such bytes by chance; encodings within encodings; and
ciphers. Code that holds a value and means to smuggle it out has endless ways, which is why it
should hold a placeholder (SEC-5). This finds accidents and the usual one-liners.
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
"""Of a value that can be searched for without false alarms."""
PIECE_BYTES = 512
"""Longer values are searched for piece by piece, so that what has to be kept back is bounded."""

Encoding = Literal["raw", "reversed", "url", "json", "escaped", "html", "base64", "hex"]
Unit = tuple[bytes, ...]

PLAIN = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-."
"""Bytes that no encoder has to escape; it may do so by number only."""
_HEAD_UNITS = 4
_CORE_OFFSET = (0, 2, 3)
"""Characters of base64 that hold bits of what stands before, for each alignment."""
_WRAPS: Unit = (b"", b"\n", b"\r\n", b"\\n", b"\\r\\n", b"%0A", b"%0a", b"%0D%0A", b"%0d%0a")
_GAPS: Unit = (*_WRAPS, b" ", b":", b"-", b",", b"\\x", b"0x", b" 0x", b",0x", b", 0x")
_C_ESCAPES = {0: b"0", 7: b"a", 8: b"b", 9: b"t", 10: b"n", 11: b"v", 12: b"f", 13: b"r"}
_HTML_NAMES = {"&": b"&amp;", "<": b"&lt;", ">": b"&gt;", '"': b"&quot;", "'": b"&apos;"}


@dataclass(frozen=True)
class Form:
    """One way to write a value. Neither `repr` nor an error shows what it is."""

    encoding: Encoding
    units: tuple[Unit, ...]

    def __repr__(self) -> str:
        return f"Form({self.encoding})"

    @cached_property
    def head(self) -> re.Pattern[bytes]:
        """How everything begins that is written in this form."""
        # A regular expression of the whole form could be made to backtrack without end; these few
        # units only say where a walk is worth it.
        return heads((self,))

    @cached_property
    def _shortest(self) -> bytes:
        return b"".join(min(unit, key=len) for unit in self.units)

    def walk(self, data: bytes, start: int) -> int | None:
        """Where the shortest match that begins at `start` ends.

        Linear in the form's length: all ways through the units are followed at once.
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
        """Whether all from `start` on is written in this form, and some of it is still to come."""
        places = {start}
        for unit in self.units:
            reached: set[int] = set()
            for place in places:
                for option in unit:
                    if data.startswith(option, place):
                        reached.add(place + len(option))
                    elif option.startswith(data[place : place + len(option)]):
                        return True  # as far as the data goes
            if not reached:
                return False
            places = reached
        return False

    def first(self, data: bytes, start: int = 0) -> tuple[int, int] | None:
        """The leftmost place at which this form stands, and its end."""
        for place in self._begun(data, start):
            if data.startswith(self._shortest, place):
                return place, place + len(self._shortest)
            if (end := self.walk(data, place)) is not None:
                return place, end
        return None

    def _begun(self, data: bytes, start: int) -> Iterator[int]:
        while found := self.head.search(data, start):
            yield found.start()
            start = found.start() + 1


def heads(found: Iterable[Form]) -> re.Pattern[bytes]:
    """How everything begins that is written in one of these forms."""
    # Each branch begins with a literal: so the engine skips what none of them begins with.
    branches = (
        re.escape(option) + b"".join(map(_group, form.units[1:_HEAD_UNITS]))
        for form in found
        for option in form.units[0]
    )
    return re.compile(b"|".join(dict.fromkeys(branches)))


def _group(unit: Unit) -> bytes:
    return b"(?:%s)" % b"|".join(map(re.escape, unit))


def forms(value: bytes) -> tuple[Form, ...]:
    """Every form of a value, or of one piece of it; the first is the value as it is."""
    found = [
        Form("raw", tuple((value[i : i + 1],) for i in range(len(value)))),
        Form("url", tuple(map(_url_unit, value))),
        Form("json", tuple(map(_json_unit, _characters(value)))),
        Form("escaped", tuple(map(_c_unit, value))),
        Form("html", tuple(map(_html_unit, _characters(value)))),
        *(Form("base64", _base64_units(core, align)) for align, core in enumerate(cores(value))),
        Form("hex", _hex_units(value)),
    ]
    if value != value[::-1]:
        found.append(Form("reversed", tuple((bytes([byte]),) for byte in reversed(value))))
    return tuple(found)


def max_bytes(count: int) -> int:
    """Of any form of so many bytes.

    By their number alone: what is held back by it must tell nothing about the bytes themselves.
    """
    # Base64 of nothing but `+` as `\\u002b`, wrapped every four characters, is the longest.
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
    # What is not UTF-8 goes byte by byte: JSON written as Latin-1 says \u00ff for it.
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
    # Padded as PHP (`&#039;`) and others (`&#x0027;`) do; some write every letter so.
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
    # Lines are wrapped between groups of four characters by everything that wraps them.
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
