"""Text files that configure Cellwall: read within bounds, and the lines of their TOML keys (CFG-2).

`read_settings` opens a file without blocking, checks the open file, and reads it within bounds; the
caller maps a fault to its own error. `tomllib` drops line numbers, so `index_lines` finds them for
error messages: pure, never raises, linear in the length of any text that `find_deep_line` passed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from cellwall.core.limits import MIB

MAX_BYTES = MIB


class Fault(Enum):
    """Why a file is refused; people see the value after the name of the file."""

    ABSENT = "no such file"
    FORBIDDEN = "may not be read"
    LOOP = "its symbolic links form a loop"
    LONG_NAME = "the name is too long"
    UNREADABLE = "cannot be read"
    FOLDER = "is a directory"
    IRREGULAR = "is not a regular file"
    STRANGER = "belongs to another user"
    WRITABLE = "can be written by other users"
    TOO_LARGE = "is larger than 1 MiB"
    NOT_TEXT = "not UTF-8 text"


UNSAFE = frozenset((Fault.STRANGER, Fault.WRITABLE))
"""Faults by which another user could have written the content."""
_BY_NUMBER = {
    errno.ENOENT: Fault.ABSENT,
    errno.ENOTDIR: Fault.ABSENT,
    errno.EACCES: Fault.FORBIDDEN,
    errno.ELOOP: Fault.LOOP,
    errno.ENAMETOOLONG: Fault.LONG_NAME,
}


class FileRefused(Exception):
    """Never leaves the part that reads the file."""

    def __init__(self, fault: Fault, line: int = 0) -> None:
        super().__init__(fault.value)
        self.fault = fault
        self.line = line
        """The position, if the fault concerns one line."""


def read_settings(path: str, *, may_group_write: bool = False) -> str:
    """The text of the file; raises `FileRefused` for one that cannot be read or trusted."""
    try:
        # O_NONBLOCK: opening a FIFO would block until a writer comes.
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise FileRefused(_fault(error)) from None
    try:
        _judge(os.fstat(opened), may_group_write=may_group_write)
        raw = _read_bounded(opened)
    except OSError as error:
        raise FileRefused(_fault(error)) from None
    finally:
        os.close(opened)
    try:
        return raw.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise FileRefused(Fault.NOT_TEXT, raw.count(b"\n", 0, error.start) + 1) from None


def _fault(error: OSError | ValueError) -> Fault:
    number = error.errno if isinstance(error, OSError) and error.errno else 0
    return _BY_NUMBER.get(number, Fault.UNREADABLE)


def _judge(found: os.stat_result, *, may_group_write: bool) -> None:
    """Check the open file, not its path, which may change in between."""
    if stat.S_ISDIR(found.st_mode):
        raise FileRefused(Fault.FOLDER)
    if not stat.S_ISREG(found.st_mode):
        raise FileRefused(Fault.IRREGULAR)
    # Attack: another user plants settings that disable isolation or allow actions. The group bits
    # also show the mask of an access control list, so a writer named there is seen as well.
    if found.st_uid not in {0, os.geteuid()}:
        raise FileRefused(Fault.STRANGER)
    writers = stat.S_IWOTH if may_group_write else stat.S_IWGRP | stat.S_IWOTH
    if found.st_mode & writers:
        raise FileRefused(Fault.WRITABLE)


def _read_bounded(opened: int) -> bytes:
    raw = bytearray()
    while block := os.read(opened, MAX_BYTES + 1 - len(raw)):
        raw += block
        if len(raw) > MAX_BYTES:
            raise FileRefused(Fault.TOO_LARGE)
    return bytes(raw)


KeyPath = tuple[str | int, ...]
"""Keys from the root of the document; a number is an array index."""

# Possessive repeats and closings that may be missing: an unfinished string becomes one token
# instead of being tried again from each of its quotes, which would take quadratic time.
_TOKEN = re.compile(
    r'''
      (?P<blank>[ \t\r]+|\#[^\n]*+)
    | (?P<newline>\n)
    | (?P<string>
          """(?:[^"\\]++|\\.|"{1,2}(?!"))*"{0,5}
        | \'\'\'(?:[^']++|'{1,2}(?!'))*'{0,5}
        | "(?:\\[^\n]|[^"\\\n])*+"?
        | '[^'\n]*+'?
      )
    | (?P<mark>[\[\]{}=,.])
    | (?P<bare>[^\s\[\]{}=,."'\#]+|.)
    ''',
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class _TomlToken:
    kind: str
    text: str
    line: int


def _tokens(text: str) -> Iterator[_TomlToken]:
    line = 1
    for found in _TOKEN.finditer(text):
        kind, word = found.lastgroup or "bare", found.group()
        if kind != "blank":
            yield _TomlToken(kind, word, line)
        line += word.count("\n")


def _key_of(token: _TomlToken) -> str:
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

    def read(self, token: _TomlToken, previous: _TomlToken | None) -> None:
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

    def add_part(self, token: _TomlToken) -> None:
        if not self.parts:
            self.parts_line = token.line
        self.parts.append(_key_of(token))

    def end_of_line(self) -> None:
        if not self.stack:
            self.header, self.value_of, self.parts = 0, None, []

    def in_header(self, token: _TomlToken, previous: _TomlToken | None) -> None:
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

    def at_mark(self, token: _TomlToken) -> None:
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
    previous: _TomlToken | None = None
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
