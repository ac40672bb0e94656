"""JSON and TOML with the position of every value. Pure; bounded; raises `PositionError`."""

from __future__ import annotations

import json
import re
import tomllib
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from cellwall.config.locate import KeyPath, find_deep_line, index_lines, nearest_line

NESTING_MOST = 32

Place = tuple[int, int]
"""Line and column, both from 1."""


class PositionError(Exception):
    """The text is malformed at this position."""

    def __init__(self, problem: str, place: Place, hint: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.place = place
        self.hint = hint


@dataclass(frozen=True)
class Document:
    """The values of a text, with their positions."""

    text: str
    value: object
    offsets: Mapping[KeyPath, int] | None = None
    """Of JSON: exact. TOML has lines alone, and the column is looked for."""

    def place(self, path: KeyPath, *, inside: int = 0) -> Place:
        """Where a value stands, or the closest around it; `inside` counts characters of a text."""
        if self.offsets is None:
            return self._place_in_toml(path, inside)
        for length in range(len(path), -1, -1):
            offset = self.offsets.get(path[:length])
            if offset is not None:
                is_text = length == len(path) and self.text[offset : offset + 1] == '"'
                return self._at(offset + (1 + inside if is_text and inside else 0))
        return (1, 1)

    @cached_property
    def _newlines(self) -> list[int]:
        return [found.start() for found in re.finditer("\n", self.text)]

    def _at(self, offset: int) -> Place:
        line = bisect_right(self._newlines, offset - 1)
        return line + 1, offset - (self._newlines[line - 1] + 1 if line else 0) + 1

    @cached_property
    def _lines(self) -> Mapping[KeyPath, int]:
        return index_lines(self.text)

    def _place_in_toml(self, path: KeyPath, inside: int) -> Place:
        line = nearest_line(self._lines, path)
        start = self._newlines[line - 2] + 1 if 1 < line <= len(self._newlines) + 1 else 0
        end = self.text.find("\n", start)
        row = self.text[start : end if end >= 0 else len(self.text)]
        wanted = self._text_at(path)
        if wanted:
            for quote in "\"'":
                at = row.find(quote + wanted + quote)
                if at >= 0:
                    return line, at + 1 + (1 + inside if inside else 0)
        return line, len(row) - len(row.lstrip()) + 1

    def _text_at(self, path: KeyPath) -> str:
        value = self.value
        for part in path:
            match value, part:
                case dict(), str() if part in value:
                    value = value[part]
                case list(), int() if part < len(value):
                    value = value[part]
                case _:
                    return ""
        return value if isinstance(value, str) else ""


# TOML

_TOML_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


def read_toml(text: str) -> Document:
    """A TOML document."""
    deep = find_deep_line(text, most=NESTING_MOST)
    if deep is not None:
        raise PositionError(
            f"nested more than {NESTING_MOST} deep", (deep, 1), "Rules are at most two tables deep."
        )
    try:
        return Document(text, tomllib.loads(text))
    except (ValueError, RecursionError) as error:
        place = _TOML_PLACE.search(str(error))
        line = int(place[1]) if place and place[1] else text.rstrip().count("\n") + 1
        column = int(place[2]) if place and place[2] else 1
        why = "".join(c if c.isprintable() else "?" for c in _TOML_PLACE.sub("", str(error))[:300])
        raise PositionError(
            f"not valid TOML: {why}", (line, column), "Correct that line and try again."
        ) from None


# JSON

_BLANK = re.compile(r"[ \t\n\r]*")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+"')
_SCALAR = re.compile(
    r"(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)|true|false|null"
)
_WORDS = {"true": True, "false": False, "null": None}
_MAX_NUMBER_CHARACTERS = 64


@dataclass
class _JsonReader:
    text: str
    at: int = 0
    offsets: dict[KeyPath, int] = field(default_factory=dict)

    def wrong(self, problem: str, at: int | None = None) -> PositionError:
        place = Document(self.text, None, {(): self.at if at is None else at}).place(())
        return PositionError(f"not valid JSON: {problem}", place, "Correct it and try again.")

    def skip(self) -> str:
        """Past blanks; the character that comes next, empty at the end."""
        found = _BLANK.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return self.text[self.at : self.at + 1]

    def value(self, path: KeyPath) -> object:
        char = self.skip()
        self.offsets[path] = self.at
        if len(path) > NESTING_MOST:
            raise self.wrong(f"nested more than {NESTING_MOST} deep")
        match char:
            case "{":
                return self.mapping(path)
            case "[":
                return self.array(path)
            case '"':
                return self.string()
            case _:
                return self.scalar()

    def string(self) -> str:
        found = _STRING.match(self.text, self.at)
        if found is None:
            raise self.wrong("a text is not closed, or holds a character that must be escaped")
        self.at = found.end()
        return str(json.loads(found.group()))

    def scalar(self) -> object:
        found = _SCALAR.match(self.text, self.at)
        if found is None or len(found.group()) > _MAX_NUMBER_CHARACTERS:
            raise self.wrong("a value was expected here")
        self.at = found.end()
        return json.loads(found.group()) if found["number"] else _WORDS[found.group()]

    def mapping(self, path: KeyPath) -> dict[str, object]:
        found: dict[str, object] = {}
        self.at += 1
        if self.skip() == "}":
            self.at += 1
            return found
        while True:
            if self.skip() != '"':
                raise self.wrong("a key in quotes was expected here")
            start = self.at
            key = self.string()
            if key in found:
                # Readers differ in which of two counts, so a denial could be there and not hold.
                raise self.wrong("this key stands twice", start)
            if self.skip() != ":":
                raise self.wrong("a colon was expected here")
            self.at += 1
            found[key] = self.value((*path, key))
            if self.ends("}"):
                return found

    def array(self, path: KeyPath) -> list[object]:
        found: list[object] = []
        self.at += 1
        if self.skip() == "]":
            self.at += 1
            return found
        while True:
            found.append(self.value((*path, len(found))))
            if self.ends("]"):
                return found

    def ends(self, closing: str) -> bool:
        char = self.skip()
        if char not in {closing, ","}:
            raise self.wrong(f"a comma or {closing} was expected here")
        self.at += 1
        return char == closing


def read_json(text: str) -> Document:
    """A JSON document, as RFC 8259 has it: no comments, no key twice."""
    reader = _JsonReader(text)
    value = reader.value(())
    if reader.skip():
        raise reader.wrong("something follows the end")
    return Document(text, value, reader.offsets)
