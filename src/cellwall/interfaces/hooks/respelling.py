"""A changed JSON text: what has not changed in it keeps its very characters. Pure.

Written anew, `1.10` would become `1.1`, `1e999` no JSON at all, and "\\ud800" invalid UTF-8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BOM = "\ufeff"
_INDENT = re.compile(r"[{\[]\r?\n([ \t]+)")
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class _Style:
    """How the file is written."""

    indent: str | None
    line_end: str
    is_ascii: bool

    @classmethod
    def of(cls, text: str) -> _Style:
        found = _INDENT.search(text)
        is_one_line = text.strip() not in {"", "{}"} and "\n" not in text.strip()
        return cls(
            indent=found[1] if found else None if is_one_line else "  ",
            line_end="\r\n" if "\r\n" in text else "\n",
            is_ascii=text.isascii() and "\\u" in text,
        )

    def write(self, value: object, depth: int) -> str:
        text = json.dumps(value, indent=self.indent, ensure_ascii=self.is_ascii, allow_nan=False)
        return text.replace("\n", self.gap(depth))

    def gap(self, depth: int) -> str:
        """What stands before an item."""
        return "" if self.indent is None else self.line_end + self.indent * depth


@dataclass(frozen=True, slots=True)
class _Piece:
    """An item of an object or a list, and where it stands in the text."""

    key: str | None
    value: Any
    start: int
    at: int
    """Where its value begins; for an item of a list the same as `start`."""
    end: int


def respelled(text: str, new: Mapping[str, Any]) -> str:
    """A valid JSON object as text, changed to `new`."""
    bare = text.removeprefix(BOM)
    begin = text[: len(text) - len(bare) + _after_space(bare, 0)]
    body = text[len(begin) :].rstrip(" \t\r\n")
    end = text[len(begin) + len(body) :] if text else "\n"
    return begin + _changed(body or "{}", new, _Style.of(bare), depth=0) + end


def _changed(raw: str, new: object, style: _Style, *, depth: int) -> str:
    opening = "{" if isinstance(new, Mapping) else "[" if isinstance(new, list) else ""
    if not opening or raw[0] != opening:
        return style.write(new, depth)
    old = _pieces(raw)
    wanted = _items(new)
    kept = _matched(old, wanted)
    texts = [
        _item(raw, piece, key, value, style, depth=depth + 1)
        for piece, (key, value) in zip(kept, wanted, strict=True)
    ]
    comma = "," + (style.gap(depth + 1) or " ")
    if old and kept[: len(old)] == old:  # nothing went away, so the spaces between stay, too
        made, at = "", 0
        for piece, text in zip(old, texts, strict=False):
            made += raw[at : piece.start] + text
            at = piece.end
        return made + "".join(comma + text for text in texts[len(old) :]) + raw[at:]
    closing = "}" if opening == "{" else "]"
    if not texts:
        return opening + closing
    return f"{opening}{style.gap(depth + 1)}{comma.join(texts)}{style.gap(depth)}{closing}"


def _items(value: object) -> list[tuple[str | None, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    return [(None, each) for each in value] if isinstance(value, list) else []


def _item(
    raw: str, piece: _Piece | None, key: str | None, value: object, style: _Style, *, depth: int
) -> str:
    if piece is None:
        name = "" if key is None else style.write(key, depth) + ": "
        return name + style.write(value, depth)
    if piece.value == value:
        return raw[piece.start : piece.end]
    changed = _changed(raw[piece.at : piece.end], value, style, depth=depth)
    return raw[piece.start : piece.at] + changed


def _matched(old: list[_Piece], wanted: list[tuple[str | None, Any]]) -> list[_Piece | None]:
    """Which item each wanted one is made of; None for a new one."""
    if wanted and wanted[0][0] is not None:
        named = {piece.key: piece for piece in old}
        return [named.get(key) for key, _ in wanted]
    values = [value for _, value in wanted]
    found: list[_Piece | None] = []
    left = list(old)
    for value in values:
        same = next((i for i, piece in enumerate(left) if piece.value == value), None)
        if same is None:
            same = next(
                (
                    i
                    for i, piece in enumerate(left)
                    if piece.value not in values and _is_near(piece.value, value)
                ),
                None,
            )
        found.append(None if same is None else left[same])
        left = left if same is None else left[same + 1 :]
    return found


def _is_near(old: object, new: object) -> bool:
    """A matcher out of whose list of hooks some went away."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return False
    is_same = {**old, "hooks": None} == {**new, "hooks": None}
    return is_same and all(hook in old.get("hooks", ()) for hook in new.get("hooks", ()))


def _pieces(raw: str) -> list[_Piece]:
    found = []
    at = _after_space(raw, 1)
    while raw[at] not in "}]":
        start, key = at, None
        if raw[0] == "{":
            key, at = _DECODER.raw_decode(raw, at)
            at = _after_space(raw, _after_space(raw, at) + 1)
        value, end = _DECODER.raw_decode(raw, at)
        found.append(_Piece(key, value, start, at, end))
        at = _after_space(raw, end)
        at = _after_space(raw, at + 1) if raw[at] == "," else at
    return found


def _after_space(raw: str, at: int) -> int:
    space = _SPACE.match(raw, at)
    return at if space is None else space.end()
