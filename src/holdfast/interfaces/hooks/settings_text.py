"""Claude Code's settings.json with our hooks in it, and without them. Pure: bytes in, bytes out.

Everything else in the file stays: keys, their order, other hooks, indentation, line ends.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core.errors import BadInput

EVENTS = ("PreToolUse", "PostToolUse")
_BOM = "\ufeff"
_INDENT = re.compile(r"[{\[]\r?\n([ \t]+)")


@dataclass(frozen=True, slots=True)
class _Style:
    """How the file was written."""

    indent: str | None = "  "
    line_end: str = "\n"
    last: str = "\n"
    first: str = ""
    is_ascii: bool = False

    @classmethod
    def of(cls, text: str) -> _Style:
        found = _INDENT.search(text)
        has_lines = "\n" in text.strip()
        body = text.rstrip()
        return cls(
            indent=found[1]
            if found
            else (None if body not in {"", "{}"} and not has_lines else "  "),
            line_end="\r\n" if "\r\n" in text else "\n",
            last=text[len(body) :] if text else "\n",
            first=_BOM if text.startswith(_BOM) else "",
            is_ascii=text.isascii() and "\\u" in text,
        )

    def write(self, value: Mapping[str, Any]) -> bytes:
        text = json.dumps(value, indent=self.indent, ensure_ascii=self.is_ascii, allow_nan=False)
        text = text.replace("\n", self.line_end)
        return (self.first + text + self.last).encode("utf-8", "surrogatepass")


def parsed(data: bytes) -> dict[str, Any]:
    """The settings; raises `BadInput`, since what cannot be read must not be written over."""
    try:
        text = data.decode("utf-8").removeprefix(_BOM)
        value = json.loads(text or "{}", object_pairs_hook=_unique, parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        place = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise _unusable(f"are no valid JSON{place}") from None
    if not isinstance(value, dict):
        raise _unusable("are no JSON object")
    hooks = value.get("hooks", {})
    if not isinstance(hooks, dict):
        raise _unusable('have "hooks" that are no object')
    for event in EVENTS:
        groups = hooks.get(event, [])
        if not isinstance(groups, list) or not all(map(_is_group, groups)):
            raise _unusable(f'have a "hooks.{event}" that is no list of matchers with hooks')
    return value


def _is_group(group: object) -> bool:
    return (
        isinstance(group, dict)
        and isinstance(group.get("hooks"), list)
        and all(isinstance(hook, dict) for hook in group["hooks"])
    )


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
        mend="Correct the file, then try again.",
        code="HF-HOOK-SETTINGS",
    )


def hook_entry(command: str, *, timeout_s: int) -> dict[str, Any]:
    """One hook. Without `onFailure` a crash or a time-out would let the tool through."""
    return {"type": "command", "command": command, "timeout": timeout_s, "onFailure": "block"}


def is_ours(hook: Mapping[str, Any]) -> bool:
    """By what it starts: `…/holdfast hook …`."""
    command = hook.get("command")
    if hook.get("type") != "command" or not isinstance(command, str):
        return False
    try:
        words = shlex.split(command)
    except ValueError:
        return False
    return len(words) > 1 and os.path.basename(words[0]) == "holdfast" and words[1] == "hook"


def ours(data: bytes) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """For each event our hooks, each with its matcher."""
    hooks = parsed(data).get("hooks", {})
    return {
        event: [
            (str(group.get("matcher", "")), hook)
            for group in hooks.get(event, [])
            for hook in group["hooks"]
            if is_ours(hook)
        ]
        for event in EVENTS
    }


def merged(data: bytes, entry: Mapping[str, Any]) -> bytes:
    """With our hooks, and only once; `data` itself if they are there already."""
    settings = parsed(data)
    changed = False
    hooks = settings.setdefault("hooks", {})
    for event in EVENTS:
        groups = hooks.setdefault(event, [])
        wanted = {"matcher": "*", "hooks": [dict(entry)]}
        mine = [group for group in groups if any(map(is_ours, group["hooks"]))]
        if mine == [wanted]:
            continue
        changed = True
        at = groups.index(mine[0]) if mine else len(groups)
        groups[at:at] = [wanted]
        hooks[event] = [
            left for group in groups if (left := group if group is wanted else _left(group))
        ]
    return _Style.of(data.decode("utf-8")).write(settings) if changed else data


def without(data: bytes) -> bytes:
    """Without our hooks; lists and objects that held nothing else go with them."""
    settings = parsed(data)
    hooks = settings.get("hooks", {})
    changed = False
    for event in EVENTS:
        groups = hooks.get(event, [])
        if not any(is_ours(hook) for group in groups for hook in group["hooks"]):
            continue
        changed = True
        hooks[event] = [left for group in groups if (left := _left(group))]
        if not hooks[event]:
            del hooks[event]
    if changed and not hooks:
        del settings["hooks"]
    return _Style.of(data.decode("utf-8")).write(settings) if changed else data


def _left(group: dict[str, Any]) -> dict[str, Any] | None:
    """What is left of a matcher; None if all of it was ours. An empty one of others stays."""
    others = [hook for hook in group["hooks"] if not is_ours(hook)]
    if len(others) == len(group["hooks"]):
        return group
    return {**group, "hooks": others} if others else None
