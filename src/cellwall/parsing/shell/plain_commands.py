"""Reads the simplest shell texts without a process: commands of plain and quoted words on one line,
joined by `|`, `&&`, `||` and `;`.

Every shell reads these texts alike: no character outside of quotes expands, splits, redirects or
groups, and no character inside of double quotes has a meaning. The tree is the one that shfmt
gives, which the tests compare; any other text goes to shfmt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

MAX_PLAIN_CHARACTERS = 4096
"""A longer text goes to the process, whose time and output are limited."""
_MAX_JOINED = 64
"""Commands of one pipeline or list: each nests the tree by one level."""
# History expansion belongs to interactive shells alone, but `!` also negates: it is left to shfmt.
_PARTS = (
    r"[\w./:@%+,=-]+",
    r"'[^'!\x00-\x1f\x7f]*'",
    r'"[^"$`\\!\x00-\x1f\x7f]*"',
)
_match_token = re.compile(
    rf" *(?:(?P<operator>&&|\|\||[|;])|(?P<word>(?:{'|'.join(_PARTS)})+))", re.ASCII
).match
_find_parts = re.compile("|".join(_PARTS), re.ASCII).finditer
_match_program = re.compile(r"[\w./:@%+,-]+", re.ASCII).fullmatch
_KEYWORDS = frozenset(
    (
        *("if", "then", "elif", "else", "fi", "while", "until", "for", "select", "do", "done"),
        *("case", "esac", "in", "function", "time", "coproc", "let", "declare", "local", "export"),
        *("readonly", "typeset", "nameref"),
    )
)
"""In the place of a program these begin or end another form than a simple command."""

_Node = Mapping[str, Any]
_Token = tuple[str, int, int]
"""`word` or `operator`, and its span."""


def plain_tree(text: str) -> _Node | None:
    """The syntax tree; None: the text is not one of the simplest, and shfmt has to read it."""
    tokens = _tokens(text)
    return None if tokens is None else _CommandLineReader(text, tokens).file()


def _tokens(text: str) -> list[_Token] | None:
    if len(text) > MAX_PLAIN_CHARACTERS or not text.isascii():
        return None
    tokens: list[_Token] = []
    end, size = 0, len(text.rstrip(" "))
    while end < size:
        token = _match_token(text, end)
        if token is None or token.lastgroup is None:
            return None
        start, end = token.span(token.lastgroup)
        tokens.append((token.lastgroup, start, end))
    return tokens


class _NotPlainCommand(Exception):
    """The words are not those of simple commands."""


class _CommandLineReader:
    """Reads the tokens of one text, from left to right."""

    def __init__(self, text: str, tokens: Sequence[_Token]) -> None:
        self._text = text
        self._tokens = tokens
        self._at = 0
        self._joined = 0

    def file(self) -> _Node | None:
        statements: list[_Node] = []
        try:
            while self._at < len(self._tokens):
                statements.append(self._statement())
        except _NotPlainCommand:
            return None
        if not statements:
            return None
        whole = {"Pos": statements[0]["Pos"], "End": statements[-1]["End"]}
        return {"Type": "File", **whole, "Stmts": statements}

    def _statement(self) -> _Node:
        """A list of pipelines, and the semicolon after it."""
        left = self._pipeline()
        while (operator := self._accept("&&", "||")) is not None:
            left = self._join(left, operator, self._pipeline())
        semicolon = self._accept(";")
        if semicolon is not None:
            start, end = semicolon
            return {**left, "End": _place(end), "Semicolon": _place(start)}
        if self._at < len(self._tokens):
            raise _NotPlainCommand
        return left

    def _pipeline(self) -> _Node:
        left = self._command()
        while (operator := self._accept("|")) is not None:
            left = self._join(left, operator, self._command())
        return left

    def _join(self, left: _Node, operator: tuple[int, int], right: _Node) -> _Node:
        self._joined += 1
        if self._joined > _MAX_JOINED:
            raise _NotPlainCommand
        start, end = operator
        whole = {"Pos": left["Pos"], "End": right["End"]}
        operation = {"OpPos": _place(start), "Op": self._text[start:end]}
        joined = {"Type": "BinaryCmd", **whole, **operation, "X": left, "Y": right}
        return {**whole, "Cmd": joined, "Position": left["Pos"]}

    def _command(self) -> _Node:
        words: list[_Node] = []
        while self._at < len(self._tokens) and self._tokens[self._at][0] == "word":
            _, start, end = self._tokens[self._at]
            if not words and not self._is_program(self._text[start:end]):
                raise _NotPlainCommand
            words.append(self._word(start, end))
            self._at += 1
        if not words:
            raise _NotPlainCommand
        whole = {"Pos": words[0]["Pos"], "End": words[-1]["End"]}
        call = {"Type": "CallExpr", **whole, "Args": words}
        return {**whole, "Cmd": call, "Position": whole["Pos"]}

    @staticmethod
    def _is_program(word: str) -> bool:
        return _match_program(word) is not None and word not in _KEYWORDS

    def _word(self, start: int, end: int) -> _Node:
        parts = [self._part(*part.span()) for part in _find_parts(self._text, start, end)]
        return {**_span(start, end), "Parts": parts}

    def _part(self, start: int, end: int) -> _Node:
        quote = self._text[start]
        if quote not in "'\"":
            return self._literal(start, end)
        place = {**_span(start, end), "Left": _place(start), "Right": _place(end - 1)}
        is_empty = end - start == len("''")
        if quote == "'":
            value = {} if is_empty else {"Value": self._text[start + 1 : end - 1]}
            return {"Type": "SglQuoted", **place, **value}
        parts = {} if is_empty else {"Parts": [self._literal(start + 1, end - 1)]}
        return {"Type": "DblQuoted", **place, **parts}

    def _literal(self, start: int, end: int) -> _Node:
        place = _span(start, end)
        value = {"ValuePos": place["Pos"], "ValueEnd": place["End"], "Value": self._text[start:end]}
        return {"Type": "Lit", **place, **value}

    def _accept(self, *operators: str) -> tuple[int, int] | None:
        """The span of the next token if it is one of these operators."""
        if self._at >= len(self._tokens):
            return None
        kind, start, end = self._tokens[self._at]
        if kind != "operator" or self._text[start:end] not in operators:
            return None
        self._at += 1
        return start, end


def _span(start: int, end: int) -> dict[str, Any]:
    return {"Pos": _place(start), "End": _place(end)}


def _place(at: int) -> _Node:
    """The text is one line of ASCII: offsets are columns."""
    return {"Offset": at, "Line": 1, "Col": at + 1}
