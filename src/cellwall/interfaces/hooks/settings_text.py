"""Claude Code's settings.json with our hooks in it, and without them. Pure: bytes in, bytes out.

Everything else in the file stays: keys, their order, other hooks, indentation, line ends, and the
very spelling of numbers and texts.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from typing import Any

from cellwall.core.errors import BadInput
from cellwall.interfaces.hooks.respelling import BOM, respelled

EVENTS = ("PreToolUse", "PostToolUse")
_ENTRY = "cellwall.interfaces.entry"
START = ("-I", "-c", f"from {_ENTRY} import main; raise SystemExit(main())")
"""What our hook gives to Python; `-m` would take a quarter longer for the same."""
_MOST_ENTRIES = 1000
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


def parsed(data: bytes) -> dict[str, Any]:
    """The settings; raises `BadInput`, since what cannot be read must not be written over."""
    try:
        text = data.decode("utf-8").removeprefix(BOM)
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
        if len(groups) + sum(len(group["hooks"]) for group in groups) > _MOST_ENTRIES:
            raise _unusable(f'have a "hooks.{event}" of more than {_MOST_ENTRIES} entries')
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
        code="CW-HOOK-SETTINGS",
    )


def hook_entry(command: str, *, timeout_s: int) -> dict[str, Any]:
    """One hook. Without `onFailure` a crash or a time-out would let the tool through."""
    return {"type": "command", "command": command, "timeout": timeout_s, "onFailure": "block"}


def is_ours(hook: Mapping[str, Any]) -> bool:
    """By what it starts: `python -I … hook …`, or `…/cellwall hook …`, with any options."""
    command = hook.get("command")
    if hook.get("type") != "command" or not isinstance(command, str):
        return False
    try:
        words = shlex.split(command)
    except ValueError:
        return False
    while words and _ASSIGNMENT.match(words[0]):
        words = words[1:]
    if len(words) > 1 and os.path.basename(words[0]) == "cellwall":
        return words[1] == "hook"
    return words[1:2] == [START[0]] and any(_ENTRY in word for word in words[2:4])


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
    return _written(data, settings) if changed else data


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
    return _written(data, settings) if changed else data


def _left(group: dict[str, Any]) -> dict[str, Any] | None:
    """What is left of a matcher; None if all of it was ours. An empty one of others stays."""
    others = [hook for hook in group["hooks"] if not is_ours(hook)]
    if len(others) == len(group["hooks"]):
        return group
    return {**group, "hooks": others} if others else None


def _written(data: bytes, settings: Mapping[str, Any]) -> bytes:
    try:
        after = respelled(data.decode("utf-8"), settings).encode("utf-8")
    except UnicodeEncodeError:
        raise _unusable("would hold a path that is no text") from None
    # Proof instead of trust: it reads back as what it should be.
    if parsed(after) != settings:
        raise _unusable("cannot be written as they should be")
    return after
