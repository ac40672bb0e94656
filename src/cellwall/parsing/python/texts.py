"""Texts that operators and methods of Python make of other texts. Pure.

`UNKNOWN` stands for a part that is not known. So does a result that is longer than any text which
code spells out: a few lines of sums of sums would fill the memory.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import Final

from cellwall.parsing.shell.words import UNKNOWN

_MAX_TEXT: Final = 1 << 18
_conversion = re.compile(r"%(?:\((\w+)\))?([-#0 +]*\d*(?:\.\d+)?[a-zA-Z%])")
_field = re.compile(r"\{\{|\}\}|\{(\w*)([^{}]*)\}")


def concatenate(parts: Sequence[str | None], glue: str = "") -> str:
    """The parts as one text; unknown if it is longer than any that code spells out."""
    if sum(len(part or UNKNOWN) + len(glue) for part in parts) > _MAX_TEXT:
        return UNKNOWN
    return glue.join(UNKNOWN if part is None else part for part in parts)


def join_path(parts: Sequence[str | None]) -> str | None:
    """`os.path.join(*parts)`; None for no part."""
    return posixpath.join(*(part or UNKNOWN for part in parts)) if parts else None


def expand_user(path: str | None) -> str | None:
    """`~bob/x` as `expanduser` has it; `~/x` is left, for the home is known elsewhere."""
    if path is None or not path.startswith("~") or path == "~" or path.startswith("~/"):
        return path
    return "/root" + path[5:] if path.split("/")[0] == "~root" else f"/home/{path[1:]}"


def convert_percent(template: str, values: Sequence[str | None]) -> str:
    """`template % values`; all but a plain `%s` of a known text is unknown."""
    if len(template) + sum(len(value or "") for value in values) > _MAX_TEXT:
        return UNKNOWN
    rest = iter(values)

    def convert(match: re.Match[str]) -> str:
        if match[2] == "%":
            return "%"
        value = None if match[1] else next(rest, None)
        return value if value is not None and match[2] == "s" else UNKNOWN

    return _conversion.sub(convert, template)


def format_braces(template: str, values: Sequence[str | None], named: dict[str, str | None]) -> str:
    """`template.format(*values, **named)`."""
    longest = max((len(each or "") for each in (*values, *named.values())), default=0)
    if len(template) + template.count("{") * longest > _MAX_TEXT:
        return UNKNOWN
    numbers = iter(range(len(values)))

    def substitute(match: re.Match[str]) -> str:
        if match[0] in ("{{", "}}"):
            return match[0][0]
        key, value = match[1], None
        if key.isdecimal():
            value = values[int(key)] if int(key) < len(values) else None
        elif key:
            value = named.get(key)
        elif (at := next(numbers, None)) is not None:
            value = values[at]
        return value if value is not None and not match[2] else UNKNOWN

    return _field.sub(substitute, template)
