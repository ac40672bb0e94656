"""Where the spelling of an expansion, and not its place in the tree, decides what bash does. Pure.

bash looks for braces in the text of a word before it knows the expansions in it: quotes inside of
`"${x:-"{a,b}"}"` end those around it, and `$[{1,2}]` is two words. In backquotes a backslash is
read twice. Such spellings are refused; each has another that is read in one way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from cellwall.parsing.shell.parser import Node, NotUnderstood

_find_bare_brace = re.compile(rb"(?<!\$)\{").search
_is_movable = re.compile(rb"""[^'"`\\{},]*""").fullmatch
_SIMPLE = frozenset(("Type", "Pos", "End", "Dollar", "Rbrace", "Short", "Param"))


def is_simple(parameter: Node) -> bool:
    """`$name` or `${name}`, and nothing else in the braces."""
    return parameter.keys() <= _SIMPLE


def source_of(node: Node, text: bytes) -> bytes:
    """As it stands in the text."""
    return text[node["Pos"]["Offset"] : node["End"]["Offset"]]


def is_movable(part: Node, text: bytes) -> bool:
    """Whether braces can put this expansion into another place without a change of meaning."""
    if part["Type"] == "ParamExp":
        return is_simple(part)
    if part["Type"] != "CmdSubst" or part.get("Backquotes"):
        return False
    return _is_movable(source_of(part, text)) is not None


def check_expansion(part: Node, text: bytes, *, is_quoted: bool) -> None:
    """Raises `NotUnderstood` where the spelling is one of those above."""
    kind = part["Type"]
    if kind == "ArithmExp" and part.get("Bracket"):
        raise NotUnderstood("$[…] is read in two ways; write $((…))")
    if kind == "CmdSubst" and part.get("Backquotes"):
        _check_backquotes(source_of(part, text), is_quoted=is_quoted)
    if kind == "ParamExp" and text[part["End"]["Offset"] - 1 :][:2] == b"${":
        raise NotUnderstood("braces behind $$ are read in two ways; write ${$}")
    if kind == "ParamExp" and not is_simple(part):
        source = _without_substitutions(part, text)
        if _find_bare_brace(source, 2):
            raise NotUnderstood("a brace inside of ${…} is read in two ways; use a variable for it")
        if b"<(" in source or b">(" in source:
            # To bash a process substitution, to the parser text.
            raise NotUnderstood("${…} holds a process substitution; use a variable for it")


def _check_backquotes(source: bytes, *, is_quoted: bool) -> None:
    # Only before these does a backslash mean something else than in $(…).
    has_escape = re.search(rb"\\[$`\\\n]", source) is not None or (is_quoted and b"\\" in source)
    if has_escape or (is_quoted and b'"' in source and b"{" in source):
        raise NotUnderstood("quotes and braces in backquotes are read in two ways; write $(…)")


def _without_substitutions(part: Node, text: bytes) -> bytes:
    """`$(…)` is one sign to the search for braces, whatever stands in it."""
    start, source = part["Pos"]["Offset"], bytearray(source_of(part, text))
    for inner in _substitutions(part):
        first, last = inner["Pos"]["Offset"] - start, inner["End"]["Offset"] - start
        source[first:last] = b" " * (last - first)
    return bytes(source)


def _substitutions(part: Node) -> Iterator[Node]:
    waiting: list[Any] = [part]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            if each.get("Type") == "CmdSubst" and not each.get("Backquotes"):
                yield each
            else:
                waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)
