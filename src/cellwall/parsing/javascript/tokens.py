"""The tokens of JavaScript and TypeScript, in one pass. Pure.

A slash divides or begins a regex: a scan that takes one for the other misses all code behind the
next quote. Where the tokens before a slash do not decide, and the two readings go on differently,
the place is a doubt.
"""

from __future__ import annotations

import re
from itertools import count
from typing import Literal, NamedTuple

from cellwall.parsing.budget import checked
from cellwall.parsing.javascript.patterns import NAMES, TOKENS

OPERATORS = NAMES["operators"]
SOMETIMES = frozenset({"yield", "await", "of"})
"""Operators in one place and names in another."""
HEADS = frozenset({"if", "while", "for", "with"})
_OPERANDS = frozenset({"name", "number", "string", "template", "regex"})
_DOTS = frozenset({".", "?."})
_MAX_TEXT = 16_384
_MAX_DOUBTS = 32


class JavaScriptToken(NamedTuple):
    """`text` of a name is without escapes, of a string its value."""

    kind: str
    text: str
    start: int
    end: int


class Tokenizer:
    """Cuts one piece of code into tokens, in one pass."""

    def __init__(self, code: str) -> None:
        self._code = code
        self.tokens: list[JavaScriptToken] = []
        self.doubts: list[tuple[int, int]] = []
        """Places with two readings; behind the last of too many nothing is read."""
        self._brackets: list[str] = []
        """For each open `(` and `{`: `head` of a statement, `template`, or nothing special."""
        self._closed = ""
        self._wasted = 0

    def run(self) -> None:
        code, at = self._code, 0
        if code.startswith("#!", int(code.startswith("\ufeff"))):
            at = _line_end(code, 0)
        for _ in checked(count(), every=256):
            match = TOKENS["TOKEN"].match(code, at) if len(self.doubts) <= _MAX_DOUBTS else None
            if match is None:
                break
            kind, text, end = match.lastgroup or "", match[0], match.end()
            if kind == "special":
                end = self._read_special(text, at)
            elif kind == "string":
                is_closed = len(text) > 1 and text[-1] == text[0]
                self._add(kind, unescape(text[1:-1] if is_closed else text[1:]), at, end)
            elif kind == "sign":
                self._note_bracket(text)
                self._add(kind, text, at, end)
                if text == "}" and self._closed == "template":
                    end = self._read_template(at)
            elif kind != "skip":
                self._add(kind, unescape(text), at, end)
            at = end
        if len(self.doubts) > _MAX_DOUBTS:
            self.doubts[-1] = (self.doubts[-1][0], len(code))

    def _add(self, kind: str, text: str, start: int, end: int) -> None:
        self.tokens.append(JavaScriptToken(kind, text, start, end))

    def _note_bracket(self, text: str) -> None:
        if text in "({":
            is_head = text == "(" and self._is_word(-1 - (self._text(-1) == "await"), HEADS)
            self._brackets.append("head" if is_head else "")
        elif text in ")}":
            self._closed = self._brackets.pop() if self._brackets else ""

    def _read_special(self, text: str, at: int) -> int:
        if text == "`":
            return self._read_template(at)
        if text == "/":
            return self._read_slash(at)
        # `<!--` and `-->` begin a comment in scripts, and none in modules.
        is_opening, end = text != "-->", at + 2
        if is_opening or not self.tokens or self._has_line_end(-1, at):
            end = _line_end(self._code, at)
            if TOKENS["CODE"].search(self._code, at, end):
                self.doubts.append((at, end))
        return end

    def _read_template(self, at: int) -> int:
        """A piece of a template, up to its end or to the next `${`."""
        match = TOKENS["TEMPLATE"].match(self._code, at)
        end = match.end() if match else at + 1
        self._add("template", unescape(self._code[at + 1 : end]), at, min(end + 1, len(self._code)))
        if self._code.startswith("${", end):
            self._brackets.append("template")
            self._add("sign", "{", end, end + 2)
            return end + 2
        return end + 1

    def _read_slash(self, at: int) -> int:
        code, reading = self._code, self._classify_slash(at)
        regex = TOKENS["REGEX"].match(code, at) if reading != "division" else None
        if regex is not None:
            text, end = regex[0], regex.end()
            is_decisive = TOKENS["DECISIVE"].search(text) or code[end : end + 1] == "/"
            is_code = text.count("(") == text.count(")") and text.count("[") == text.count("]")
            if reading == "regex" or is_decisive or not is_code:
                if reading == "doubt" and is_decisive:
                    self.doubts.append((at, end))
                self._add("regex", "/r/", at, end)
                return end
        elif reading != "division":
            end = _line_end(code, at)
            self._wasted += end - at  # a line of slashes is not read from each of them
            if reading == "regex" and self._text(-1) != "<":
                self.doubts.append((at, end))  # this cannot run
            if self._wasted > 4 * len(code) + 10_000:
                self.doubts += [(at, len(code))] * (_MAX_DOUBTS + 1)
        self._add("sign", "/", at, at + 1)
        return at + 1

    def _classify_slash(  # noqa: PLR0911  # one return for each kind of token before the slash
        self, at: int
    ) -> Literal["regex", "division", "doubt"]:
        """What a slash at this place begins."""
        if not self.tokens:
            return "regex"
        last, before = self.tokens[-1], self.tokens[-2] if len(self.tokens) > 1 else None
        is_operand = before is not None and (before.kind in _OPERANDS or before.text in ")]}")
        if last.kind == "name":
            if last.text in SOMETIMES or "\\" in self._code[last.start : last.end]:
                return "division" if self._text(-2) in _DOTS else "doubt"
            return "regex" if self._is_word(-1, OPERATORS) else "division"
        if last.kind != "sign":
            return "division"
        match last.text:
            case "]":
                return "division"
            case ")":
                return "regex" if self._closed == "head" else "division"
            case "++" | "--" if is_operand and not self._has_line_end(-2, at):
                return "division"
            case "!":
                return "doubt" if is_operand and not self._has_line_end(-2, at) else "regex"
            case "}" | ">" | "++" | "--":  # a block or a value; the end of a type or an operator
                return "doubt"
            case _:
                return "regex"

    def _text(self, at: int) -> str:
        token = self.tokens[at] if -at <= len(self.tokens) else None
        return token.text if token is not None and token.kind in {"name", "sign"} else ""

    def _is_word(self, at: int, words: frozenset[str]) -> bool:
        """One of these words, and not the name of a property."""
        return self._text(at) in words and self._text(at - 1) not in _DOTS

    def _has_line_end(self, number: int, end: int) -> bool:
        """Whether a line ends between a token and this place."""
        return TOKENS["LINE"].fullmatch(self._code, self.tokens[number].end, end) is None


def _line_end(code: str, at: int) -> int:
    """The end of the line; the pattern also matches an empty line."""
    line = TOKENS["LINE"].match(code, at)
    return at if line is None else line.end()


def unescape(text: str) -> str:
    """The text without escapes; only the beginning of a long one is of interest."""
    return TOKENS["ESCAPE"].sub(_unescape_match, text[:_MAX_TEXT]) if "\\" in text else text


def _unescape_match(match: re.Match[str]) -> str:
    digits = match[1] or match[2] or match[3]
    if digits is None:
        return "" if match[4] in {"\n", "\r\n"} else match[4]
    return chr(int(digits, 16)) if int(digits, 16) < 0x110000 else ""
