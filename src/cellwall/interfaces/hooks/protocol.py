"""What the hook protocols of all agents have in common: calls, results, replies. Pure.

Whatever does not have exactly the form of its protocol is refused: a question that two parsers read
differently is a way past the judge.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cellwall.core.errors import BadInput
from cellwall.core.types import Json
from cellwall.interfaces.terminal import one_line

MAX_BYTES = 8 * 1024 * 1024
_MAX_REASON = 2000


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One use of a tool, under the name that rules have for it."""

    tool: str
    input: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """Before a tool is used."""

    tool: str
    input: Mapping[str, Json]
    cwd: str
    session: str
    call: str
    mode: str = ""
    """How the agent's host treats questions now: `default`, `bypassPermissions`, …"""
    event: str = ""
    project: str | None = None
    """The agent's project, by the word of its host."""
    given: Mapping[str, Json] = field(default_factory=dict)
    """The input in the agent's own words, where they differ."""
    also: tuple[ToolUse, ...] = ()
    """What else the same call does: a patch changes several files. All of it is judged."""
    is_final: bool = False
    """The host runs the command exactly so and takes no other in its place."""

    @property
    def uses(self) -> tuple[ToolUse, ...]:
        return (ToolUse(self.tool, self.input), *self.also)


@dataclass(frozen=True, slots=True)
class ToolReport:
    """After a tool was used."""

    tool: str
    response: Json
    session: str
    call: str


@dataclass(frozen=True, slots=True)
class OtherEvent:
    """Any other event: nothing is judged."""

    event: str


@dataclass(frozen=True, slots=True)
class Ruling:
    """What is answered to `ToolRequest`."""

    verdict: Literal["allow", "deny", "ask"]
    reason: str
    updated: Mapping[str, Json] | None = None
    """Another input, to be used in place of the one asked about."""
    stops: bool = False
    """The rule that denies also ends the agent's turn, as far as the protocol can say so."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the hook's process says. 0 and an answer, or 2, which blocks what has not run yet."""

    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""


class Malformed(BadInput):
    """Not a request of this protocol. `event` is the event it names, as far as that is known."""

    default_code = "CW-HOOK-MALFORMED"

    def __init__(self, message: str, event: str = "") -> None:
        super().__init__(message)
        self.event = event


def parse_object(raw: bytes) -> dict[str, Any]:
    """One JSON object, strictly; raises `Malformed`."""
    if len(raw) > MAX_BYTES:
        raise Malformed(f"the question is larger than {MAX_BYTES} bytes")
    try:
        told = json.loads(
            raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant
        )
    except RecursionError:
        raise Malformed("the question is nested too deep") from None
    except ValueError as error:
        known = error.args[0] if isinstance(error, _NotStrict) else "the question is no JSON"
        raise Malformed(known) from None
    if not isinstance(told, dict):
        raise Malformed("the question is no JSON object")
    return told


class _NotStrict(ValueError):
    """JSON to some, not to all."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        # The agent's host may take the first where we take the last.
        raise _NotStrict("the question has a key twice")
    return found


def _no_constant(name: str) -> object:
    raise _NotStrict(f"{name} is no JSON")


def text_field(
    told: Mapping[str, Any], name: str, event: str, *, default: str | None = None
) -> str:
    """A field that must be text."""
    value = told.get(name, default)
    if not isinstance(value, str):
        raise Malformed(f"{name} is missing or no text", event)
    return value


def object_field(told: Mapping[str, Any], name: str, event: str) -> dict[str, Any]:
    """A field that must be an object."""
    value = told.get(name)
    if not isinstance(value, dict):
        raise Malformed(f"{name} is no object", event)
    return value


def json_field(told: Mapping[str, Any], name: str, event: str) -> dict[str, Any]:
    """An object, or a text that holds one: some hosts send arguments as the model wrote them."""
    value = told.get(name)
    if isinstance(value, str):
        try:
            value = parse_object(value.encode("utf-8", "surrogatepass"))
        except (Malformed, UnicodeEncodeError):
            raise Malformed(f"{name} is a text that holds no JSON object", event) from None
    if not isinstance(value, dict):
        raise Malformed(f"{name} is no object", event)
    return value


def block_reply(reason: str, stdout: bytes = b"") -> Reply:
    """Exit code 2 with a reason on standard error, which every host of ours takes for a denial."""
    return Reply(2, stdout, f"cellwall: {clip_reason(reason)}\n".encode("utf-8", "replace"))


def clip_reason(reason: str) -> str:
    """People read it in the agent's terminal: it can neither steer that nor fill it.

    Never empty: to some hosts a denial without a reason is a failed hook, and the tool runs.
    """
    text = one_line(reason) if reason.strip() else "refused, without a reason"
    return text if len(text) <= _MAX_REASON else text[:_MAX_REASON] + "…"


def json_line(answer: Mapping[str, Json]) -> bytes:
    """The answer as hosts read it."""
    return json.dumps(answer, allow_nan=False).encode("ascii") + b"\n"


def as_text(response: Json) -> str:
    """A cleaned result for a host that takes only a text in its place."""
    return response if isinstance(response, str) else json.dumps(response, ensure_ascii=False)
