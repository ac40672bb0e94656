"""Adds our hooks to the text of an agent's settings, and removes them. Pure: bytes in, bytes out.

Everything else in the file stays, see `json_text`.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cellwall.core.errors import BadInput
from cellwall.interfaces.json_text import InvalidJson, JsonText

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
    hook: Mapping[str, Any]
    """A hook entry with an empty command."""
    key: str = "command"
    """The key of a hook's command."""
    is_grouped: bool = True
    """Whether hooks are in groups with a matcher; else directly in the event's list."""
    top: Mapping[str, Any] = field(default_factory=dict)
    """Other required keys of the file, such as its version."""

    def entry(self, command: str) -> dict[str, Any]:
        return {**self.hook, self.key: command}

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
        value = JsonText.decode(data).value()
    except InvalidJson as problem:
        raise _unusable(str(problem)) from None
    for name, wanted in layout.top.items():
        if value.get(name, wanted) != wanted:
            raise _unusable(f'has a "{name}" that is not {wanted!r}')
    hooks = value.get("hooks", {})
    if not isinstance(hooks, dict):
        raise _unusable('has "hooks" that are not an object')
    for event in layout.events:
        items = hooks.get(event, [])
        if not isinstance(items, list) or not all(map(layout.is_item, items)):
            raise _unusable(f'has a "hooks.{event}" that is not a list of hooks of the known form')
        if len(items) + sum(len(layout.hooks_in(item)) for item in items) > _MAX_ENTRIES:
            raise _unusable(f'has a "hooks.{event}" of more than {_MAX_ENTRIES} entries')
    return value


def _unusable(problem: str) -> BadInput:
    return BadInput(
        f"the settings file {problem}; nothing was changed",
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
    return _change_to(data, settings) if changed else data


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
    return _change_to(data, settings) if changed else data


def _change_to(data: bytes, settings: Mapping[str, Any]) -> bytes:
    try:
        return JsonText.decode(data).change_to(settings)
    except InvalidJson as problem:
        raise _unusable(str(problem)) from None


def _has_ours(item: Mapping[str, Any], layout: Layout) -> bool:
    return any(is_own_hook(hook, layout.key) for hook in layout.hooks_in(item))


def _other_hooks(item: dict[str, Any], layout: Layout) -> dict[str, Any] | None:
    """The item without our hooks; None if nothing is left. An empty group of others stays."""
    if not _has_ours(item, layout):
        return item
    others = [hook for hook in layout.hooks_in(item) if not is_own_hook(hook, layout.key)]
    return {**item, "hooks": others} if others else None
