"""The form of a passage: how it begins and ends, and what marks it has.

Each trait is what one regular expression would say, and is found without a search through the
passage where a character of it is missing; a test compares both.
"""

# ruff: noqa: RUF001  # punctuation of other scripts

from __future__ import annotations

import re
from collections.abc import Iterator

_CLOSING = "\"')]"
_LIST = re.compile(r"(?:[-*+•]|\d[.)])\s")
_HEADING = re.compile(r"#\s")
_KEY = re.compile(r"[\w .-][\"']?\s*[:=]\s*\S")
_TAG = re.compile(r"</?[a-z][\w-]*>|\[/?[A-Z]{3,}\]|\*\*\*|={3,}|#{3,}|-{3,}")
_CALL = re.compile(r"\w\(\w*\)")
_DEFINITION = re.compile(r"\bdef \b")
_RETURN = re.compile(r"\breturn\b")
_INDENT = 4
_ENDS = {
    "?": "ends question",
    "？": "ends question",
    "؟": "ends question",
    "!": "ends loud",
    "！": "ends loud",
    ".": "ends stop",
    "。": "ends stop",
    "।": "ends stop",
}


def ends_colon(passage: str) -> bool:
    """Whether something is announced."""
    return passage.rstrip().endswith(":")


def is_code(passage: str) -> bool:
    """Whether a programmer wrote it for a machine."""
    inner = passage.rstrip()
    if inner.endswith(("{", "}", ";")) or "=>" in passage or "==" in passage or "::" in passage:
        return True
    if passage[:_INDENT].isspace() and len(passage) - len(passage.lstrip()) >= _INDENT and inner:
        return True
    return bool(
        ("(" in passage and _CALL.search(passage))
        or ("def " in passage and _DEFINITION.search(passage))
        or ("return" in passage and _RETURN.search(passage))
    )


def forms_of(passage: str, marks: set[str]) -> Iterator[str]:
    """The traits of its form; `marks` are the characters of the passage."""
    if not marks.isdisjoint("-*+•.)") and _LIST.search(passage):
        yield "list"
    if "#" in marks and _HEADING.search(passage):
        yield "heading"
    if not marks.isdisjoint(">\"“`'|"):
        yield "quoted"
    if not marks.isdisjoint(":=") and _KEY.search(passage):
        yield "key"
    if not marks.isdisjoint("<[*=#-") and _TAG.search(passage):
        yield "tag"
    end = _ENDS.get(passage.rstrip().rstrip(_CLOSING)[-1:])
    if end is not None:
        yield end
    if ends_colon(passage):
        yield "ends colon"
    if is_code(passage):
        yield "code"
