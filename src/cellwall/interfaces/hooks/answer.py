"""From a hook request to a reply: each tool use becomes an `Action` of the runtime."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import anyio

from cellwall.core.errors import BadInput, CellwallError, Denied
from cellwall.core.outcomes import ErrorInfo, Outcome, Status
from cellwall.core.text import plain
from cellwall.core.types import Action, Json, Permission, ToolResult, UseTool
from cellwall.core.verdict import Decision, Verdict
from cellwall.interfaces.hooks.agents.agent import Agent, ScannedResult
from cellwall.interfaces.hooks.agents.registry import agent_named
from cellwall.interfaces.hooks.command_lines import (
    drop_sandbox_escape,
    is_shell,
    isolated_command,
    pinned_environment,
    project_directory,
    quote,
    timeout_of,
    unwrap,
    wrap,
)
from cellwall.interfaces.hooks.protocol import (
    EMPTY_REPLY,
    Malformed,
    OtherEvent,
    Reply,
    Ruling,
    ToolReport,
    ToolRequest,
    block_reply,
)
from cellwall.interfaces.sandbox_options import named_policy
from cellwall.runtime.agent_processes import mark_agent
from cellwall.runtime.app import App
from cellwall.runtime.home import local_principal, start_supervisor
from cellwall.runtime.policies import registries_in
from cellwall.runtime.wiring import check_walls, check_workspace, open_app

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
    def of(cls, fields: Mapping[str, Any], environ: Mapping[str, str]) -> HookOptions:
        """From another Cellwall process; checked all the same."""
        for name, value in fields.items():
            is_right = (
                isinstance(value, bool)
                if name in _FLAGS
                else value is None or isinstance(value, str)
            )
            if not is_right:
                raise BadInput("malformed hook options")
        return cls(**fields, environ=dict(environ))


OpenApp = Callable[[HookOptions], AbstractAsyncContextManager[App]]


async def reply_to(question: bytes, options: HookOptions, open_app: OpenApp) -> Reply:
    """The hook's reply; a refusal is a reply, too."""
    try:
        agent = agent_named(options.agent)
    except BadInput as error:
        return block_reply(str(error))
    message: ToolRequest | ToolReport | OtherEvent | None = None
    try:
        message = agent.parse(question, options.after)
        if isinstance(message, OtherEvent):
            return EMPTY_REPLY
        async with open_app(options) as app:
            if isinstance(message, ToolRequest):
                return agent.permit(message, await judge(app, agent, message, options))
            return await scan_result(app, agent, message, question)
    except Malformed as error:
        return agent.refuse(question, error.event, str(error))
    except CellwallError as error:
        if isinstance(message, ToolRequest):
            return agent.permit(message, Ruling("deny", str(error)))
        return agent.refuse(question, agent.layout.after[0], str(error))


async def judge(app: App, agent: Agent, request: ToolRequest, options: HookOptions) -> Ruling:
    """The ruling on a tool request: every use in the call is judged, the strictest verdict counts.

    Allowed shell commands run in a sandbox; where none is available, the call is denied.
    """
    settings = app.settings.hook
    is_inside = not (options.dangerously_outside or settings.dangerously_outside)
    inner = _unwrap_command(app, request, options) if is_inside and request.is_final else None
    if inner is not None:
        request = replace(request, input={"command": inner})
    host_asks = settings.questions == "agent" and agent.can_ask(request)
    outcome: Outcome | None = None
    for use in request.uses:
        operation = UseTool(
            use.tool,
            use.input,
            request.cwd,
            agent_session=request.session,
            call=request.call,
            is_inside=is_inside,
            host_asks=host_asks,
            project=request.project or options.project or "",
        )
        action = Action(
            principal=local_principal("hook"),
            operation=operation,
            policy=named_policy(options.policy),
        )
        result = await app.runtime.perform(action)
        if _severity(result) > _severity(outcome):
            outcome = result
        if _severity(result) == _DENIED:
            break
    assert outcome is not None  # noqa: S101  # every request has at least one use
    if _severity(outcome) == _DENIED:
        return _deny(outcome)
    updated: Mapping[str, Json] | None = drop_sandbox_escape(request.tool, request.input)
    if is_inside and request.is_final and inner is None:
        raise Denied(
            "the command would run outside of the sandbox: the agent did not use the rewritten "
            "command",
            hint="Update the agent, run it as `cellwall run -- …`, or have commands run outside "
            "with hook.dangerously_outside = true.",
            code="CW-HOOK-NOT-INSIDE",
        )
    if is_inside and not request.is_final:
        rewritten = _wrap_command(app, agent, request, options)
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
    reason = (
        _refuse_reason(outcome.decision, error)
        if stopping is None
        else _refuse_reason(stopping, None)
    )
    return Ruling("deny", f"{reason}. {error.hint}", stops=stopping is not None)


def _find_stopping(decision: Decision) -> Decision | None:
    """The innermost denied part whose rule also stops the agent."""
    if decision.verdict is not Verdict.DENY:
        return None
    within = next((stopping for part in decision.parts if (stopping := _find_stopping(part))), None)
    return within or (decision if decision.stops else None)


def _allow_reason(decision: Decision) -> str:
    return f"Cellwall: {decision.reason}" + _rule_suffix(decision)


def _refuse_reason(decision: Decision, error: ErrorInfo | None) -> str:
    """The reason, with the rule, or with the rule's file where the error names it."""
    reason = f"{decision.reason}{_rule_suffix(decision)}" if error is None else error.message
    about = _decisive_part(decision)
    return f"Cellwall: {reason}" + (f": {about}" if about else "")


def _rule_suffix(decision: Decision) -> str:
    return f" (rule {decision.rule})" if decision.rule else ""


def _decisive_part(decision: Decision) -> str:
    """The innermost part that decided the verdict."""
    for part in decision.parts:
        if part.verdict is decision.verdict:
            return _decisive_part(part) or part.subject
    return decision.subject


def _wrap_command(
    app: App, agent: Agent, request: ToolRequest, options: HookOptions
) -> dict[str, Json] | None:
    """The tool input with a command that runs in a sandbox; None: the call runs no command."""
    if not any(is_shell(use.tool) for use in request.uses):
        return None
    tool_input = request.original_input or request.input
    place = project_directory(request.cwd, request.project or options.project)
    timeout_s = timeout_of(tool_input, agent.timeout_field, agent.default_timeout_s)
    start, extra = _start(options)
    text = tool_input.get("command")
    registries = _find_registries(app, text, place.cwd) if isinstance(text, str) else ()
    command = wrap(
        text, place, start=start, extra=extra, registries=registries, timeout_s=timeout_s
    )
    # Checked here, with a hint: an agent would try to work around a command that fails.
    check_walls(app)
    check_workspace(app, place.project)
    kept = {name: tool_input[name] for name in agent.kept_fields if name in tool_input}
    return {"command": command, **kept}


_PACKAGE_MANAGERS = ("pip", "uv", "pdm", "poetry", "easy_install", "npm", "npx", "yarn", "bun")


def _find_registries(app: App, command: str, cwd: str) -> tuple[str, ...]:
    """The registries that the sandbox of a command may reach: those it installs from, if the role
    of the agent permits to install."""
    # A name that the shell puts together is not found: the command then has no registry.
    if not any(name in command for name in _PACKAGE_MANAGERS):
        return ()
    role = app.runtime.roles.role_of(local_principal("hook"))
    if Permission.PACKAGES_INSTALL not in role.permissions:
        return ()
    return tuple(sorted(registries_in(command, cwd=cwd, home=os.path.expanduser("~"))))


def _unwrap_command(app: App, request: ToolRequest, options: HookOptions) -> str | None:
    """The original command, for an event where the host reports the rewritten one."""
    start, extra = _start(options)
    project = request.project or options.project
    return unwrap(
        request.input.get("command"),
        project,
        start=start,
        extra=extra,
        find_registries=partial(_find_registries, app),
    )


def _start(options: HookOptions) -> tuple[str, list[str]]:
    """The command prefix that starts Cellwall; the project controls the shell's variables."""
    pinned = [f"{n}={quote(value)}" for n, value in pinned_environment(options.environ).items()]
    extra: list[str] = []
    for name, value in (("--config", options.config), ("--profile", options.profile)):
        extra += [name, value] if value else []
    return " ".join([*pinned, *map(quote, isolated_command())]), extra


async def scan_result(app: App, agent: Agent, report: ToolReport, question: bytes) -> Reply:
    """Scan a tool's result and reply with the cleaned one."""
    response = plain(report.response)
    operation = ToolResult(report.tool, response, agent_session=report.session, call=report.call)
    outcome = await app.runtime.perform(
        Action(principal=local_principal("hook"), operation=operation)
    )
    if outcome.error is not None:
        error = outcome.error
        reason = f"{error.message} [{error.code}] {error.hint}"
        return agent.refuse(question, agent.layout.after[0], reason)
    cleaned = ScannedResult(outcome.findings, outcome.value, outcome.value != response)
    return agent.report(report, cleaned)


def answer_alone(
    options: Mapping[str, Any], question: bytes, *, starts_supervisor: bool
) -> tuple[int, bytes, bytes]:
    """Exit code, standard output, standard error."""
    mark_agent(os.getpid())
    if starts_supervisor:
        with suppress(OSError, CellwallError):
            start_supervisor(os.environ, wait=False)
    reply = anyio.run(reply_to, question, HookOptions.of(options, os.environ), _own_app)
    return reply.exit_code, reply.stdout, reply.stderr


@asynccontextmanager
async def _own_app(options: HookOptions) -> AsyncIterator[App]:
    app = open_app(config=options.config, profile=options.profile)
    try:
        yield app
    finally:
        app.close()
