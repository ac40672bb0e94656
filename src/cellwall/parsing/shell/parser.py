"""Parses shell text with shfmt, a complete and maintained bash parser.

Each new text is parsed by a process of its own (parser_process.py). A text that shfmt rejects, or
does not parse in time, raises `NotUnderstood`. Commands of plain and quoted words on one line need
no process (plain_commands.py): every shell reads such a text alike.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, TypeAlias

from cellwall.core.errors import LayerMissing
from cellwall.core.host_programs import ProgramRefused, wheel_program
from cellwall.parsing.bounded_cache import TextCache
from cellwall.parsing.shell.parser_process import ParserProcesses
from cellwall.parsing.shell.plain_commands import plain_tree

MAX_TEXT_BYTES = 64 * 1024
_MAX_TREE_BYTES = 16 * 1024 * 1024
_TIMEOUT_S = 3.0
# Control characters but for tab and newline, marks that turn or break lines, surrogates.
_find_hidden = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
).search

# bash removes a backslash and the newline after it first of all: `$\\n(id)` runs id, and
# in a comment a backslash means nothing. The parser reads some of these differently, so only the
# plain continuation of a line is accepted: after a blank, and with no comment before it.
_find_odd_continuation = re.compile(
    r"(?<![ \t])\\\n|(?:^|[ \t;&|()])#[^\n]*\\\n", re.MULTILINE
).search
_find_position = re.compile(r"([0-9]{1,9}):([0-9]{1,9}): ").search

Node: TypeAlias = Mapping[str, Any]
"""As shfmt writes it: a mapping with a `Type`, or without one where only one type can stand."""


class NotUnderstood(Exception):
    """The text, or a part of the text, cannot be judged; the message says why."""


class BadSyntax(NotUnderstood):
    """The parser rejects the text at `offset`, in bytes; None: the parser names no position."""

    def __init__(self, message: str, offset: int | None = None) -> None:
        super().__init__(message)
        self.offset = offset


class TreeTooLarge(BadSyntax):
    """The syntax tree of the text exceeds the size limit."""


def parse(text: str) -> Node:
    """The syntax tree of a whole text; recent trees are cached."""
    _check(text)
    return _parse_checked(text)


def _check(text: str) -> None:
    """Refuses characters that a terminal, a person and bash read differently."""
    found = _find_hidden(text)
    if found is not None:
        raise NotUnderstood(f"the text holds the character U+{ord(found[0]):04X}, which hides text")
    if text.endswith("\\"):
        raise NotUnderstood("the text ends with a backslash, in the middle of a line")
    if len(text) > MAX_TEXT_BYTES or len(text.encode()) > MAX_TEXT_BYTES:
        raise NotUnderstood(f"the text is longer than {MAX_TEXT_BYTES} bytes")


@TextCache
def _parse_checked(text: str) -> Node:
    tree = syntax_tree(text)
    if "#" in text:
        _check_comments(tree, text.encode())
    if "\\\n" in text and _find_odd_continuation(_without_quoted(tree, text.encode())):
        raise NotUnderstood(
            "a line is continued inside a word or after a comment; write the command on one line"
        )
    return tree


@TextCache
def syntax_tree(text: str) -> Node:
    """The tree as the parser gives it, for readers that only report: shells may read some forms
    differently. Raises `BadSyntax`."""
    tree = plain_tree(text)
    return _run_parser(text) if tree is None else tree


def _run_parser(text: str) -> Node:
    source = text.encode()
    try:
        done = _processes().run(source, timeout_s=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise BadSyntax("the shell parser exceeded its time limit") from None
    except OSError:
        raise BadSyntax("the shell parser could not be started") from None
    if done.status != 0:
        message = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        raise BadSyntax(
            f"bash would reject the text: {message[:200]}", _error_offset(message, source)
        )
    if len(done.stdout) > _MAX_TREE_BYTES:
        raise TreeTooLarge("the syntax tree of the text is too large")
    try:
        tree = json.loads(done.stdout)
    except (ValueError, RecursionError):
        raise BadSyntax("the text is nested too deeply") from None
    if not isinstance(tree, dict):
        raise BadSyntax("the shell parser printed no syntax tree")
    return tree


def _error_offset(message: str, source: bytes) -> int | None:
    found = _find_position(message)
    if found is None:
        return None
    lines = source.split(b"\n")
    line, column = int(found[1]) - 1, int(found[2]) - 1
    return min(sum(len(each) + 1 for each in lines[:line]) + column, len(source))


def _without_quoted(tree: Node, text: bytes) -> str:
    """The text without single-quoted parts and without here-documents whose delimiter is quoted:
    bash continues no line there. Quotes inside double quotes and inside `${…}` stay."""

    def continues_lines(node: Node) -> bool:
        return node.get("Type") not in ("DblQuoted", "ParamExp") and not node.get("Backquotes")

    kept = bytearray(text)
    for each in nodes_of(tree, enters=continues_lines):
        is_quoted = each.get("Type") == "SglQuoted" and not each.get("Dollar")
        quoted = each if is_quoted else None
        if "Hdoc" in each and any(part["Type"] != "Lit" for part in each["Word"]["Parts"]):
            quoted = each["Hdoc"]
        if quoted is not None:
            start, end = quoted["Pos"]["Offset"], quoted["End"]["Offset"]
            kept[start:end] = b"'" * (end - start)
    return kept.decode("utf-8", "replace")


def _check_comments(tree: Node, text: bytes) -> None:
    """In a substitution the parser takes the `#` of `$x#; id` for a comment, and bash does not."""
    for each in nodes_of(tree):
        start = each["Hash"]["Offset"] if "Hash" in each else 0
        if start and text[start - 1] not in b" \t\n;&|(":
            raise NotUnderstood("the start of a comment is ambiguous; quote the #")


def nodes_of(*values: object, enters: Callable[[Node], bool] = lambda _: True) -> Iterator[Node]:
    """The nodes in these values and all below them, but for those below a node that `enters`
    rejects."""
    waiting = list(values)
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield each
            if enters(each):
                waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)


@cache
def _processes() -> ParserProcesses:
    # The dialect is named: else a first line `#!/bin/mksh` would choose another one.
    return ParserProcesses([_program(), "-ln=bash", "--to-json"])


def _program() -> str:
    """The program of this installation, never one that PATH finds."""
    try:
        return wheel_program("shfmt-py", "shfmt")
    except ProgramRefused as refused:
        # Not `NotUnderstood`: no other text would be understood, and a person can repair it.
        raise LayerMissing(
            f"the shell parser cannot be started: {refused.why}",
            hint=refused.hint,
            code="CW-SHELL-PARSER",
            detail=refused.detail,
        ) from None
