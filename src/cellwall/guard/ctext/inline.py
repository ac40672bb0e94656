"""Encoded characters inside of a text, as `tokens.c`, `edits.c` and `patches.c` read them."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate
from typing import NamedTuple

from cellwall.guard.ctext.library import DATA, SIZE, function

_PLACE = ctypes.c_void_p
_UNKNOWN = (1 << 32) - 1
_MAX_LINES_BYTES = 4 * 800
"""Of the lines around an edit: at most three parts of 240 characters, and line ends."""
_MAX_COUNTED = 4096
_MORE_ROOM = 8
_FEW_TOKENS = 64
"""Characters for each, in a text for which there is little room at first."""


class TokenKind(IntEnum):
    """What a token may be, as `inline.h` has it."""

    HTML = 0
    URL = 1
    ESCAPES = 2
    QUOTED = 3


class _Edits(ctypes.Structure):
    _fields_ = (
        ("found", _PLACE),
        ("text", _PLACE),
        *(
            (name, ctypes.c_uint64)
            for name in ("count", "room", "text_size", "text_room", "next", "line_end", "unknown")
        ),
        ("is_quoted", ctypes.c_uint32),
        ("padding", ctypes.c_uint32),
    )


class _Names(ctypes.Structure):
    _fields_ = (
        ("names", DATA),
        ("texts", DATA),
        ("ends", _PLACE),
        ("text_ends", _PLACE),
        ("count", ctypes.c_uint32),
        ("padding", ctypes.c_uint32),
    )


class _Patches(ctypes.Structure):
    _fields_ = (
        ("found", _PLACE),
        ("text", _PLACE),
        *(
            (name, ctypes.c_uint64)
            for name in ("count", "room", "text_size", "text_room", "characters", "most")
        ),
        ("is_cut", ctypes.c_uint32),
        ("padding", ctypes.c_uint32),
    )


_tokens = function("cw_tokens", SIZE, DATA, SIZE, _PLACE, SIZE)
_equals = function("cw_equals", SIZE, DATA, SIZE, _PLACE, SIZE, SIZE, _PLACE, SIZE)
_edits = function(
    "cw_edits",
    None,
    DATA,
    SIZE,
    _PLACE,
    SIZE,
    ctypes.c_uint32,
    ctypes.POINTER(_Names),
    ctypes.POINTER(_Edits),
)
_string_edits = function("cw_string_edits", None, DATA, SIZE, ctypes.POINTER(_Edits))
_patches = function(
    "cw_patches",
    None,
    DATA,
    SIZE,
    DATA,
    SIZE,
    _PLACE,
    SIZE,
    DATA,
    SIZE,
    ctypes.POINTER(_Patches),
)


def _zeros(count: int) -> array[int]:
    return array("I", bytes(4 * count))


def _at(values: array[int]) -> int:
    return values.buffer_info()[0]


class Tokens(NamedTuple):
    """Where tokens begin and end, and their kinds: three numbers for each, in order and apart."""

    numbers: array[int]

    def kinds(self) -> list[TokenKind]:
        """Each that is among them, in the order of their first."""
        kinds = self.numbers[2::3].tobytes()[:: self.numbers.itemsize]
        firsts = {kind: kinds.find(bytes((kind,))) for kind in TokenKind}
        return sorted((kind for kind in TokenKind if firsts[kind] >= 0), key=firsts.__getitem__)

    def spans(self) -> list[tuple[int, int]]:
        return list(zip(self.numbers[::3], self.numbers[1::3], strict=True))

    def characters(self, most: int) -> int:
        """So many are in them; `most`, which is that of the text, where they are many."""
        if len(self) > _MAX_COUNTED:
            return most
        return sum(self.numbers[1::3]) - sum(self.numbers[::3])

    def __len__(self) -> int:
        return len(self.numbers) // 3


def find_tokens(image: bytes, most: int) -> tuple[Tokens, bool]:
    """The first `most` tokens, and whether these are all. `image` has a byte for each character."""
    size = len(image)
    return _found(lambda place, room: _tokens(image, size, place, room), size, most)


def find_equals(image: bytes, tokens: Tokens, few_urls: int) -> Tokens:
    """Signs of quoted-printable: tokens, and those inside of tokens that are a part of a URL; in
    all of the text, where these are more than `few_urls`."""
    size, begin, count = len(image), _at(tokens.numbers), len(tokens)
    return _found(
        lambda place, room: _equals(image, size, begin, count, few_urls, place, room), size, size
    )[0]


def _found(find: Callable[[int, int], int], size: int, most: int) -> tuple[Tokens, bool]:
    """With as little room as is needed: most texts have few tokens."""
    most = min(most, size // 2)
    room = min(most, size // _FEW_TOKENS + _FEW_TOKENS)
    while True:
        numbers = _zeros(3 * room)
        found = find(_at(numbers), room)
        if found <= room or room == most:
            del numbers[3 * min(found, room) :]
            return Tokens(numbers), found <= room
        room = min(most, _MORE_ROOM * room)


class EntityNames:
    """Entities by name, with the semicolon."""

    def __init__(self, names: Sequence[tuple[bytes, bytes]]) -> None:
        """`names`: each with its text in UTF-8."""
        ordered = sorted(names)
        self._ends = array("I", accumulate((len(name) for name, _ in ordered), initial=0))
        self._text_ends = array("I", accumulate((len(text) for _, text in ordered), initial=0))
        self._names = b"".join(name for name, _ in ordered)
        self._texts = b"".join(text for _, text in ordered)
        self.table = _Names(
            self._names, self._texts, _at(self._ends), _at(self._text_ends), len(ordered)
        )


@dataclass(frozen=True, slots=True)
class Edits:
    """Parts of a text and what is read there: begin and end, and begin and size in `text`."""

    numbers: array[int]
    text: bytes
    """In UTF-8."""

    def __len__(self) -> int:
        return len(self.numbers) // 4

    @classmethod
    def of(cls, edits: Iterable[tuple[int, int, str]]) -> Edits:
        """In order and apart."""
        numbers, text = array("I"), bytearray()
        for start, end, told in edits:
            data = told.encode()
            numbers.extend((start, end, len(text), len(data)))
            text += data
        return cls(numbers, bytes(text))


Read = Callable[[int, int], "str | None"]
"""What stands from one place to another; None if it stands for itself."""


class EditReader:
    """Reads tokens of one text as edits, at most `most` of each kind."""

    def __init__(self, image: bytes, data: bytes, most: int) -> None:
        """`data`: the text in UTF-8, of which `image` has a byte for each character."""
        self._image, self._data, self._most = image, data, most

    def of_tokens(
        self, tokens: Tokens, kind: TokenKind, names: EntityNames, read: Read
    ) -> tuple[Edits, bool]:
        """Of the tokens of a kind, and whether these are all; `read` reads those of which C does
        not know."""
        image = self._image
        characters = tokens.characters(len(image))
        most = characters if kind == TokenKind.URL else len(tokens)
        edits = _EditBuffer(min(self._most + 1, most), min(2 * len(self._data), 8 * characters))
        begin = _at(tokens.numbers)
        while True:
            _edits(image, len(image), begin, len(tokens), kind, names.table, edits.record)
            edits.resolve(read)
            if edits.is_full or edits.record.next >= len(tokens):
                return edits.taken(self._most)

    def of_strings(self) -> tuple[Edits, bool]:
        """Of a backslash and a letter inside of JSON, and whether these are all."""
        edits = _EditBuffer(min(self._most + 1, self._image.count(b"\\")), len(self._image))
        _string_edits(self._image, len(self._image), edits.record)
        return edits.taken(self._most)


class _EditBuffer:
    """Room for edits, and for their text."""

    def __init__(self, count: int, text_bytes: int) -> None:
        self._numbers, self._text = _zeros(4 * count), ctypes.create_string_buffer(text_bytes)
        self._resolved = 0
        self.record = _Edits(
            found=_at(self._numbers),
            text=ctypes.addressof(self._text),
            room=count,
            text_room=text_bytes,
        )

    @property
    def is_full(self) -> bool:
        return bool(self.record.count >= self.record.room)

    def resolve(self, read: Read) -> None:
        """Read the new ones of which C does not know; leave out what stands for itself."""
        numbers, record = self._numbers, self.record
        if not record.unknown:
            self._resolved = record.count
            return
        record.unknown = 0
        sizes = numbers[4 * self._resolved + 3 : 4 * record.count : 4]
        kept = end = self._resolved
        for number in _places(sizes, _UNKNOWN):
            number += self._resolved  # noqa: PLW2901  # sizes begin there
            kept = self._keep(kept, end, number)
            end = number + 1
            text = read(*numbers[4 * number : 4 * number + 2])
            if text is not None:
                numbers[4 * number + 2 : 4 * number + 4] = array("I", self._put(text.encode()))
                kept = self._keep(kept, number, end)
        self._resolved = record.count = self._keep(kept, end, record.count)

    def _keep(self, to: int, start: int, end: int) -> int:
        """Move edits to the left; returns where they end then."""
        if to != start:
            self._numbers[4 * to : 4 * (to + end - start)] = self._numbers[4 * start : 4 * end]
        return to + end - start

    def _put(self, data: bytes) -> tuple[int, int]:
        at = int(self.record.text_size)
        if at + len(data) > len(self._text):
            raise MemoryError
        ctypes.memmove(ctypes.addressof(self._text) + at, data, len(data))
        self.record.text_size += len(data)
        return at, len(data)

    def taken(self, most: int) -> tuple[Edits, bool]:
        """The first `most` of them, and whether these are all."""
        count = min(self.record.count, most)
        text = ctypes.string_at(self._text, self.record.text_size)
        return Edits(self._numbers[: 4 * count], text), self.record.count <= most


def _places(values: array[int], value: int) -> Iterator[int]:
    at = 0
    for _ in range(values.count(value)):
        at = values.index(value, at) + 1
        yield at - 1


@dataclass(frozen=True, slots=True)
class PatchedLines:
    """Lines as they read after edits."""

    text: str
    patches: array[int]
    """Where each part begins in `text`, and the part of the source that it stands for."""
    characters: int
    """Without what stands between lines that were not side by side."""
    is_cut: bool

    def __len__(self) -> int:
        return len(self.patches) // 3


def patch_lines(image: bytes, data: bytes, edits: Edits, most_characters: int) -> PatchedLines:
    """The lines around edits of a text, up to the part that comes to so many characters. `data`:
    the text in UTF-8, of which `image` has a byte for each character."""
    count = len(edits)
    room = 4 * count + 1
    text_bytes = min(len(data), _MAX_LINES_BYTES * count) + len(edits.text) + 3 * count + 3
    found, text = _zeros(3 * room), ctypes.create_string_buffer(text_bytes)
    record = _Patches(
        found=_at(found),
        text=ctypes.addressof(text),
        room=room,
        text_room=text_bytes,
        most=most_characters,
    )
    _patches(
        image,
        len(image),
        data,
        len(data),
        _at(edits.numbers),
        count,
        edits.text,
        len(edits.text),
        record,
    )
    del found[3 * record.count :]
    told = ctypes.string_at(text, record.text_size).decode()
    return PatchedLines(told, found, record.characters, bool(record.is_cut))
