"""Cellwall for programs that drive an agent with `claude-agent-sdk`: the extra `cellwall[claude]`.

    options = ClaudeAgentOptions(hooks=agent_sdk.hooks())

`can_use_tool` alone is not enough: the SDK calls it only where Claude Code would have asked, so a
tool that its settings or mode allow never reaches it. `hooks()` sees every call.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any, TypedDict, Unpack

import anyio

from cellwall.core.errors import BadInput, CellwallError
from cellwall.interfaces.hooks.agents.claude_code import AFTER, BEFORE, permission, refusal
from cellwall.interfaces.hooks.answer import HookOptions, reply_to
from cellwall.interfaces.hooks.protocol import Reply
from cellwall.runtime.app import App
from cellwall.runtime.wiring import shared_app

HookCallback = Callable[[Any, str | None, Any], Awaitable[dict[str, Any]]]
_ANSWER_WITHIN_S = 10.0
_HOST_WAITS_S = 20.0


class HookChoices(TypedDict, total=False):
    """The options of the callbacks, as those of `cellwall hook`."""

    config: str | None
    profile: str | None
    policy: str | None
    dangerously_outside: bool
    project: str | None


def pre_tool_use(**choices: Unpack[HookChoices]) -> HookCallback:
    """A `PreToolUse` callback: allow, deny or ask, as `cellwall hook` would answer."""
    return _callback(BEFORE, choices)


def post_tool_use(**choices: Unpack[HookChoices]) -> HookCallback:
    """A `PostToolUse` callback: scans, redacts and records the result."""
    return _callback(AFTER, choices)


def _callback(event: str, choices: HookChoices) -> HookCallback:
    options = HookOptions(**choices, environ=dict(os.environ))

    async def callback(request: Any, _tool_use_id: str | None, _context: Any) -> dict[str, Any]:  # noqa: ANN401  # the SDK's own types
        return _answer_of(await _reply(request, event, options))

    return callback


def hooks(**choices: Unpack[HookChoices]) -> dict[str, list[Any]]:
    """For `ClaudeAgentOptions(hooks=…)`; a callback that fails or is late stops the tool."""
    return {event: [_matcher(_callback(event, choices))] for event in (BEFORE, AFTER)}


def can_use_tool(
    **choices: Unpack[HookChoices],
) -> Callable[[str, dict[str, Any], Any], Awaitable[Any]]:
    """For `ClaudeAgentOptions(can_use_tool=…)`, beside `hooks()`, never instead of it.

    The callback is itself the answer to a permission question, so an ASK verdict is denied.
    """
    options = HookOptions(**choices, environ=dict(os.environ))
    sdk = _sdk()

    async def decide(tool: str, tool_input: dict[str, Any], context: Any) -> Any:  # noqa: ANN401  # the SDK's own types
        request = {
            "hook_event_name": BEFORE,
            "session_id": "can_use_tool",
            "cwd": options.project or os.getcwd(),
            "tool_name": tool,
            "tool_input": tool_input,
            "tool_use_id": getattr(context, "tool_use_id", None) or "",
        }
        answer = _answer_of(await _reply(request, BEFORE, options))["hookSpecificOutput"]
        if answer["permissionDecision"] != "allow":
            return sdk.PermissionResultDeny(message=answer["permissionDecisionReason"])
        return sdk.PermissionResultAllow(updated_input=answer.get("updatedInput", tool_input))

    return decide


def behind_proxy(report: str | bytes, *, client: str = "claude") -> dict[str, Any]:
    """For `ClaudeAgentOptions(**…)`, from the line that `cellwall proxy --json` prints: Claude
    Code's own sandbox sends the traffic of its commands to the egress proxy.

    The proxy variables are left out: with them, Claude Code would reach its model that way too.
    """
    try:
        clients = {each["name"]: each for each in json.loads(report)["clients"]}
    except (KeyError, TypeError, ValueError, RecursionError):
        clients = {}
    port = clients.get(client, {}).get("port_without_token")
    if not port:
        raise BadInput(
            f"the report names no port without a token for the client {client!r:.60}",
            hint="cellwall proxy --json --client claude --dangerously-without-token claude=0",
            code="CW-NO-PROXY-PORT",
        )
    env = clients[client]["env"]
    return {
        "sandbox": {"enabled": True, "network": {"httpProxyPort": port, "socksProxyPort": port}},
        "env": {name: env[name] for name in env if "proxy" not in name.lower()},
    }


async def _reply(request: Mapping[str, Any], event: str, options: HookOptions) -> Reply:
    """Through the same strict parser as every hook; any failure is a refusal."""

    def refused(reason: str) -> Reply:
        get = getattr(request, "get", lambda _: None)  # the SDK may pass any object
        return refusal(
            event, reason, tool=str(get("tool_name") or ""), response=get("tool_response")
        )

    try:
        if request["hook_event_name"] != event:
            return _as_answer(event, refused("the request is about another event"))
        with anyio.fail_after(_ANSWER_WITHIN_S):
            reply = await reply_to(json.dumps(request).encode(), options, _open_shared)
    except TimeoutError:
        reply = refused("no answer in time, so the call is refused")
    except (KeyError, TypeError, ValueError, RecursionError):
        reply = refused("the request is not valid JSON")
    except Exception:  # noqa: BLE001  # a bug of ours must not let a tool through
        reply = refused("Cellwall failed, so the call is refused")
    return _as_answer(event, reply)


def _as_answer(event: str, reply: Reply) -> Reply:
    """A callback has no exit code: exit code 2 becomes a denial."""
    if reply.exit_code == 0:
        return reply
    reason = reply.stderr.decode("utf-8", "replace").strip()
    if event == BEFORE:
        return permission("deny", reason)
    return refusal(event, reason)


def _answer_of(reply: Reply) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(reply.stdout)
    return answer


@asynccontextmanager
async def _open_shared(options: HookOptions) -> AsyncIterator[App]:
    yield await anyio.to_thread.run_sync(shared_app, options.config, options.profile)


def _sdk() -> Any:  # noqa: ANN401  # an optional package
    try:
        return import_module("claude_agent_sdk")
    except ImportError:
        raise CellwallError(
            "claude-agent-sdk is not installed",
            hint="pip install 'cellwall[claude]'",
            code="CW-NO-AGENT-SDK",
        ) from None


def _matcher(callback: HookCallback) -> Any:  # noqa: ANN401  # of the optional package
    try:
        # No matcher: every tool. Without `on_failure` a failed callback would allow the call.
        return _sdk().HookMatcher(
            matcher=None, hooks=[callback], timeout=_HOST_WAITS_S, on_failure="block"
        )
    except TypeError:
        raise CellwallError(
            "this claude-agent-sdk cannot stop a tool whose hook fails",
            hint="pip install --upgrade 'cellwall[claude]'",
            code="CW-OLD-AGENT-SDK",
        ) from None
