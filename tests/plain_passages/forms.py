"""The form of a passage: how it begins and ends, and what marks it has."""

# ruff: noqa: RUF001  # punctuation of other scripts

from __future__ import annotations

import re
from collections.abc import Iterator

_FORMS = {
    "list": re.compile(r"(?:[-*+•]|\d[.)])\s"),
    "heading": re.compile(r"#\s"),
    "quoted": re.compile(r"[>\"“`'|]"),
    "key": re.compile(r"[\w .-][\"']?\s*[:=]\s*\S"),
    "tag": re.compile(r"</?[a-z][\w-]*>|\[/?[A-Z]{3,}\]|\*\*\*|={3,}|#{3,}|-{3,}"),
    "ends question": re.compile(r"[?？؟][\"')\]]*\s*\Z"),
    "ends loud": re.compile(r"[!！][\"')\]]*\s*\Z"),
    "ends stop": re.compile(r"[.。।][\"')\]]*\s*\Z"),
}
_ENDS_COLON = re.compile(r":\s*\Z")
_CODE = re.compile(r"[{};]\s*\Z|^\s{4,}\S|\w\(\w*\)|=>|==|::|\bdef \b|\breturn\b")


def ends_colon(passage: str) -> bool:
    """Whether something is announced."""
    return _ENDS_COLON.search(passage) is not None


def is_code(passage: str) -> bool:
    """Whether a programmer wrote it for a machine."""
    return _CODE.search(passage) is not None


def forms_of(passage: str) -> Iterator[str]:
    """The traits of its form."""
    for name, form in _FORMS.items():
        if form.search(passage):
            yield name
    if ends_colon(passage):
        yield "ends colon"
    if is_code(passage):
        yield "code"
