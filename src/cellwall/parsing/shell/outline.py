"""The commands of a shell script with their positions, for readers that report and never refuse.

`reader` refuses each ambiguous form; the outline continues. The outline skips a part that the
parser rejects, notes its span in `unread`, and parses the text on both sides again.
Positions are in characters.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from cellwall.parsing.budget import checkpoint
from cellwall.parsing.shell.parser import (
    MAX_TEXT_BYTES,
    BadSyntax,
    Node,
    TreeTooLarge,
    nodes_of,
    syntax_tree,
)
from cellwall.parsing.shell.words import in_double_quotes, unquote_pieces

MAX_PARSES = 64
"""Processes for one outline and for the outlines that share its budget."""
_MAX_REJECTED = 8
"""Parts of one text that the parser may reject; bash runs nothing behind the first of them."""
_MIN_SPLIT = 1024
"""Characters of a text that is split where its tree is too large."""
# Control characters, which the parser rejects in places where shells do not.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_REJECTED_WORD = re.compile(rb"[A-Za-z_]+|[\s\S]")
_ANSI_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{1,2})|([0-7]{1,3})|u([0-9A-Fa-f]{1,4})|([\s\S]))")
_NAMED_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "e": "\x1b", "a": "\a"}
_SUBSTITUTIONS = frozenset({"CmdSubst", "ProcSubst"})


@dataclass(slots=True)
class OutlineWord:
    """`text` is the word without quotes; expansions are left out of it."""

    start: int
    end: int
    text: str = ""
    is_expanded: bool = False
    is_split: bool = False
    """Quotes or escapes stand between its letters."""
    has_ifs: bool = False
    is_fully_quoted: bool = False
    is_fed: bool = False
    """The word holds a `<(…)`."""
    inner: list[OutlineCommand] = field(default_factory=list)
    """The commands of its substitutions: `$(…)`, `` `…` ``, `<(…)`."""


@dataclass(slots=True)
class OutlineCommand:
    """A simple command; without words it only assigns, redirects or evaluates."""

    start: int
    end: int
    words: list[OutlineWord] = field(default_factory=list)
    assigned: list[tuple[str, OutlineWord]] = field(default_factory=list)
    redirects: list[tuple[str, OutlineWord]] = field(default_factory=list)
    document: tuple[int, int] | None = None
    """The here-document, as start and end."""


Stage = list[OutlineCommand]
"""The commands that read what the stage before them prints."""


@dataclass(slots=True)
class Outline:
    """All commands of a script, the pipelines they stand in, and what the parser rejected."""

    commands: list[OutlineCommand] = field(default_factory=list)
    pipelines: list[list[Stage]] = field(default_factory=list)
    unread: list[tuple[int, int]] = field(default_factory=list)


class ParseBudget:
    """The parser processes that may still be started. A text that was parsed before costs none."""

    def __init__(self, parses: int = MAX_PARSES) -> None:
        self._left = parses
        self._seen: set[str] = set()

    def take(self, text: str) -> bool:
        if text not in self._seen:
            self._left -= 1
            self._seen.add(text)
        return self._left >= 0


def outline(code: str, budget: ParseBudget) -> Outline:
    """Never raises but `ScanUnfinished`."""
    found = Outline()
    waiting = list(_chunks(_CONTROLS.sub(_plain, code)))
    while waiting:
        checkpoint()
        start, text = waiting.pop()
        if not text.strip():
            continue
        if not budget.take(text):
            found.unread.append((start, start + len(text)))
            continue
        try:
            _Walker(found, text, start).statements(syntax_tree(text).get("Stmts", ()))
        except TreeTooLarge:
            middle = _line_in_the_middle(text)
            if len(text) < _MIN_SPLIT or not middle:
                found.unread.append((start, start + len(text)))
            else:  # from left to right: the stack gives the first half first
                waiting += [(start + middle, text[middle:]), (start, text[:middle])]
        except BadSyntax as problem:
            before, behind = _around(text, problem.offset)
            rejected = start + len(before), start + len(text) - len(behind)
            if problem.offset is None or len(found.unread) >= _MAX_REJECTED:
                found.unread.append((start, start + len(text)))
            else:
                found.unread.append(rejected)
                waiting += [(rejected[1], behind), (start, before)]
        except (KeyError, TypeError, IndexError, RecursionError):  # an unknown form of the tree
            found.unread.append((start, start + len(text)))
    return found


def _plain(found: re.Match[str]) -> str:
    return " " if found[0] == "\r" else "\ufffd"


def _chunks(code: str) -> Iterator[tuple[int, str]]:
    """The whole code; cut at lines where it is longer than the parser takes."""
    start = 0
    while start < len(code):
        end = len(code)
        if len(code[start:].encode()) > MAX_TEXT_BYTES:
            end = start + MAX_TEXT_BYTES // 4
            end = code.find("\n", end) + 1 or len(code)
        yield start, code[start:end]
        start = end


def _line_in_the_middle(text: str) -> int:
    """The cut after the blank line, or else the line end, that is nearest to the middle."""
    middle = len(text) // 2
    for end in ("\n\n", "\n"):
        cuts = [text.rfind(end, 0, middle), text.find(end, middle, -len(end))]
        cuts = [cut + len(end) for cut in cuts if cut >= 0]
        if near := [cut for cut in cuts if abs(cut - middle) < middle // 2]:
            return min(near, key=lambda cut: abs(cut - middle))
    return 0


def _around(text: str, offset: int | None) -> tuple[str, str]:
    """The text before and after the word that the parser rejects."""
    source = text.encode()
    offset = len(source) if offset is None else offset
    word = _REJECTED_WORD.match(source, offset)
    behind = source[word.end() :] if word else b""
    return source[:offset].decode("utf-8", "ignore"), behind.decode("utf-8", "ignore")


class _Walker:
    """Walks over one tree and adds its commands to the outline."""

    def __init__(self, found: Outline, text: str, start: int) -> None:
        self._found = found
        self._text = text
        self._start = start
        # Byte offsets of the parser to characters; equal for ASCII.
        self._offsets = [] if text.isascii() else list(accumulate(len(c.encode()) for c in text))

    def _at(self, position: Node) -> int:
        offset: int = position["Offset"]
        if self._offsets:
            offset = bisect_left(self._offsets, offset) + 1 if offset else 0
        return self._start + min(offset, len(self._text))

    def statements(self, statements: Iterable[Node]) -> Stage:
        return [command for each in statements for command in self._statement(each)]

    def _statement(self, statement: Node) -> Stage:
        """All commands of a statement, which is one pipeline or less."""
        checkpoint()
        stages = self._stages(statement)
        if len(stages) > 1:
            self._found.pipelines.append(stages)
        return [command for stage in stages for command in stage]

    def _stages(self, statement: Node) -> list[Stage]:
        command, redirects = statement.get("Cmd") or {}, statement.get("Redirs", ())
        match command.get("Type"):
            case "BinaryCmd" if command["Op"] in {"|", "|&"} and not redirects:
                return [*self._stages(command["X"]), *self._stages(command["Y"])]
            case "CallExpr" | None:
                return [[self._call(command, redirects)]] if command or redirects else []
            case "DeclClause":
                return [[self._declaration(command, redirects)]]
            case _:
                own = [self._call({}, redirects)] if redirects else []
                return [[*own, *self._compound(command)]]

    def _compound(self, command: Node) -> Stage:
        """The statements inside a compound command; its words hold nothing but substitutions."""
        found: Stage = []
        nested: list[Node] = []
        for key, value in command.items():
            if key in {"X", "Y", "Stmt", "Body"} and _is_statement(value):
                nested.append(value)
            elif key in {"Stmts", "Cond", "Then", "Do"}:
                nested += value if isinstance(value, list) else [value]
            elif key == "Else":
                found += self._compound(value)
            elif key == "Items":
                for item in value:
                    nested += item.get("Stmts", ())
                    found += self._evaluated(item.get("Patterns", ()))
            elif key != "Type":
                found += self._evaluated([value])
        return [*found, *self.statements(nested)]

    def _evaluated(self, nodes: Sequence[object]) -> Stage:
        """The commands of substitutions in sums, tests, loops and patterns."""
        inside = nodes_of(*nodes, enters=lambda node: not _is_substitution(node))
        return [
            command for node in filter(_is_substitution, inside) for command in self._inner(node)
        ]

    def _call(self, call: Node, redirects: Sequence[Node]) -> OutlineCommand:
        command = OutlineCommand(0, 0)
        for node in call.get("Assigns", ()):
            command.assigned.append((node["Name"]["Value"], self._assigned(node)))
        command.words = [self._word(node) for node in call.get("Args", ())]
        return self._add(command, redirects)

    def _declaration(self, clause: Node, redirects: Sequence[Node]) -> OutlineCommand:
        """`export A=1`: each argument is one word."""
        command = OutlineCommand(0, 0, [self._literal(clause["Variant"])])
        for node in clause.get("Args", ()):
            if "Name" not in node:
                command.words.append(self._word(node["Value"]))
                continue
            word = self._assigned(node)
            name = node["Name"]["Value"]
            word.text = name if node.get("Naked") else f"{name}={word.text}"
            word.start, word.end = self._at(node["Pos"]), self._at(node["End"])
            command.words.append(word)
        return self._add(command, redirects)

    def _add(self, command: OutlineCommand, redirects: Sequence[Node]) -> OutlineCommand:
        for node in redirects:
            word = self._word(node["Word"])
            command.redirects.append((node["Op"], word))
            if "Hdoc" in node:
                document = node["Hdoc"]
                command.document = self._document(document, word.text)
                word.inner += self._evaluated([document])
            elif node["Op"] in {"<<", "<<-"}:
                command.document = (word.end, word.end)
        parts = [
            *command.words,
            *(word for _, word in command.assigned),
            *(word for _, word in command.redirects),
        ]
        leading = [*command.words, *(word for _, word in command.assigned)] or parts
        command.start = min((word.start for word in leading), default=self._start)
        command.end = max((word.end for word in parts), default=command.start)
        self._found.commands.append(command)
        return command

    def _document(self, node: Node, delimiter: str) -> tuple[int, int]:
        """The span without the delimiter line, which the parser includes."""
        start, end = self._at(node["Pos"]), self._at(node["End"])
        text = self._text[start - self._start : end - self._start]
        last = text.rpartition("\n")[2]
        return start, end - len(last) if last.lstrip("\t") == delimiter else end

    def _assigned(self, node: Node) -> OutlineWord:
        """The value of an assignment; the span is that of the whole assignment."""
        word = self._word(node["Value"]) if "Value" in node else OutlineWord(0, 0)
        word.inner += self._evaluated([node.get("Index"), node.get("Array")])
        word.start, word.end = self._at(node["Pos"]), self._at(node["End"])
        return word

    def _literal(self, node: Node) -> OutlineWord:
        return OutlineWord(self._at(node["Pos"]), self._at(node["End"]), node["Value"])

    def _word(self, node: Node) -> OutlineWord:
        word = OutlineWord(self._at(node["Pos"]), self._at(node["End"]))
        parts = node.get("Parts", ())
        word.text = "".join(self._part(part, word) for part in parts)
        literals = [part["Value"] for part in parts if part["Type"] == "Lit"]
        is_bare = any(
            piece.is_active and any(sign.isalnum() for sign in piece.text)
            for text in literals
            for piece in unquote_pieces(text)
        )
        has_quotes = any(part["Type"] in {"SglQuoted", "DblQuoted"} for part in parts)
        # A backslash before the first letter only turns an alias off.
        first = parts[0]["Value"] if parts and parts[0]["Type"] == "Lit" else ""
        has_escapes = "\\" in "".join([first[1:], *literals[bool(first) :]])
        word.is_split = (has_quotes or has_escapes) and is_bare
        word.is_fully_quoted = has_quotes and not is_bare
        return word

    def _part(self, part: Node, word: OutlineWord, *, is_quoted: bool = False) -> str:
        match part["Type"]:
            case "Lit" if is_quoted:
                return in_double_quotes(part["Value"])
            case "Lit":
                return "".join(piece.text for piece in unquote_pieces(part["Value"]))
            case "SglQuoted":
                text: str = part.get("Value", "")
                return _ANSI_ESCAPE.sub(_unescape, text) if part.get("Dollar") else text
            case "DblQuoted":
                parts = part.get("Parts", ())
                return "".join(self._part(each, word, is_quoted=True) for each in parts)
            case "ProcSubst":
                word.is_fed = True
                word.inner += self._inner(part)
            case "CmdSubst":
                word.is_expanded = True
                word.inner += self._inner(part)
            case kind:
                word.is_expanded = word.is_expanded or kind in {"ParamExp", "ArithmExp"}
                word.has_ifs |= part.get("Param", {}).get("Value") == "IFS"
                word.inner += self._evaluated(list(part.values()))
                if kind not in {"ParamExp", "ArithmExp"}:  # a glob or braces, as written
                    start, end = self._at(part["Pos"]), self._at(part["End"])
                    return self._text[start - self._start : end - self._start]
        return ""

    def _inner(self, substitution: Node) -> Stage:
        return self.statements(substitution.get("Stmts", ()))


def _is_statement(value: object) -> bool:
    return isinstance(value, dict) and ("Cmd" in value or "Redirs" in value)


def _is_substitution(node: Node) -> bool:
    return node.get("Type") in _SUBSTITUTIONS


def _unescape(found: re.Match[str]) -> str:
    if digits := found[1] or found[3]:
        return chr(int(digits, 16))
    if found[2]:
        return chr(int(found[2], 8))
    return _NAMED_ESCAPES.get(found[4], found[4])
