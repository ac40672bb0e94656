"""Parses shell text with shfmt, a complete bash parser that others maintain.

Each new text is parsed by a process of its own, which keeps no state, reads no file and gets no
environment. A text that shfmt rejects, or does not parse in time, raises `NotUnderstood`.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, TypeAlias

from cellwall.core.host_programs import ProgramRefused, wheel_program

MAX_TEXT_BYTES = 64 * 1024
_MAX_TREE_BYTES = 16 * 1024 * 1024
_PATIENCE_S = 3.0
# Control characters but for tab and newline, marks that turn or break lines, surrogates.
_find_hidden = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
).search

# bash takes a backslash and the newline behind it away before all else: `$\\n(id)` runs id, and
# in a comment it means nothing. The parser sees some of these differently, so only the plain
# continuation of a line is taken: behind a blank, and with no comment before it.
_find_odd_continuation = re.compile(
    r"(?<![ \t])\\\n|(?:^|[ \t;&|()])#[^\n]*\\\n", re.MULTILINE
).search
_find_position = re.compile(r"([0-9]{1,9}):([0-9]{1,9}): ").search

Node: TypeAlias = Mapping[str, Any]
"""As shfmt writes it: a mapping with a `Type`, or without one where only one type can stand."""


class NotUnderstood(Exception):
    """The text, or a part of it, cannot be judged; the message says why."""


class BadSyntax(NotUnderstood):
    """The parser rejects the text at `offset`, in bytes; None: the parser names no position."""

    def __init__(self, message: str, offset: int | None = None) -> None:
        super().__init__(message)
        self.offset = offset


class TreeTooLarge(BadSyntax):
    """The tree of the text is larger than is read at once."""


def parse(text: str) -> Node:
    """The syntax tree of a whole text; recent trees are cached."""
    _check(text)
    return _parse_checked(text)


def _check(text: str) -> None:
    """Refuses characters that a terminal, a person and bash read differently."""
    found = _find_hidden(text)
    if found is not None:
        raise NotUnderstood(f"it holds the character \\u{ord(found[0]):04x}, which hides text")
    if text.endswith("\\"):
        raise NotUnderstood("it ends in the middle of a line")
    if len(text) > MAX_TEXT_BYTES or len(text.encode()) > MAX_TEXT_BYTES:
        raise NotUnderstood(f"it is longer than {MAX_TEXT_BYTES} bytes")


@lru_cache(maxsize=1024)
def _parse_checked(text: str) -> Node:
    tree = syntax_tree(text)
    if "#" in text:
        _check_comments(tree, text.encode())
    if "\\\n" in text and _find_odd_continuation(_without_quoted(tree, text.encode())):
        raise NotUnderstood(
            "a line is continued inside of a word, or behind a comment; write it on one line"
        )
    return tree


@lru_cache(maxsize=256)
def syntax_tree(text: str) -> Node:
    """The tree as the parser gives it, for readers that only report: shells may read some forms
    differently. Raises `BadSyntax`."""
    # The dialect is named: else a first line `#!/bin/mksh` would choose another one.
    command = [_program(), "-ln=bash", "--to-json"]
    source = text.encode()
    try:
        done = subprocess.run(
            command,
            input=source,
            capture_output=True,
            timeout=_PATIENCE_S,
            check=False,
            cwd="/",
            env={},
        )
    except subprocess.TimeoutExpired:
        raise BadSyntax("its parser did not answer in time") from None
    except OSError:
        raise BadSyntax("its parser could not be started") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        raise BadSyntax(
            f"it is no shell text that bash would take: {said[:200]}", _error_offset(said, source)
        )
    if len(done.stdout) > _MAX_TREE_BYTES:
        raise TreeTooLarge("its tree is too large")
    try:
        tree = json.loads(done.stdout)
    except (ValueError, RecursionError):
        raise BadSyntax("it is nested too deeply") from None
    if not isinstance(tree, dict):
        raise BadSyntax("its parser said nothing")
    return tree


def _error_offset(said: str, source: bytes) -> int | None:
    found = _find_position(said)
    if found is None:
        return None
    lines = source.split(b"\n")
    line, column = int(found[1]) - 1, int(found[2]) - 1
    return min(sum(len(each) + 1 for each in lines[:line]) + column, len(source))


def _without_quoted(tree: Node, text: bytes) -> str:
    """The text with what stands between single quotes, and in here-documents whose end is quoted,
    left out: there bash continues no line. Quotes inside of double quotes and of `${…}` stay."""
    kept = bytearray(text)
    waiting: list[Any] = [tree]
    while waiting:
        each = waiting.pop()
        if isinstance(each, list):
            waiting.extend(each)
        if not isinstance(each, dict):
            continue
        kind = each.get("Type")
        quoted = each if kind == "SglQuoted" and not each.get("Dollar") else None
        if "Hdoc" in each and any(part["Type"] != "Lit" for part in each["Word"]["Parts"]):
            quoted = each["Hdoc"]
        if quoted is not None:
            start, end = quoted["Pos"]["Offset"], quoted["End"]["Offset"]
            kept[start:end] = b"'" * (end - start)
        if kind not in ("DblQuoted", "ParamExp") and not each.get("Backquotes"):
            waiting.extend(each.values())
    return kept.decode("utf-8", "replace")


def _check_comments(tree: Node, text: bytes) -> None:
    """In a substitution the parser takes the `#` of `$x#; id` for a comment, and bash does not."""
    waiting: list[Any] = [tree]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            start = each["Hash"]["Offset"] if "Hash" in each else 0
            if start and text[start - 1] not in b" \t\n;&|(":
                raise NotUnderstood("where a comment begins can be read in two ways; quote the #")
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)


def nodes_of(tree: Node) -> Iterator[Node]:
    """The node itself, and all below it."""
    waiting: list[Any] = [tree]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield each
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)


@cache
def _program() -> str:
    """The program of our own installation, never one that PATH finds."""
    try:
        return wheel_program("shfmt-py", "shfmt")
    except ProgramRefused as refused:
        raise NotUnderstood(f"its parser cannot be started: {refused.why}") from None
