"""Tool calls as agents write them, and the groups of tools that one rule covers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from cellwall.core.errors import BadInput
from cellwall.core.types import Json
from cellwall.core.verdict import Verdict

Group = Literal[
    "bash", "read", "write", "fetch", "search", "code", "install", "port", "mcp", "other"
]

GROUPS: dict[str, Group] = {
    "Bash": "bash",
    "Read": "read",
    "Grep": "read",
    "Glob": "read",
    "LS": "read",
    "NotebookRead": "read",
    "Write": "write",
    "Edit": "write",
    "MultiEdit": "write",
    "NotebookEdit": "write",
    "WebFetch": "fetch",
    "WebSearch": "search",
    "Code": "code",
    "Install": "install",
    "Port": "port",
}
"""A rule for one tool of a group covers all: a denial for `Edit` holds for `Write`."""

TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,255}")
MCP = "mcp__"
_MCP_PATTERN = re.compile(r"mcp__(?:\*|[A-Za-z0-9_-]+\*?)")


@lru_cache(maxsize=1024)
def group_of(tool: str) -> Group:
    """The group of a tool, or of a rule's tool."""
    return "mcp" if tool.startswith(MCP) else GROUPS.get(tool, "other")


def is_mcp_pattern(text: str) -> bool:
    """`mcp__server`, `mcp__server__tool`, and a `*` at the end of either."""
    return _MCP_PATTERN.fullmatch(text) is not None


def covers(rule_tool: str, tool: str, verdict: Verdict) -> bool:
    """Whether a rule for `rule_tool` covers calls of `tool`."""
    group = group_of(tool)
    if group_of(rule_tool) != group:
        return False
    if group == "mcp":
        return _covers_mcp(rule_tool, tool, verdict)
    return group != "other" or rule_tool == tool


def _covers_mcp(rule_tool: str, tool: str, verdict: Verdict) -> bool:
    if rule_tool == tool:
        return True
    # A server alone means all of its tools.
    prefix = rule_tool[:-1] if rule_tool.endswith("*") else rule_tool + "__"
    if not tool.startswith(prefix):
        return False
    # Attack: a server that calls itself `github__x` has tools that look like those of `github`.
    # Where a name can be split in two ways, an allow means neither and a denial both.
    return verdict is not Verdict.ALLOW or "__" not in tool[len(prefix) - 1 :]


# Calls of tools as agents write them.

MAX_CALL_CHARACTERS = 8 << 20
"""Of all texts in a call together: enough for the content of a large file."""
MAX_CALL_DEPTH = 32
MAX_CALL_VALUES = 100_000

_CALL_HINT = (
    'Write for example Bash(git status), or {"tool": "Bash", "input": {"command": "git status"}}.'
)

_TEXT_KEYS = {
    "Bash": "command",
    "Read": "file_path",
    "Write": "file_path",
    "Edit": "file_path",
    "MultiEdit": "file_path",
    "NotebookEdit": "notebook_path",
    "NotebookRead": "notebook_path",
    "LS": "path",
    "Grep": "path",
    "Glob": "pattern",
    "WebFetch": "url",
    "WebSearch": "query",
    "Code": "language",
    "Install": "package",
    "Port": "port",
}
"""The input key of the text in parentheses, for tools whose calls people write by hand."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call: `Bash` with `{"command": …}`, `Read` with `{"file_path": …}`, any other tool."""

    tool: str
    input: Mapping[str, Json] = field(default_factory=dict)
    cwd: str = "/"
    """What relative paths in it are relative to; absolute itself."""
    home: str = "/"
    """What `~` stands for."""


def parse_call(text: str, *, cwd: str = "/", home: str = "/") -> ToolCall:
    """A call as people write it: `Bash(git push)`, `mcp__server__tool({"key": 1})`."""
    if len(text) > MAX_CALL_CHARACTERS:
        raise _bad("the call is too long")
    tool, parenthesis, rest = text.partition("(")
    if parenthesis and not rest.endswith(")"):
        raise _bad("the call does not end with a closing parenthesis")
    content = rest[:-1]
    if tool in _TEXT_KEYS:
        if not parenthesis:
            raise _bad(f"the call of {tool} has no text in parentheses")
        return from_json({"tool": tool, "input": {_TEXT_KEYS[tool]: content}}, cwd=cwd, home=home)
    meant = next((known for known in _TEXT_KEYS if known.lower() == tool.lower()), "")
    if meant and content.strip() and not content.lstrip().startswith("{"):
        raise _bad(f"there is no tool {tool}. Did you mean {meant}?")
    tool_input = _json_object(tool, content) if content.strip() else {}
    return from_json({"tool": tool, "input": tool_input}, cwd=cwd, home=home)


def from_json(found: object, *, cwd: str = "/", home: str = "/") -> ToolCall:
    """A call as programs hand it on: `{"tool", "input"}` or `{"tool_name", "tool_input"}`.

    Other keys are ignored: no key in a call can change its judgement (POL-11).
    """
    if not isinstance(found, Mapping):
        raise _bad("a call is not an object")
    tool = _one_of(found, "tool", "tool_name")
    tool_input = _one_of(found, "input", "tool_input")
    if not isinstance(tool, str) or TOOL_NAME.fullmatch(tool) is None:
        raise _bad("a call has to begin with the name of its tool, such as Bash")
    tool_input = {} if tool_input is None else tool_input
    if not isinstance(tool_input, Mapping):
        raise _bad(f"the input of {tool[:40]} is not an object")
    _refuse_wild(tool_input)
    key = _TEXT_KEYS.get(tool, "")
    text = tool_input.get(key, "")
    if key and not isinstance(text, str):
        raise _bad(f"{key} of {tool} is not a text")
    if isinstance(text, str) and "\0" in text:
        raise _bad(f"{key} of {tool} holds a NUL character")
    return ToolCall(tool, tool_input, cwd, home)


def _bad(problem: str) -> BadInput:
    return BadInput(problem, hint=_CALL_HINT, code="CW-BAD-CALL")


def _one_of(found: Mapping[object, object], first: str, second: str) -> object:
    """Two keys for one value. Attack: with both keys, two readers see different calls."""
    if first in found and second in found:
        raise _bad(f"a call has both {first} and {second}")
    return found.get(first, found.get(second))


def _json_object(tool: str, text: str) -> Mapping[str, Json]:
    try:
        found = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _bad(f"the input of {tool[:40]!r}, in the parentheses, is not a JSON object")
    return found


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _refuse_wild(value: object) -> None:
    """Refuses input that is too deep, too large or no JSON."""
    characters = values = 0
    waiting: list[tuple[object, int]] = [(value, 0)]
    while waiting:
        item, depth = waiting.pop()
        values += 1
        if depth > MAX_CALL_DEPTH or values > MAX_CALL_VALUES:
            raise _bad("the input of a call is nested too deep or has too many values")
        match item:
            case str():
                characters += len(item)
                _refuse_no_text(item)
            case Mapping():
                waiting += [(part, depth + 1) for pair in item.items() for part in pair]
                if not all(isinstance(key, str) for key in item):
                    raise _bad("a key in the input of a call is not a text")
            case list() | tuple():
                waiting += [(part, depth + 1) for part in item]
            case float() if not math.isfinite(item):
                raise _bad("a number in the input of a call is not finite")
            case bool() | int() | float() | None:
                pass
            case _:
                raise _bad("the input of a call holds a value that JSON cannot express")
        if characters > MAX_CALL_CHARACTERS:
            raise _bad("the input of a call is too long")


def _refuse_no_text(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise _bad("the input of a call holds a lone surrogate, which is not valid text") from None
