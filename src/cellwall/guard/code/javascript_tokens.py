"""Cuts JavaScript and TypeScript into tokens, in one pass and without ever giving up.

A slash divides, or begins a regex; who takes one for the other hides all that follows behind a
quote. Where that depends on more than is followed here, the place is noted as a doubt, and
the screening says that it could not read it.
"""

from __future__ import annotations

import re
from itertools import count
from typing import Literal, NamedTuple

from cellwall.parsing.budget import checked

Kind = Literal["name", "string", "template", "number", "regex", "sign"]
Reading = Literal["regex", "division", "doubt"]

_LINE_ENDS = "\n\r\u2028\u2029"
_PLAIN = re.compile(
    r"(?P<space>[\s\ufeff]+)"
    # `1..constructor` is a number and a name.
    r"|(?P<number>0[xXoObB][0-9A-Fa-f_]+n?|[0-9][0-9_]*(?:n|\.?[0-9_]*(?:[eE][+\-]?[0-9_]+)?))"
    r"|(?P<name>#?(?:[\w$\u200c\u200d]|\\u[0-9A-Fa-f]{4}|\\u\{[0-9A-Fa-f]{1,6}\})+)"
    r'|(?P<string>"[^"\\\n]*(?:\\(?:\r\n|[\s\S])[^"\\\n]*)*"?'
    r"|'[^'\\\n]*(?:\\(?:\r\n|[\s\S])[^'\\\n]*)*'?)"
    r"|(?P<sign>=>|\?\.(?![0-9])|\.\.\.|===|!==|==|!=|<=|>=|\?\?=|\|\|=|&&=|[+\-*%&|^]=|[\s\S])"
)
_TEMPLATE = re.compile(r"[^`\\$]*(?:(?:\\[\s\S]|\$(?!\{))[^`\\$]*)*")
_REGEX = re.compile(
    r"/(?![*/])[^/\\\[\n\r\u2028\u2029]*(?:(?:\\[^\n\r\u2028\u2029]"
    r"|\[[^\]\\\n\r\u2028\u2029]*(?:\\[^\n\r\u2028\u2029][^\]\\\n\r\u2028\u2029]*)*\])"
    r"[^/\\\[\n\r\u2028\u2029]*)*/\w*"
)
_LINE_END = re.compile(f"[{_LINE_ENDS}]")
_ESCAPE = re.compile(
    r"\\(?:u\{([0-9A-Fa-f]{1,6})\}|u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|(\r\n|[\s\S]))"
)
_PLAIN_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0"}
# Behind these a slash begins an expression; behind other names it divides.
_OPERATORS = frozenset(
    {"return", "typeof", "instanceof", "in", "new", "delete", "void", "throw", "case", "do",
     "else", "default", "extends", "break", "continue", "debugger"}
)  # fmt: skip
_SOMETIMES = frozenset({"yield", "await", "of"})
"""Operators in one place and names in another."""
_HEADS = frozenset({"if", "while", "for", "with"})
_BLOCKS = frozenset({"else", "do", "try", "finally"})
_BEFORE_VALUES = frozenset(
    {"(", ",", "=", "[", "?", "&", "|", "^", "%", "<", "~", "*", "/", "==", "!=", "===", "!==",
     "<=", ">=", "...", "+=", "-=", "*=", "%=", "&=", "|=", "^=", "??=", "||=", "&&="}
)  # fmt: skip
# In these a regex and a division go on in different ways.
_TELLING = re.compile(r"[`\"'{}]|/\*|//")
_SLASH = re.compile(r"[\s\ufeff]*/")
_MAX_TEXT = 4_096
_MAX_DOUBTS = 32


class JavaScriptToken(NamedTuple):
    """`text` of a name without escapes, of a string its value, else as it is written."""

    kind: Kind
    text: str
    start: int
    end: int


class Tokenizer:
    """Tokenizes one piece of code."""

    def __init__(self, code: str) -> None:
        self._code = code
        self.found: list[JavaScriptToken] = []
        self.doubts: list[tuple[int, int]] = []
        """Where it may be read otherwise; from the last of too many on, nothing is read."""
        self._brackets: list[str] = []
        """For each open `(` and `{`: what it is, in the words of `_opened_round`, `_opened`."""
        self._closed = ""
        """What the last `)` or `}` has closed."""
        self._wasted = 0
        self._read_line = (0, 0)
        """Of the last `<!--` or `-->` behind which nothing but plain signs stood: up to where."""

    def run(self) -> None:
        code, end = self._code, len(self._code)
        at = int(code.startswith("\ufeff"))
        if code.startswith("#!", at):
            at = self._line_end(at)
        match, append = _PLAIN.match, self.found.append
        for _ in checked(count(), every=256):
            if at >= end or len(self.doubts) > _MAX_DOUBTS:
                break
            sign = code[at]
            if sign in "/`(){}<-":
                at = self._special(sign, at)
                continue
            plain = match(code, at)
            if plain is None:  # never: the last of its ways takes any sign
                at += 1
                continue
            kind = plain.lastgroup
            text, last = plain[0], plain.end()
            if kind == "name":
                append(JavaScriptToken("name", unescape(text), at, last))
            elif kind == "sign":
                append(JavaScriptToken("sign", text, at, last))
            elif kind == "number":
                append(JavaScriptToken("number", text, at, last))
            elif kind == "string":
                is_closed = len(text) > 1 and text[-1] == sign
                append(
                    JavaScriptToken(
                        "string", unescape(text[1:-1] if is_closed else text[1:]), at, last
                    )
                )
            at = last
        if len(self.doubts) > _MAX_DOUBTS:
            self.doubts[-1] = (self.doubts[-1][0], end)

    def _special(self, sign: str, at: int) -> int:
        code = self._code
        if sign == "/":
            return self._slash(at)
        if sign == "`":
            return self._template(at)
        if code.startswith("<!--", at) or (code.startswith("-->", at) and self._begins_line(at)):
            return self._old_comment(at)
        if sign == "(":
            self._brackets.append(self._opened_round())
        elif sign == "{":
            self._brackets.append(self._opened(at))
        elif sign in ")}":
            self._closed = self._brackets.pop() if self._brackets else "doubt"
        plain = _PLAIN.match(code, at)
        last = plain.end() if plain else at + 1
        self.found.append(JavaScriptToken("sign", code[at:last], at, last))
        return self._template(at) if sign == "}" and self._closed == "template" else last

    def _template(self, at: int) -> int:
        """A piece of a template, up to its end or to the next `${`."""
        code = self._code
        match = _TEMPLATE.match(code, at + 1)
        end = match.end() if match else at + 1
        text = unescape(code[at + 1 : end])
        self.found.append(JavaScriptToken("template", text, at, min(end + 1, len(code))))
        if code.startswith("${", end):
            self._brackets.append("template")
            self.found.append(JavaScriptToken("sign", "{", end, end + 2))
            return end + 2
        return end + 1

    def _slash(self, at: int) -> int:
        code = self._code
        if code.startswith("//", at):
            return self._line_end(at)
        if code.startswith("/*", at):
            end = code.find("*/", at + 2)
            return len(code) if end < 0 else end + 2
        reading = self._reading(at)
        regex = None
        if reading != "division":
            regex = _REGEX.match(code, at)
            if regex is None:
                self._waste(at, is_error=reading == "regex" and self._text(-1) != "<")
        if regex is None:
            width = 1 + code.startswith("/=", at)
            self.found.append(JavaScriptToken("sign", code[at : at + width], at, at + width))
            return at + width
        if reading == "doubt":
            self._both(regex)
        self.found.append(JavaScriptToken("regex", "", at, regex.end()))
        return regex.end()

    def _both(self, regex: re.Match[str]) -> None:
        """In doubt it is looked at as code too; a doubt is noted where the two go apart."""
        at, end = regex.span()
        if _TELLING.search(regex[0]) or _SLASH.match(self._code, end):
            self.doubts.append((at, end))
            return
        if any(regex[0].count(one) != regex[0].count(other) for one, other in ("()", "[]")):
            return  # no code
        at += 1
        self.found.append(JavaScriptToken("sign", "/", at - 1, at))
        while at < end and (plain := _PLAIN.match(self._code, at, end)):
            kind = plain.lastgroup
            if kind in {"name", "sign"}:
                self.found.append(
                    JavaScriptToken("name" if kind == "name" else "sign", plain[0], at, plain.end())
                )
            at = plain.end()

    def _waste(self, at: int, *, is_error: bool) -> None:
        """A line was read in vain; not from each of its slashes, and what cannot run is said."""
        end = self._line_end(at)
        self._wasted += end - at
        if is_error:
            self.doubts.append((at, end))
        if self._wasted > 4 * len(self._code) + 10_000:
            self.doubts += [(at, len(self._code))] * (_MAX_DOUBTS + 1)

    def _old_comment(self, at: int) -> int:
        """`<!--` and `-->` begin a comment in scripts, and none in modules."""
        first, end = self._read_line
        if not first <= at < end:  # once for each line: it can hold nothing else
            end = self._line_end(at)
            if _TELLING.search(self._code, at, end) or "/" in self._code[at:end]:
                self.doubts.append((at, end))
                return end
            self._read_line = (at, end)
        width = 1 if self._code[at] == "<" else 2
        self.found.append(JavaScriptToken("sign", self._code[at : at + width], at, at + width))
        return at + width

    def _reading(self, at: int) -> Reading:  # noqa: PLR0911  # a table of forms
        """What a slash is here."""
        if not self.found:
            return "regex"
        last = self.found[-1]
        if last.kind == "name":
            return self._behind_name(last)
        if last.kind != "sign" or last.text == "]":
            return "division"
        match last.text:
            case ")":
                return "regex" if self._closed == "head" else "division"
            case "}":
                return {"block": "regex", "value": "division"}.get(self._closed, "doubt")  # type: ignore[return-value]  # words of Reading
            case "+" | "-" if self._is_doubled():
                before = self._token(-3)
                is_operand = before is not None and (
                    before.kind in {"name", "number"} or before.text == "]"
                )
                is_plain = is_operand and before is not None and before.text not in _OPERATORS
                if is_plain and before is not None and not self._has_line_end(before.end, at):
                    return "division"
                return "doubt"
            case "!":
                return "regex" if self._is_not(last) else "doubt"
            case ">":
                return "doubt"  # in TypeScript the end of a type
            case _:
                return "regex"

    def _is_not(self, sign: JavaScriptToken) -> bool:
        """Whether a `!` turns what follows around, and is not TypeScript's "not null"."""
        before = self._token(-2)
        if before is None or self._has_line_end(before.end, sign.start):
            return True
        if before.kind != "sign":
            return before.kind == "name" and self._is_word(-2, _OPERATORS)
        if before.text in {")", "}"}:
            return self._closed in {"head", "block"}
        return before.text not in {"]", ">"}

    def _behind_name(self, last: JavaScriptToken) -> Reading:
        if self._text(-2) in {".", "?."}:
            return "division"
        if last.text in _SOMETIMES:
            return "doubt"
        if last.text not in _OPERATORS:
            return "division"
        return "regex" if len(last.text) == last.end - last.start else "doubt"

    def _opened_round(self) -> str:
        """What a `(` is: `head` of a statement, parameters of a function, or anything."""
        if self._is_word(-1, _HEADS) or (self._text(-1) == "await" and self._is_word(-2, _HEADS)):
            return "head"
        if self._is_word(-1, frozenset({"switch", "catch"})):
            return "other-head"
        at = -1 if self._text(-1) in {"function", "*"} else -2
        at -= self._text(at) == "*"
        if not self._is_word(at, frozenset({"function"})):
            return "any"
        at -= 1 + (self._text(at - 1) == "async")
        before = self._token(at)
        if before is None or before.text == ";":
            return "declared"
        is_value = before.kind == "sign" and before.text in _BEFORE_VALUES
        return "function" if is_value else "any"

    def _opened(self, at: int) -> str:  # noqa: PLR0911  # a table of forms
        """What a `{` begins: a `block`, behind which a statement begins, or a `value`."""
        last = self._token(-1)
        if last is None:
            return "block"
        if last.kind == "name":
            if self._text(-2) in {".", "?."}:
                return "doubt"
            if last.text in _BLOCKS:
                return "block"
            is_value = last.text in _OPERATORS and not self._has_line_end(last.end, at)
            return "value" if is_value else "doubt"
        if last.kind != "sign":
            return "doubt"
        match last.text:
            case ")":
                return {
                    "head": "block", "other-head": "block", "declared": "block", "function": "value"
                }.get(self._closed, "doubt")  # fmt: skip
            case ";" | "=>":
                return "block"
            case "{":
                return "block" if self._brackets and self._brackets[-1] == "block" else "doubt"
            case "}":
                return "block" if self._closed == "block" else "doubt"
            case text:
                return "value" if text in _BEFORE_VALUES else "doubt"

    def _token(self, at: int) -> JavaScriptToken | None:
        return self.found[at] if -at <= len(self.found) else None

    def _text(self, at: int) -> str:
        token = self._token(at)
        return "" if token is None or token.kind not in {"name", "sign"} else token.text

    def _is_word(self, at: int, words: frozenset[str]) -> bool:
        """One of these words, and not the name of a property."""
        token = self._token(at)
        return (
            token is not None
            and token.kind == "name"
            and token.text in words
            and self._text(at - 1) not in {".", "?."}
        )

    def _is_doubled(self) -> bool:
        """`++` or `--`"""
        before, last = self._token(-2), self.found[-1]
        return before is not None and before.text == last.text and before.end == last.start

    def _has_line_end(self, start: int, end: int) -> bool:
        return _LINE_END.search(self._code, start, end) is not None

    def _begins_line(self, at: int) -> bool:
        return not self.found or self._has_line_end(self.found[-1].end, at)

    def _line_end(self, at: int) -> int:
        found = _LINE_END.search(self._code, at)
        return found.start() if found else len(self._code)


def unescape(text: str) -> str:
    """What a text with escapes says; of a long one only the beginning is of interest."""
    if "\\" not in text:
        return text
    return _ESCAPE.sub(_unescape_match, text[: _MAX_TEXT * 4])


def _unescape_match(match: re.Match[str]) -> str:
    digits = match[1] or match[2] or match[3]
    if digits is None:
        return _PLAIN_ESCAPES.get(match[4], "" if match[4] in {"\n", "\r\n"} else match[4])
    number = int(digits, 16)
    return chr(number) if number < 0x110000 else ""


def match_brackets(found: list[JavaScriptToken]) -> dict[int, int]:
    """Which bracket closes which, by the numbers of their tokens, in both directions."""
    closing = {"(": ")", "[": "]", "{": "}"}
    stack: list[int] = []
    matched: dict[int, int] = {}
    for number, (kind, text, _, _) in enumerate(found):
        if kind != "sign":
            continue
        if text in closing:
            stack.append(number)
        elif text in {")", "]", "}"} and stack and closing[found[stack[-1]].text] == text:
            opening = stack.pop()
            matched[opening], matched[number] = number, opening
    return matched
