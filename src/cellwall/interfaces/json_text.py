"""The text of a JSON object in a file of another program: parse it, and edit it in place. Pure.

Characters outside of a change stay: keys, their order, indentation, line ends, comments, and the
spelling of numbers and strings: serialised anew, `1.10` would become `1.1`, `1e999` invalid JSON,
and "\\ud800" invalid UTF-8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_BOM = "\ufeff"
_BLANK = " \t\r\n"
"""JSON's white space; Python's `strip` removes more."""
_SPACE = re.compile(r"[ \t\r\n]*")
_INDENT = re.compile(r"[{\[](?:[ \t]*\r?\n)+([ \t]+)(?=\S)")
# An unclosed string or comment runs to the end and is not JSON: a retry from each quote or star
# would take quadratic time.
_STRING = r'"(?:[^"\\]++|\\.)*+"?'
_COMMENT = re.compile(rf"({_STRING})|//[^\r\n]*|/\*[\s\S]*?(?:\*/|\Z)")
_LAST_COMMA = re.compile(rf"({_STRING})|,(?=\s*[}}\]])")
_NOT_BREAK = re.compile(r"[^\r\n]")
_DECODER = json.JSONDecoder()


class InvalidJson(ValueError):
    """The predicate of a sentence about the file: "is not valid JSON (line 3)"."""


def parse_strictly(text: str) -> Any:  # noqa: ANN401  # any JSON
    """Parse JSON; raises `InvalidJson` also for forms that parsers read differently."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except InvalidJson:
        raise
    except RecursionError:
        raise InvalidJson("is nested too deeply") from None
    except ValueError as error:
        line = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidJson(f"is not valid JSON{line}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        # Parser differential: another program may use the first value, we the last.
        raise InvalidJson("has a duplicate key")
    return value


def _refuse_constant(name: str) -> object:
    raise InvalidJson(f"contains {name}, which is not valid JSON")


@dataclass(frozen=True, slots=True)
class JsonText:
    """The text of a JSON object; with `comments`, also comments and trailing commas."""

    text: str
    comments: bool = False

    @classmethod
    def decode(cls, data: bytes, *, comments: bool = False) -> JsonText:
        try:
            return cls(data.decode("utf-8"), comments)
        except UnicodeDecodeError:
            raise InvalidJson("is not UTF-8 text") from None

    def value(self) -> dict[str, Any]:
        """The object; an empty text is an empty object."""
        text = self._strict().removeprefix(_BOM)
        value = parse_strictly(text if text.strip(_BLANK) else "{}")
        if not isinstance(value, dict):
            raise InvalidJson("is not a JSON object")
        return value

    def change_to(self, new: Mapping[str, Any]) -> bytes:
        """The text with this value; raises `InvalidJson` where it cannot be written."""
        strict = self._strict()
        style = _Style.of(strict.removeprefix(_BOM))
        bom = _BOM if self.text.startswith(_BOM) else ""
        if not strict.strip(_BOM + _BLANK):
            text = f"{bom}{style.dump(new, 0)}\n"
        else:
            start = _after_space(strict, len(bom))
            end = len(strict.rstrip(_BLANK))
            body = _Edit(self.text, strict, style).value(start, end, new, depth=0)
            text = self.text[:start] + body + self.text[end:]
        # Proof instead of trust: the result parses to the expected value.
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidJson("would contain a path that is not valid UTF-8") from None
        if JsonText(text, self.comments).value() != new:
            raise InvalidJson("cannot be written correctly")
        return data

    def _strict(self) -> str:
        """Strict JSON with the same offsets: comments and trailing commas are blank."""
        if not self.comments:
            return self.text
        bare = _COMMENT.sub(_blank_comment, self.text)
        return _LAST_COMMA.sub(lambda match: match[1] or " ", bare)


def _blank_comment(match: re.Match[str]) -> str:
    text = match[0]
    is_open = text.startswith("/*") and (len(text) < len("/**/") or not text.endswith("*/"))
    return text if match[1] or is_open else _NOT_BREAK.sub(" ", text)


@dataclass(frozen=True, slots=True)
class _Style:
    """The formatting of the file."""

    indent: str | None
    line_end: str
    is_ascii: bool

    @classmethod
    def of(cls, text: str) -> _Style:
        match = _INDENT.search(text)
        is_one_line = text.strip() not in {"", "{}"} and "\n" not in text.strip()
        return cls(
            indent=match[1] if match else None if is_one_line else "  ",
            line_end="\r\n" if "\r\n" in text else "\n",
            is_ascii=text.isascii() and "\\u" in text,
        )

    def dump(self, value: object, depth: int) -> str:
        text = json.dumps(value, indent=self.indent, ensure_ascii=self.is_ascii, allow_nan=False)
        return text.replace("\n", self.gap(depth))

    def gap(self, depth: int) -> str:
        """Line break and indentation before an item."""
        return "" if self.indent is None else self.line_end + self.indent * depth


@dataclass(frozen=True, slots=True)
class _Item:
    """An item of an object or list, with its offsets in the text."""

    key: str | None
    value: Any
    start: int
    at: int
    """Offset of the value; in a list the same as `start`."""
    end: int


@dataclass(frozen=True, slots=True)
class _Edit:
    """Edits values at offsets that the text and its strict form share."""

    text: str
    strict: str
    style: _Style

    def value(self, start: int, end: int, new: object, *, depth: int) -> str:
        """The text of the value between the offsets, changed to `new`."""
        opening = "{" if isinstance(new, Mapping) else "[" if isinstance(new, list) else ""
        if not opening or self.strict[start] != opening:
            return self.style.dump(new, depth)
        old = self._items(start)
        keyed: list[tuple[str | None, Any]] = []
        if isinstance(new, Mapping):
            keyed = list(new.items())
        elif isinstance(new, list):
            keyed = [(None, each) for each in new]
        kept = _match_items(old, keyed)
        texts = [
            self._item(item, key, value, depth + 1)
            for item, (key, value) in zip(kept, keyed, strict=True)
        ]
        if old and kept[: len(old)] == old:  # nothing was removed
            return self._append(start, end, old, texts, depth)
        if texts and [item for item in old if item in kept] == kept:  # nothing was added
            return self._remove(start, end, old, kept, texts)
        return self._rewrite(start, end, old, texts, depth)

    def _append(self, start: int, end: int, old: list[_Item], texts: list[str], depth: int) -> str:
        edited, at = "", start
        for item, text in zip(old, texts, strict=False):
            edited += self.text[at : item.start] + text
            at = item.end
        comma = "," + (self.style.gap(depth + 1) or " ")
        return edited + "".join(comma + text for text in texts[len(old) :]) + self.text[at:end]

    def _remove(
        self, start: int, end: int, old: list[_Item], kept: list[_Item | None], texts: list[str]
    ) -> str:
        left = iter(texts)
        edited, separator = self.text[start : old[0].start], ""
        for item, following in zip(old, [*old[1:], None], strict=True):
            if item in kept:
                edited += separator + next(left)
                separator = "" if following is None else self.text[item.end : following.start]
        return edited + self.text[old[-1].end : end]

    def _rewrite(self, start: int, end: int, old: list[_Item], texts: list[str], depth: int) -> str:
        opening, closing = self.text[start], self.text[end - 1]
        inside = self.text[start + 1 : end - 1]
        if old:
            after = self.text[old[-1].end : end - 1]
            comma = _COMMENT.sub(_blank_comment, after).find(",")
            after = after if comma < 0 else after[:comma] + after[comma + 1 :]
            inside = "" if texts else self.text[start + 1 : old[0].start] + after
        if not texts:
            return opening + (inside if inside.strip() else "") + closing
        comment = inside.rstrip() if inside.strip() else ""
        gap = self.style.gap(depth + 1)
        items = ("," + (gap or " ")).join(texts)
        return f"{opening}{comment}{gap}{items}{self.style.gap(depth)}{closing}"

    def _item(self, item: _Item | None, key: str | None, value: object, depth: int) -> str:
        if item is None:
            name = "" if key is None else self.style.dump(key, depth) + ": "
            return name + self.style.dump(value, depth)
        if item.value == value:
            return self.text[item.start : item.end]
        return self.text[item.start : item.at] + self.value(item.at, item.end, value, depth=depth)

    def _items(self, at: int) -> list[_Item]:
        """The items of the object or list at this offset."""
        strict, items = self.strict, []
        is_object = strict[at] == "{"
        at = _after_space(strict, at + 1)
        while strict[at] not in "}]":
            start, key = at, None
            if is_object:
                key, at = _DECODER.raw_decode(strict, at)
                at = _after_space(strict, _after_space(strict, at) + 1)
            value, end = _DECODER.raw_decode(strict, at)
            items.append(_Item(key, value, start, at, end))
            at = _after_space(strict, end)
            at = _after_space(strict, at + 1) if strict[at] == "," else at
        return items


def _match_items(old: list[_Item], new: list[tuple[str | None, Any]]) -> list[_Item | None]:
    """The old item for each new one; None for an added item."""
    if new and new[0][0] is not None:
        by_key = {item.key: item for item in old}
        return [by_key.get(key) for key, _ in new]
    values = [value for _, value in new]
    matches: list[_Item | None] = []
    left = list(old)
    for value in values:
        same = [i for i, item in enumerate(left) if item.value == value] or [
            i
            for i, item in enumerate(left)
            if item.value not in values and _is_near(item.value, value)
        ]
        matches.append(left[same[0]] if same else None)
        left = left[same[0] + 1 :] if same else left
    return matches


def _is_near(old: object, new: object) -> bool:
    """Whether they are the same group of hooks, with some hooks removed."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return False
    is_same = {**old, "hooks": None} == {**new, "hooks": None}
    return is_same and all(hook in old.get("hooks", ()) for hook in new.get("hooks", ()))


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()
