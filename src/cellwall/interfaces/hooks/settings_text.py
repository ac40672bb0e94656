"""Adds our hooks to the text of an agent's settings, and removes them. Pure: bytes in, bytes out.

Everything else in the file stays: keys, their order, other hooks, indentation, line ends, and the
spelling of numbers and strings: serialised anew, `1.10` would become `1.1`, `1e999` invalid JSON,
and "\\ud800" invalid UTF-8.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cellwall.core.errors import BadInput

_ENTRY = "cellwall.interfaces.entry"
START = ("-I", "-c", f"from {_ENTRY} import main; raise SystemExit(main())")
"""The arguments of Python for our hook; `-m` takes a quarter longer."""
SHELL = ("/bin/sh", "-c")
"""Prefix of the command where the host may use a shell that is not POSIX."""
_MAX_ENTRIES = 1000
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_TIMEOUT_WORDS = 4  # timeout -s KILL N


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The structure of hooks in an agent's settings."""

    before: tuple[str, ...]
    """The events before a tool is used."""
    after: tuple[str, ...]
    entry: Callable[[str], dict[str, Any]]
    """Builds the hook entry for a command."""
    key: str = "command"
    """The key of a hook's command."""
    is_grouped: bool = True
    """Whether hooks are in groups with a matcher; else directly in the event's list."""
    top: Mapping[str, Any] = field(default_factory=dict)
    """Other required keys of the file, such as its version."""

    @property
    def events(self) -> tuple[str, ...]:
        return self.before + self.after

    def hooks_in(self, item: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The hooks of one item in an event's list."""
        return list(item["hooks"]) if self.is_grouped else [dict(item)]

    def item(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        return {"matcher": "*", "hooks": [dict(entry)]} if self.is_grouped else dict(entry)

    def is_item(self, item: object) -> bool:
        if not isinstance(item, dict):
            return False
        hooks = item.get("hooks") if self.is_grouped else [item]
        return isinstance(hooks, list) and all(isinstance(hook, dict) for hook in hooks)


def parse_settings(data: bytes, layout: Layout) -> dict[str, Any]:
    """The settings; raises `BadInput`, since an unreadable file must not be overwritten."""
    try:
        text = data.decode("utf-8").removeprefix(BOM)
        value = json.loads(text or "{}", object_pairs_hook=_unique, parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        place = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise _unusable(f"are not valid JSON{place}") from None
    if not isinstance(value, dict):
        raise _unusable("are not a JSON object")
    for name, wanted in layout.top.items():
        if value.get(name, wanted) != wanted:
            raise _unusable(f'have a "{name}" that is not {wanted!r}')
    hooks = value.get("hooks", {})
    if not isinstance(hooks, dict):
        raise _unusable('have "hooks" that are not an object')
    for event in layout.events:
        items = hooks.get(event, [])
        if not isinstance(items, list) or not all(map(layout.is_item, items)):
            raise _unusable(f'have a "hooks.{event}" that is not a list of hooks of the known form')
        if len(items) + sum(len(layout.hooks_in(item)) for item in items) > _MAX_ENTRIES:
            raise _unusable(f'have a "hooks.{event}" of more than {_MAX_ENTRIES} entries')
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


def _constant(name: str) -> object:
    raise ValueError(name)


def _unusable(problem: str) -> BadInput:
    return BadInput(
        f"the settings {problem}; nothing was changed",
        hint="Correct the file, then try again.",
        code="CW-HOOK-SETTINGS",
    )


def is_own_hook(hook: Mapping[str, Any], key: str = "command") -> bool:
    """Whether a hook starts `python -I … hook …` or `…/cellwall hook …`, with any options."""
    command = hook.get(key)
    if hook.get("type", "command") != "command" or not isinstance(command, str):
        return False
    try:
        words = shlex.split(command)
        if tuple(words[:2]) == SHELL and len(words) > len(SHELL):
            words = shlex.split(words[2])
    except ValueError:
        return False
    while words and _ASSIGNMENT.match(words[0]):
        words = words[1:]
    if words and os.path.basename(words[0]) == "timeout":
        words = words[_TIMEOUT_WORDS:]
    if len(words) > 1 and os.path.basename(words[0]) == "cellwall":
        return words[1] == "hook"
    return words[1:2] == [START[0]] and any(_ENTRY in word for word in words[2:4])


def own_hooks(data: bytes, layout: Layout) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Our hooks for each event, with their matchers."""
    hooks = parse_settings(data, layout).get("hooks", {})
    return {
        event: [
            (str(item.get("matcher", "")), hook)
            for item in hooks.get(event, [])
            for hook in layout.hooks_in(item)
            if is_own_hook(hook, layout.key)
        ]
        for event in layout.events
    }


def add_hooks(data: bytes, layout: Layout, commands: Mapping[str, str]) -> bytes:
    """The settings with our hooks, once; unchanged if they are already there.

    `commands` has the command of each event.
    """
    settings = parse_settings(data, layout)
    changed = False
    for name, value in layout.top.items():
        changed = changed or name not in settings
        settings.setdefault(name, value)
    hooks = settings.setdefault("hooks", {})
    for event in layout.events:
        items = hooks.setdefault(event, [])
        wanted = layout.item(layout.entry(commands[event]))
        mine = [item for item in items if _has_ours(item, layout)]
        if mine == [wanted]:
            continue
        changed = True
        at = items.index(mine[0]) if mine else len(items)
        items[at:at] = [wanted]
        hooks[event] = [
            left
            for item in items
            if (left := item if item is wanted else _other_hooks(item, layout))
        ]
    return _encode_checked(data, settings, layout) if changed else data


def remove_hooks(data: bytes, layout: Layout) -> bytes:
    """The settings without our hooks, and without lists and objects that become empty."""
    settings = parse_settings(data, layout)
    hooks = settings.get("hooks", {})
    changed = False
    for event in layout.events:
        items = hooks.get(event, [])
        if not any(_has_ours(item, layout) for item in items):
            continue
        changed = True
        hooks[event] = [left for item in items if (left := _other_hooks(item, layout))]
        if not hooks[event]:
            del hooks[event]
    if changed and not hooks:
        del settings["hooks"]
    return _encode_checked(data, settings, layout) if changed else data


def _has_ours(item: Mapping[str, Any], layout: Layout) -> bool:
    return any(is_own_hook(hook, layout.key) for hook in layout.hooks_in(item))


def _other_hooks(item: dict[str, Any], layout: Layout) -> dict[str, Any] | None:
    """The item without our hooks; None if nothing is left. An empty group of others stays."""
    if not _has_ours(item, layout):
        return item
    others = [hook for hook in layout.hooks_in(item) if not is_own_hook(hook, layout.key)]
    return {**item, "hooks": others} if others else None


def _encode_checked(data: bytes, settings: Mapping[str, Any], layout: Layout) -> bytes:
    try:
        after = edit_json(data.decode("utf-8"), settings).encode("utf-8")
    except UnicodeEncodeError:
        raise _unusable("would contain a path that is not valid UTF-8") from None
    # Proof instead of trust: the result parses to the expected value.
    if parse_settings(after, layout) != settings:
        raise _unusable("cannot be written correctly")
    return after


BOM = "\ufeff"
_INDENT = re.compile(r"[{\[]\r?\n([ \t]+)")
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class _Style:
    """The formatting of the file."""

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
        """Line break and indentation before an item."""
        return "" if self.indent is None else self.line_end + self.indent * depth


@dataclass(frozen=True, slots=True)
class _Piece:
    """An item of an object or list, with its offsets in the text."""

    key: str | None
    value: Any
    start: int
    at: int
    """Offset of the value; in a list the same as `start`."""
    end: int


def edit_json(text: str, new: Mapping[str, Any]) -> str:
    """The text of a JSON object, changed to `new`; unchanged parts keep their characters."""
    bare = text.removeprefix(BOM)
    begin = text[: len(text) - len(bare) + _after_space(bare, 0)]
    body = text[len(begin) :].rstrip(" \t\r\n")
    end = text[len(begin) + len(body) :] if text else "\n"
    return begin + _edit_value(body or "{}", new, _Style.of(bare), depth=0) + end


def _edit_value(raw: str, new: object, style: _Style, *, depth: int) -> str:
    opening = "{" if isinstance(new, Mapping) else "[" if isinstance(new, list) else ""
    if not opening or raw[0] != opening:
        return style.write(new, depth)
    old = _pieces(raw)
    wanted = _items(new)
    kept = _match_items(old, wanted)
    texts = [
        _item(raw, piece, key, value, style, depth=depth + 1)
        for piece, (key, value) in zip(kept, wanted, strict=True)
    ]
    comma = "," + (style.gap(depth + 1) or " ")
    if (
        old and kept[: len(old)] == old
    ):  # nothing was removed, so the white space between items stays
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
    changed = _edit_value(raw[piece.at : piece.end], value, style, depth=depth)
    return raw[piece.start : piece.at] + changed


def _match_items(old: list[_Piece], wanted: list[tuple[str | None, Any]]) -> list[_Piece | None]:
    """The old item for each new one; None for an added item."""
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
    """Whether they are the same matcher group, with some hooks removed."""
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
