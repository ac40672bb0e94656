"""A text as C reads it where characters count: code points, and what kind each is to Python.

C has no table of Unicode: the kinds are asked of the interpreter that runs, each character once, so
that both never differ.
"""

from __future__ import annotations

import ctypes
import re
from array import array
from enum import IntFlag

from cellwall.guard.ctext.library import SIZE, function

_CODES = 0x110000


class Kind(IntFlag):
    """What a character is, as `passages.h` has it."""

    WORD = 1
    LETTER = 2
    DIGIT = 4
    SPACE = 8
    ALPHA = 16
    UPPER = 32
    MARK = 64
    KNOWN = 128


_IS_MARK = re.compile(
    "[\u0300-\u036f\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\u0900-\u0903\u093a-\u094f"
    "\u0951-\u0957\u0962\u0963\u0981-\u0983\u09bc-\u09cd\u09d7\u0a01-\u0a03\u0a3c-\u0a51\u0a81-\u0a83"
    "\u0abc-\u0acd\u0b82\u0bbe-\u0bcd\u0c00-\u0c03\u0c3e-\u0c56\u0d02\u0d03\u0d3e-\u0d4d\u0e31"
    "\u0e34-\u0e3a\u0e47-\u0e4e]"
)
"""Vowel signs and other marks that belong to a letter, which `\\w` leaves out: without them, words
of Hindi, Bengali, Thai and others are cut in the middle."""


def kind_of(character: str) -> Kind:
    """By Python's `str` and `re`."""
    is_word = character.isalnum() or character == "_"
    is_letter = is_word and not character.isdecimal() and character != "_"
    return (
        Kind.KNOWN
        | Kind.WORD * is_word
        | Kind.LETTER * is_letter
        | Kind.DIGIT * character.isdecimal()
        | Kind.SPACE * character.isspace()
        | Kind.ALPHA * character.isalpha()
        | Kind.UPPER * character.isupper()
        | Kind.MARK * (_IS_MARK.match(character) is not None)
    )


_ASCII_KINDS = bytes(kind_of(chr(code)) if code < 0x80 else 0 for code in range(256))
# Filled with the characters that texts have. Two threads write the same numbers.
_kinds = bytearray(_CODES)
_kinds_place = (ctypes.c_char * _CODES).from_buffer(_kinds)
_find_kinds = function(
    "cw_kinds", ctypes.c_int, ctypes.c_char_p, SIZE, ctypes.c_void_p, ctypes.c_void_p
)


class Letters(ctypes.Structure):
    """A text for C; holds what it points to."""

    _fields_ = (("codes", ctypes.c_char_p), ("kinds", ctypes.c_char_p), ("size", SIZE))


def letters(text: str) -> Letters:
    """The code points of a text, half surrogates too, and their kinds."""
    codes = text.encode("utf-32-le", "surrogatepass")
    kinds = text.encode().translate(_ASCII_KINDS) if text.isascii() else _kinds_of(text, codes)
    return Letters(codes, kinds, len(text))


def _kinds_of(text: str, codes: bytes) -> bytes:
    room = array("B", bytes(len(text)))
    place = room.buffer_info()[0]
    if not _find_kinds(codes, len(text), ctypes.addressof(_kinds_place), place):
        for character in set(text):
            _kinds[ord(character)] = kind_of(character)
        _find_kinds(codes, len(text), ctypes.addressof(_kinds_place), place)
    return room.tobytes()
