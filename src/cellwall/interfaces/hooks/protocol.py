"""Types and parsing that the hook protocols of all agents share. Pure.

A request that deviates from its protocol is refused: input that two parsers read differently is a
bypass.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cellwall.core.errors import BadInput
from cellwall.core.types import Json
from cellwall.interfaces.json_text import InvalidJson, parse_strictly
from cellwall.interfaces.terminal import one_line

MAX_BYTES = 8 * 1024 * 1024
_MAX_REASON = 2000


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One use of a tool, under the name that policy rules use."""

    tool: str
    input: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A request before a tool is used."""

    tool: str
    input: Mapping[str, Json]
    cwd: str
    session: str
    call: str
    mode: str = ""
    """The host's permission mode: `default`, `bypassPermissions`, …"""
    event: str = ""
    project: str | None = None
    """The agent's project, as its host reports it."""
    original_input: Mapping[str, Json] = field(default_factory=dict)
    """The input with the agent's own field names, where they differ."""
    also: tuple[ToolUse, ...] = ()
    """Further uses in the same call, such as the files of a patch. All are judged."""
    is_final: bool = False
    """The host runs exactly this command and accepts no rewritten one."""

    @property
    def uses(self) -> tuple[ToolUse, ...]:
        return (ToolUse(self.tool, self.input), *self.also)


@dataclass(frozen=True, slots=True)
class ToolReport:
    """A result, after a tool was used."""

    tool: str
    response: Json
    session: str
    call: str


@dataclass(frozen=True, slots=True)
class OtherEvent:
    """Any other event; nothing is judged."""

    event: str


@dataclass(frozen=True, slots=True)
class Ruling:
    """The answer to a `ToolRequest`."""

    verdict: Literal["allow", "deny", "ask"]
    reason: str
    updated: Mapping[str, Json] | None = None
    """The input to use instead of the requested one."""
    stops: bool = False
    """The denying rule also ends the agent's turn, where the protocol can express that."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The hook process's exit code and output: 0 with an answer, or 2, which blocks the tool."""

    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""


class Malformed(BadInput):
    """Malformed hook request. `event` is the event that it names, where known."""

    default_code = "CW-HOOK-MALFORMED"

    def __init__(self, message: str, event: str = "") -> None:
        super().__init__(message)
        self.event = event


def parse_object(raw: bytes) -> dict[str, Any]:
    """One JSON object, strictly; raises `Malformed`."""
    if len(raw) > MAX_BYTES:
        raise Malformed(f"the hook request is larger than {MAX_BYTES} bytes")
    try:
        message = parse_strictly(raw.decode("utf-8"))
    except InvalidJson as problem:
        raise Malformed(f"the hook request {problem}") from None
    except UnicodeDecodeError:
        raise Malformed("the hook request is not UTF-8 text") from None
    if not isinstance(message, dict):
        raise Malformed("the hook request is not a JSON object")
    return message


def text_field(
    message: Mapping[str, Any], name: str, event: str, *, default: str | None = None
) -> str:
    """A string field; raises `Malformed`."""
    value = message.get(name, default)
    if not isinstance(value, str):
        raise Malformed(f"{name} is missing or not a string", event)
    return value


def object_field(message: Mapping[str, Any], name: str, event: str) -> dict[str, Any]:
    """An object field; raises `Malformed`."""
    value = message.get(name)
    if not isinstance(value, dict):
        raise Malformed(f"{name} is not an object", event)
    return value


def json_field(message: Mapping[str, Any], name: str, event: str) -> dict[str, Any]:
    """An object, or a string of JSON: some hosts send arguments as the model wrote them."""
    value = message.get(name)
    if isinstance(value, str):
        try:
            value = parse_object(value.encode("utf-8", "surrogatepass"))
        except (Malformed, UnicodeEncodeError):
            raise Malformed(f"{name} is a string without a JSON object", event) from None
    if not isinstance(value, dict):
        raise Malformed(f"{name} is not an object", event)
    return value


def block_reply(reason: str, stdout: bytes = b"") -> Reply:
    """Exit code 2 with a reason on standard error: a denial in every supported protocol."""
    return Reply(2, stdout, f"cellwall: {clip_reason(reason)}\n".encode("utf-8", "replace"))


def clip_reason(reason: str) -> str:
    """The reason for the agent's terminal: control characters escaped, length bounded.

    Never empty: some hosts treat a denial without a reason as a failed hook and run the tool.
    """
    text = one_line(reason) if reason.strip() else "refused without a reason"
    return text if len(text) <= _MAX_REASON else text[:_MAX_REASON] + "…"


def json_reply(answer: Mapping[str, Json]) -> Reply:
    """Exit code 0 with an answer."""
    return Reply(0, json_line(answer))


def json_line(answer: Mapping[str, Json]) -> bytes:
    """An answer as one line of JSON."""
    return json.dumps(answer, allow_nan=False).encode("ascii") + b"\n"


def as_text(response: Json) -> str:
    """A cleaned result as text, for hosts that accept only text."""
    return response if isinstance(response, str) else json.dumps(response, ensure_ascii=False)


EMPTY_REPLY = json_reply({})
"""Neither an objection nor a change."""
