"""Replacements for results that could not be scanned.

The tool has run, so exit code 2 blocks nothing: the host would pass the result on. Only a
replacement withholds it, and hosts drop a replacement that does not have the shape of the tool's
results. So each replacement has that shape and none of the content.

Light: a hook close to its deadline imports this and no other module of ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

AFTER = "PostToolUse"
NOTE = "[cellwall: withheld: the result could not be scanned]"
TEXT_ONLY = '{{"modifiedResult": {{"resultType": "success", "textResultForLlm": "{note}"}}}}'
"""GitHub Copilot's format, in which a text replaces every result."""
_MAX_BYTES = 8 * 1024 * 1024
_MAX_REASON = 2000
_MAX_DEPTH = 6
_MAX_KEYS = 40
_MAX_NUMBER = 1 << 53
_MAX_TOKENS = 200_000
"""Brackets and strings to skip before the event's name."""
# Keys of the host's own tools match; sentences do not.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
# Hosts distinguish results by these keys and drop a replacement with another value.
_KINDS = frozenset({"type", "mode", "status", "kind"})
_KIND = re.compile(r"[a-z_]{1,24}")
_OMITTED_PREFIX = "persisted"
"""Prefix of keys that name a file with the full output, which a host would show instead."""

_BLOCKS = [{"type": "text", "text": NOTE}]
_SHELL = {"stdout": NOTE, "stderr": "", "interrupted": False, "isImage": False}
_FILE = {"filePath": "", "content": NOTE, "numLines": 1, "startLine": 1, "totalLines": 1}
_PAGE = {"bytes": 0, "code": 200, "codeText": "", "result": NOTE, "durationMs": 0, "url": ""}
_FOUND = {"mode": "content", "numFiles": 0, "filenames": [], "content": NOTE, "numLines": 1}
_NAMES = {"durationMs": 0, "numFiles": 1, "filenames": [NOTE], "truncated": False}
_KNOWN: Mapping[str, Mapping[str, Any]] = {
    "Bash": _SHELL,
    "PowerShell": _SHELL,
    "Read": {"type": "text", "file": _FILE},
    "WebFetch": _PAGE,
    "WebSearch": {"query": "", "results": [NOTE], "durationSeconds": 0},
    "Grep": _FOUND,
    "Glob": _NAMES,
}

_SPACE = re.compile(rb"[ \t\r\n]*")
# Possessive: an unclosed string fails at once, without a retry from each quote.
_STRING = re.compile(rb'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
_SCALAR = re.compile(rb"[-+.0-9A-Za-z]+")
_NEXT = re.compile(rb'["\[\]{}]')


def answer(reason: str, *, tool: str = "", response: object = None) -> bytes:
    """The answer that withholds the result and gives the reason."""
    reply = {
        "decision": "block",
        "reason": reason[:_MAX_REASON],
        "hookSpecificOutput": {
            "hookEventName": AFTER,
            "updatedToolOutput": in_place_of(tool, response),
        },
    }
    return json.dumps(reply, allow_nan=False).encode("ascii") + b"\n"


def answer_to(raw: bytes, reason: str) -> bytes | None:
    """The same for a raw request; None if the request is not about a result."""
    fields = top_level(raw)
    if fields.get("hook_event_name") != AFTER:
        return None
    response: object = None
    try:
        if len(raw) <= _MAX_BYTES:
            response = json.loads(raw)["tool_response"]
    except (ValueError, TypeError, KeyError, RecursionError):
        pass  # then the shape follows from the tool's name alone
    return answer(reason, tool=fields.get("tool_name", ""), response=response)


def in_place_of(tool: str, response: object) -> Any:  # noqa: ANN401  # JSON, of no fixed shape
    """A value of the same shape without the content."""
    if tool in _KNOWN:
        return dict(_KNOWN[tool])
    if tool.startswith("mcp__") and not isinstance(response, str):
        return {"content": _BLOCKS} if isinstance(response, Mapping) else _BLOCKS
    return _shape(response, "", 0)


def _shape(value: object, name: str, depth: int) -> Any:  # noqa: ANN401  # JSON, of no fixed shape
    match value:
        case int() | float():
            return value if abs(value) < _MAX_NUMBER else 0
        case str() if name in _KINDS and _KIND.fullmatch(value):
            return value
        case dict() if depth < _MAX_DEPTH:
            names = [key for key in value if isinstance(key, str) and _is_kept(key)]
            return {key: _shape(value[key], key, depth + 1) for key in names[:_MAX_KEYS]}
        case [{"type": _}, *_] if depth < _MAX_DEPTH:
            return _BLOCKS  # not the shape of the first block: an image would get our text as bytes
        case list() if depth < _MAX_DEPTH:
            return [_shape(each, name, depth + 1) for each in value[:1]]
        case None if depth:
            return None
        case _:
            return NOTE


def _is_kept(key: str) -> bool:
    return _NAME.fullmatch(key) is not None and not key.startswith(_OMITTED_PREFIX)


def top_level(raw: bytes) -> dict[str, str]:
    """The event and the tool of a request, read from its start as far as possible.

    Only keys of the outermost object: an agent and tool results can contain the same keys further
    inside, and must not choose the form of a refusal.
    """
    fields: dict[str, str] = {}
    at = _after_space(raw, 0)
    if raw[at : at + 1] != b"{":
        return fields
    while len(fields) < 2:
        key = _STRING.match(raw, _after_space(raw, at + 1))
        if key is None:
            break
        at = _after_space(raw, key.end())
        if raw[at : at + 1] != b":":
            break
        at = _after_space(raw, at + 1)
        value = _STRING.match(raw, at)
        name = key[1].decode("ascii", "replace")
        if name in {"hook_event_name", "tool_name"} and name not in fields:
            fields[name] = _plain(value[1]) if value is not None else ""
        end = value.end() if value is not None else _after_value(raw, at)
        if end is None:
            break
        at = _after_space(raw, end)
        if raw[at : at + 1] != b",":
            break
    return fields


def _plain(text: bytes) -> str:
    return "" if b"\\" in text else text.decode("utf-8", "replace")


def _after_space(raw: bytes, at: int) -> int:
    match = _SPACE.match(raw, at)
    return at if match is None else match.end()


def _after_value(raw: bytes, at: int) -> int | None:
    """The offset after a value that is not a string; None: unclosed or too long."""
    if raw[at : at + 1] not in {b"{", b"["}:
        scalar = _SCALAR.match(raw, at)
        return None if scalar is None else scalar.end()
    depth = 0
    for _ in range(_MAX_TOKENS):
        token = _NEXT.search(raw, at)
        if token is None:
            return None
        if token[0] == b'"':
            string = _STRING.match(raw, token.start())
            if string is None:
                return None
            at = string.end()
            continue
        depth += 1 if token[0] in b"[{" else -1
        at = token.end()
        if not depth:
            return at
    return None
