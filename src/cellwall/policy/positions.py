"""JSON and TOML with the position of every value. Pure; bounded; raises `PositionError`."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from cellwall.config.settings_file import KeyPath, find_deep_line, index_lines, nearest_line
from cellwall.core.errors import ConfigError
from cellwall.core.verdict import Verdict

MAX_NESTING = 32
MAX_VALUES = 10_000
"""Of one list: rules of a file, or calls of a table."""
MAX_MISTAKES = 100
VERDICTS = {"deny": Verdict.DENY, "ask": Verdict.ASK, "allow": Verdict.ALLOW}

Position = tuple[int, int]
"""Line and column, both from 1."""


class PositionError(Exception):
    """The text is malformed at this position."""

    def __init__(self, problem: str, place: Position, hint: str) -> None:
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
    """Exact offsets for JSON; None for TOML, which has lines alone, and columns are searched."""

    def place(self, path: KeyPath, *, inside: int = 0) -> Position:
        """The position of a value, or of the nearest one around it; `inside` counts characters."""
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

    def _at(self, offset: int) -> Position:
        line = bisect_right(self._newlines, offset - 1)
        return line + 1, offset - (self._newlines[line - 1] + 1 if line else 0) + 1

    @cached_property
    def _lines(self) -> Mapping[KeyPath, int]:
        return index_lines(self.text)

    def _place_in_toml(self, path: KeyPath, inside: int) -> Position:
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
    deep = find_deep_line(text, most=MAX_NESTING)
    if deep is not None:
        raise PositionError(
            f"nested more than {MAX_NESTING} deep", (deep, 1), "Rules are at most two tables deep."
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
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"')
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
        """Skips blanks; returns the next character, empty at the end."""
        found = _BLANK.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return self.text[self.at : self.at + 1]

    def value(self, path: KeyPath) -> object:
        char = self.skip()
        self.offsets[path] = self.at
        if len(path) > MAX_NESTING:
            raise self.wrong(f"nested more than {MAX_NESTING} deep")
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
            raise self.wrong("a string is not closed, or holds a character that must be escaped")
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
                # Readers differ in which of two keys counts, so a denial could be void.
                raise self.wrong("duplicate key", start)
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
    """A JSON document by RFC 8259: no comments, no duplicate keys."""
    reader = _JsonReader(text)
    value = reader.value(())
    if reader.skip():
        raise reader.wrong("text follows the end")
    return Document(text, value, reader.offsets)


def read_document(text: str, *, file: str, code: str, is_json: bool = False) -> Document:
    """A JSON or TOML document. Raises `ConfigError` with the position of a syntax error."""
    try:
        return read_json(text) if is_json else read_toml(text)
    except PositionError as error:
        line, column = error.place
        problem = f"{file}:{line}:{column}: {error.problem}"
        raise ConfigError(problem, hint=error.hint, code=code) from None


# Reads a document and reports all mistakes in it together, each with its position.


@dataclass(slots=True)
class DocumentParser:
    """Collects the mistakes of one document."""

    document: Document
    file: str
    mistakes: list[tuple[int, int, str]] = field(default_factory=list, init=False)

    def wrong(self, path: KeyPath, problem: str, hint: str, *, inside: int = 0) -> None:
        line, column = self.document.place(path, inside=inside)
        self.mistakes.append((line, column, f"{_path_text(path)}: {problem}. {hint}".lstrip(": ")))

    def report(self, *, code: str, hint: str) -> None:
        """Raises `ConfigError` if there is a mistake."""
        if not self.mistakes:
            return
        ordered = sorted(self.mistakes)
        lines = [f"{self.file}:{line}:{column}: {text}" for line, column, text in ordered]
        if len(lines) > MAX_MISTAKES:
            lines[MAX_MISTAKES:] = [f"{self.file}: and {len(lines) - MAX_MISTAKES} more"]
        raise ConfigError("\n".join(lines), hint=hint, code=code)

    def table(self, path: KeyPath, value: object) -> Mapping[str, object]:
        if isinstance(value, dict):
            return value
        self.wrong(path, "this is not a table", "Write keys and their values here.")
        return {}

    def array(self, path: KeyPath, value: object) -> list[object]:
        if isinstance(value, list):
            return value[: MAX_VALUES + 1]
        self.wrong(path, "this is not a list", 'Write for example ["Bash(git status)"].')
        return []

    def texts(self, path: KeyPath, value: object) -> Iterator[tuple[KeyPath, str]]:
        for number, each in enumerate(self.array(path, value)):
            if isinstance(each, str):
                yield (*path, number), each
            else:
                self.wrong((*path, number), "this is not a string", "Write each one in quotes.")

    def verdict(self, path: KeyPath, table: Mapping[str, object]) -> Verdict | None:
        word = table.get("verdict")
        found = VERDICTS.get(word) if isinstance(word, str) else None
        if found is None:
            hint = 'Write verdict = "deny", "ask" or "allow".'
            self.wrong((*path, "verdict"), "the verdict is missing or unknown", hint)
        return found

    def refuse_unknown(
        self, path: KeyPath, table: Mapping[str, object], known: Sequence[str]
    ) -> None:
        for key in table:
            if key not in known:
                close = difflib.get_close_matches(key[:80], known, n=1)
                hint = f"Did you mean {close[0]}?" if close else f"Known here: {', '.join(known)}."
                self.wrong((*path, key), "unknown key", hint)


# Terminals interpret control characters, so no text of the file is shown raw or at full length.


def quote_start(text: str) -> str:
    """The first characters of a text, escaped and in quotes."""
    return json.dumps(text[:60]) + ("…" if len(text) > 60 else "")


def _path_text(path: KeyPath) -> str:
    shown = ""
    for part in path:
        if isinstance(part, int):
            shown += f"[{part}]"
        else:
            is_bare = part.isascii() and part.replace("_", "a").isalnum() and len(part) <= 60
            shown += ("." if shown else "") + (part if is_bare else quote_start(part))
    return shown
