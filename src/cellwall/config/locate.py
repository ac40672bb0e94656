"""Line numbers of keys in TOML text, for error messages: `tomllib` drops them (CFG-2).

Pure; never raises; linear in the length of any text that `find_deep_line` has passed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

KeyPath = tuple[str | int, ...]
"""Keys from the root of the document; a number is an array index."""

# Possessive repeats and closings that may be missing: an unfinished string becomes one token
# instead of being tried again from each of its quotes, which would take quadratic time.
_TOKEN = re.compile(
    r'''
      (?P<blank>[ \t\r]+|\#[^\n]*+)
    | (?P<newline>\n)
    | (?P<string>
          """(?:\\.|(?!""")[^\\])*+"{0,5}
        | \'\'\'(?:(?!\'\'\').)*+'{0,5}
        | "(?:\\[^\n]|[^"\\\n])*+"?
        | '[^'\n]*+'?
      )
    | (?P<mark>[\[\]{}=,.])
    | (?P<bare>[^\s\[\]{}=,."'\#]+|.)
    ''',
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    line: int


def _tokens(text: str) -> Iterator[_Token]:
    line = 1
    for found in _TOKEN.finditer(text):
        kind, word = found.lastgroup or "bare", found.group()
        if kind != "blank":
            yield _Token(kind, word, line)
        line += word.count("\n")


def _key_of(token: _Token) -> str:
    if token.kind != "string":
        return token.text
    try:
        return next(iter(tomllib.loads(token.text + " = 0")))
    except ValueError:
        return token.text


@dataclass(slots=True)
class _Open:
    """An array or inline table that is not closed yet; `place` counts an array's elements."""

    path: KeyPath
    place: int | None


@dataclass(slots=True)
class _Indexer:
    """Reads tokens one by one and notes the line of every key and element."""

    lines: dict[KeyPath, int] = field(default_factory=dict)
    table: KeyPath = ()
    table_counts: dict[KeyPath, int] = field(default_factory=dict)
    stack: list[_Open] = field(default_factory=list)
    # What the next token belongs to.
    header: int = 0  # brackets that opened the header being read; 0 outside of one
    value_of: KeyPath | None = None  # the key or element whose value comes next
    parts: list[str] = field(default_factory=list)
    parts_line: int = 1

    def note(self, base: KeyPath, parts: list[str], line: int) -> KeyPath:
        """Note a dotted key and the tables that it implies; the first line of each counts."""
        path = base
        for part in parts:
            path = (*path, part)
            self.lines.setdefault(path, line)
        return path

    def read(self, token: _Token, previous: _Token | None) -> None:
        if token.kind == "newline":
            self.end_of_line()
        elif self.header:
            self.in_header(token, previous)
        elif token.kind == "mark":
            self.at_mark(token)
        elif self.value_of is not None:
            self.lines.setdefault(self.value_of, token.line)
        elif self.in_table():
            self.add_part(token)

    def in_table(self) -> bool:
        return not self.stack or self.stack[-1].place is None

    def add_part(self, token: _Token) -> None:
        if not self.parts:
            self.parts_line = token.line
        self.parts.append(_key_of(token))

    def end_of_line(self) -> None:
        if not self.stack:
            self.header, self.value_of, self.parts = 0, None, []

    def in_header(self, token: _Token, previous: _Token | None) -> None:
        match token.text if token.kind == "mark" else "":
            case "[" if previous is not None and previous.text == "[" and not self.parts:
                self.header = 2
            case "]":
                self.end_header()
            case "":
                self.add_part(token)

    def end_header(self) -> None:
        if not self.parts:
            return  # the second bracket of a `]]`
        path: KeyPath = ()
        for part in self.parts[:-1]:
            path = self.into_element(self.note(path, [part], self.parts_line))
        path = self.note(path, self.parts[-1:], self.parts_line)
        if self.header == 2:
            self.table_counts[path] = self.table_counts.get(path, -1) + 1
            self.lines[*path, self.table_counts[path]] = self.parts_line
            path = self.into_element(path)
        self.table, self.parts = path, []

    def into_element(self, path: KeyPath) -> KeyPath:
        """`[a.b]` after `[[a]]` refers to the last element of `a`."""
        return (*path, self.table_counts[path]) if path in self.table_counts else path

    def at_mark(self, token: _Token) -> None:
        match token.text:
            case "=" if self.parts and self.value_of is None:
                base = self.stack[-1].path if self.stack else self.table
                self.value_of, self.parts = self.note(base, self.parts, self.parts_line), []
            case "[" | "{" if self.value_of is not None:
                self.lines.setdefault(self.value_of, token.line)
                place = 0 if token.text == "[" else None
                self.stack.append(_Open(self.value_of, place))
                self.value_of = (*self.value_of, 0) if token.text == "[" else None
                self.parts = []
            case "[" if not self.stack:
                self.header = 1
            case "]" | "}" if self.stack:
                # Until a comma or end of line, tokens still belong to the closed value.
                self.value_of = self.stack.pop().path
            case "," if self.stack:
                self.next_element(self.stack[-1])

    def next_element(self, opened: _Open) -> None:
        self.parts = []
        if opened.place is None:
            self.value_of = None
        else:
            opened.place += 1
            self.value_of = (*opened.path, opened.place)


def index_lines(text: str) -> Mapping[KeyPath, int]:
    """The line of every key, table and array element of a TOML document."""
    indexer = _Indexer()
    previous: _Token | None = None
    for token in _tokens(text):
        indexer.read(token, previous)
        previous = token
    return indexer.lines


def nearest_line(lines: Mapping[KeyPath, int], path: KeyPath) -> int:
    """The line of `path`, else of the closest table around it, else 1."""
    for length in range(len(path), 0, -1):
        line = lines.get(path[:length])
        if line is not None:
            return line
    return 1


def find_line(text: str, path: KeyPath) -> int:
    """The line of `path` in `text`, else of the closest table around it, else 1."""
    return nearest_line(index_lines(text), path)


def find_deep_line(text: str, *, most: int) -> int | None:
    """The first line with more than `most` nested brackets or parts of one key.

    `tomllib` recurses for every bracket and copies a key for every dot: 100 KB of `a.a.a.…` keep
    it busy for minutes. Asked before parsing.
    """
    depth = parts = 0
    for token in _tokens(text):
        if token.kind == "mark" and token.text in "[{":
            depth += 1
        elif token.kind == "mark" and token.text in "]}":
            depth = max(0, depth - 1)
        if token.text == "." and token.kind == "mark":
            parts += 1
        elif token.kind in {"newline", "mark"}:
            parts = 0
        if max(depth, parts) > most:
            return token.line
    return None
