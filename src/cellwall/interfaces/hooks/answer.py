"""From a hook request to a reply: each tool use becomes an `Action` of the runtime."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

from cellwall.core.errors import BadInput, CellwallError, Denied
from cellwall.core.outcomes import ErrorInfo, Outcome, Status
from cellwall.core.text import plain
from cellwall.core.types import Action, Json, ToolResult, UseTool
from cellwall.core.verdict import Decision, Verdict
from cellwall.interfaces.hooks import rewrite
from cellwall.interfaces.hooks.agents.agent import Agent, ScannedResult
from cellwall.interfaces.hooks.agents.registry import agent_named
from cellwall.interfaces.hooks.command import isolated_command, pinned_environment
from cellwall.interfaces.hooks.protocol import (
    Malformed,
    OtherEvent,
    Reply,
    Ruling,
    ToolReport,
    ToolRequest,
    block_reply,
    json_line,
)
from cellwall.interfaces.requests import named_policy
from cellwall.runtime.agent_processes import mark_agent
from cellwall.runtime.home import start_supervisor
from cellwall.runtime.wiring import App, check_walls, check_workspace, open_app, principal

_FLAGS = frozenset({"dangerously_outside", "after"})


@dataclass(frozen=True, slots=True, kw_only=True)
class HookOptions:
    """The options the hook was started with."""

    agent: str | None = None
    after: bool = False
    """The request is about a result; the command line says so where the request does not."""
    config: str | None = None
    profile: str | None = None
    policy: str | None = None
    dangerously_outside: bool = False
    project: str | None = None
    """The agent's project as its host reports it, where the request does not name it."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """The variables that choose state and configuration, from the hook's own process."""

    @classmethod
    def of(cls, told: Mapping[str, Any], environ: Mapping[str, str]) -> HookOptions:
        """From another Cellwall process; checked all the same."""
        for name, value in told.items():
            is_right = (
                isinstance(value, bool)
                if name in _FLAGS
                else value is None or isinstance(value, str)
            )
            if not is_right:
                raise BadInput("malformed hook options")
        return cls(**told, environ=dict(environ))


OpenApp = Callable[[HookOptions], AbstractAsyncContextManager[App]]


async def reply_to(question: bytes, options: HookOptions, open_app: OpenApp) -> Reply:
    """The hook's reply; a refusal is a reply, too."""
    try:
        agent = agent_named(options.agent)
    except BadInput as error:
        return block_reply(str(error))
    told: ToolRequest | ToolReport | OtherEvent | None = None
    try:
        told = agent.parse(question, options.after)
        if isinstance(told, OtherEvent):
            return Reply(0, json_line({}))
        async with open_app(options) as app:
            if isinstance(told, ToolRequest):
                return agent.permit(told, await judge(app, agent, told, options))
            return await scan_result(app, agent, told, question)
    except Malformed as error:
        return agent.refuse(question, error.event, str(error))
    except CellwallError as error:
        if isinstance(told, ToolRequest):
            return agent.permit(told, Ruling("deny", str(error)))
        return agent.refuse(question, agent.layout.after[0], str(error))


async def judge(app: App, agent: Agent, asked: ToolRequest, options: HookOptions) -> Ruling:
    """The ruling on a tool request: every use in the call is judged, the strictest verdict counts.

    Allowed shell commands run in a sandbox; where none is available, the call is denied.
    """
    settings = app.settings.hook
    is_inside = not (options.dangerously_outside or settings.dangerously_outside)
    inner = _unwrap_command(asked, options) if is_inside and asked.is_final else None
    if inner is not None:
        asked = replace(asked, input={"command": inner})
    host_asks = settings.questions == "agent" and agent.can_ask(asked)
    outcome: Outcome | None = None
    for use in asked.uses:
        operation = UseTool(
            use.tool,
            use.input,
            asked.cwd,
            agent_session=asked.session,
            call=asked.call,
            is_inside=is_inside,
            host_asks=host_asks,
        )
        action = Action(
            principal=principal("hook"), operation=operation, policy=named_policy(options.policy)
        )
        found = await app.runtime.perform(action)
        if _severity(found) > _severity(outcome):
            outcome = found
        if _severity(found) == _DENIED:
            break
    assert outcome is not None  # noqa: S101  # every request has at least one use
    if _severity(outcome) == _DENIED:
        return _deny(outcome)
    updated: Mapping[str, Json] | None = rewrite.drop_sandbox_escape(asked.tool, asked.input)
    if is_inside and asked.is_final and inner is None:
        raise Denied(
            "the command would run outside of the sandbox: the agent did not use the rewritten "
            "command",
            hint="Update the agent, run it as `cellwall run -- …`, or have commands run outside "
            "with hook.dangerously_outside = true.",
            code="CW-HOOK-NOT-INSIDE",
        )
    if is_inside and not asked.is_final:
        rewritten = _wrap_command(app, agent, asked, options)
        updated = rewritten if rewritten is not None else updated
    if _severity(outcome) == _ALLOWED:
        return Ruling("allow", _allow_reason(outcome.decision), updated)
    return Ruling("ask", _refuse_reason(outcome.decision, outcome.error), updated)


_ALLOWED, _ASKED, _DENIED = 0, 1, 2


def _severity(outcome: Outcome | None) -> int:
    if outcome is None:
        return -1
    if outcome.status is Status.OK:
        return _ALLOWED
    is_question = outcome.error is not None and outcome.error.code == "CW-ASK"
    return _ASKED if is_question and outcome.decision.verdict is Verdict.ASK else _DENIED


def _deny(outcome: Outcome) -> Ruling:
    error = outcome.error or ErrorInfo("CW-DENIED", outcome.decision.reason)
    if error.code != "CW-DENIED":
        return Ruling("deny", f"{error.message} [{error.code}] {error.hint}".rstrip())
    stopping = _find_stopping(outcome.decision)
    told = (
        _refuse_reason(outcome.decision, error)
        if stopping is None
        else _refuse_reason(stopping, None)
    )
    return Ruling("deny", f"{told}. {error.hint}", stops=stopping is not None)


def _find_stopping(decision: Decision) -> Decision | None:
    """The innermost denied part whose rule also stops the agent."""
    if decision.verdict is not Verdict.DENY:
        return None
    within = next((found for part in decision.parts if (found := _find_stopping(part))), None)
    return within or (decision if decision.stops else None)


def _allow_reason(decision: Decision) -> str:
    return f"Cellwall: {decision.reason}" + _rule_suffix(decision)


def _refuse_reason(decision: Decision, error: ErrorInfo | None) -> str:
    """The reason, with the rule, or with the rule's file where the error names it."""
    told = f"{decision.reason}{_rule_suffix(decision)}" if error is None else error.message
    about = _decisive_part(decision)
    return f"Cellwall: {told}" + (f": {about}" if about else "")


def _rule_suffix(decision: Decision) -> str:
    return f" (rule {decision.rule})" if decision.rule else ""


def _decisive_part(decision: Decision) -> str:
    """The innermost part that decided the verdict."""
    for part in decision.parts:
        if part.verdict is decision.verdict:
            return _decisive_part(part) or part.subject
    return decision.subject


def _wrap_command(
    app: App, agent: Agent, asked: ToolRequest, options: HookOptions
) -> dict[str, Json] | None:
    """The tool input with a command that runs in a sandbox; None: the call runs no command."""
    if not any(rewrite.is_shell(use.tool) for use in asked.uses):
        return None
    given = asked.given or asked.input
    place = rewrite.project_directory(asked.cwd, asked.project or options.project)
    timeout_s = rewrite.timeout_of(given, agent.timeout_key, agent.default_timeout_s)
    start, extra = _start(options)
    command = rewrite.wrap(
        given.get("command"), place, start=start, extra=extra, timeout_s=timeout_s
    )
    # Checked here, with a hint: an agent would try to work around a command that fails.
    check_walls(app)
    check_workspace(app, place.project)
    return {"command": command, **{name: given[name] for name in agent.handed_on if name in given}}


def _unwrap_command(asked: ToolRequest, options: HookOptions) -> str | None:
    """The original command, for an event where the host reports the rewritten one."""
    start, extra = _start(options)
    project = asked.project or options.project
    return rewrite.unwrap(asked.input.get("command"), project, start=start, extra=extra)


def _start(options: HookOptions) -> tuple[str, list[str]]:
    """The command prefix that starts Cellwall; the project controls the shell's variables."""
    pinned = [
        f"{n}={rewrite.quote(value)}" for n, value in pinned_environment(options.environ).items()
    ]
    extra: list[str] = []
    for name, value in (("--config", options.config), ("--profile", options.profile)):
        extra += [name, value] if value else []
    return " ".join([*pinned, *map(rewrite.quote, isolated_command())]), extra


async def scan_result(app: App, agent: Agent, told: ToolReport, question: bytes) -> Reply:
    """Scan a tool's result and reply with the cleaned one."""
    response = plain(told.response)
    operation = ToolResult(told.tool, response, agent_session=told.session, call=told.call)
    outcome = await app.runtime.perform(Action(principal=principal("hook"), operation=operation))
    if outcome.error is not None:
        error = outcome.error
        reason = f"{error.message} [{error.code}] {error.hint}"
        return agent.refuse(question, agent.layout.after[0], reason)
    cleaned = ScannedResult(outcome.findings, outcome.value, outcome.value != response)
    return agent.report(told, cleaned)


def answer_alone(
    told: Mapping[str, Any], question: bytes, *, starts_supervisor: bool
) -> tuple[int, bytes, bytes]:
    """Exit code, standard output, standard error."""
    mark_agent(os.getpid())
    if starts_supervisor:
        with suppress(OSError, CellwallError):
            start_supervisor(os.environ, wait=False)
    reply = anyio.run(reply_to, question, HookOptions.of(told, os.environ), _own_app)
    return reply.exit_code, reply.stdout, reply.stderr


@asynccontextmanager
async def _own_app(options: HookOptions) -> AsyncIterator[App]:
    app = open_app(config=options.config, profile=options.profile)
    try:
        yield app
    finally:
        app.close()
