"""From a question to a reply: the runtime judges the `Action`, and the agent is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.outcomes import ErrorInfo, Outcome, Status
from cellwall.core.plain import plain
from cellwall.core.types import Action, ToolResult, UseTool
from cellwall.core.verdict import Decision, Verdict
from cellwall.interfaces.hooks import protocol, rewrite
from cellwall.interfaces.hooks.protocol import Asking, Malformed, Passing, Reply, Reporting
from cellwall.interfaces.program import own_program
from cellwall.interfaces.requests import named_policy
from cellwall.runtime.walls import check_walls
from cellwall.runtime.wiring import House, principal

# In these the agent's host asks a person. In others it answers by itself, and not always with no.
_ASKING_MODES = frozenset({"default", "acceptEdits", "plan"})


@dataclass(frozen=True, slots=True, kw_only=True)
class HookOptions:
    """How the hook was started."""

    config: str | None = None
    profile: str | None = None
    policy: str | None = None
    run_inside: bool = False
    project: str | None = None
    """The agent's project, by the word of its host."""

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> HookOptions:
        """From another process of ours; checked all the same."""
        for name, value in told.items():
            is_right = (
                isinstance(value, bool)
                if name == "run_inside"
                else value is None or isinstance(value, str)
            )
            if not is_right:
                raise BadInput("the options of a hook are not of the form that is known")
        return cls(**told)


Houses = Callable[[HookOptions], AbstractAsyncContextManager[House]]


async def reply_to(question: bytes, options: HookOptions, houses: Houses) -> Reply:
    """What the hook answers; every refusal is one, too."""
    event = ""
    try:
        told = protocol.parse(question)
        if isinstance(told, Passing):
            return protocol.passed()
        event = protocol.BEFORE if isinstance(told, Asking) else protocol.AFTER
        async with houses(options) as house:
            if isinstance(told, Asking):
                return await judged(house, told, options)
            return await reported(house, told)
    except Malformed as error:
        return protocol.refusal_of(question, error.event, str(error))
    except CellwallError as error:
        if event == protocol.BEFORE:
            return protocol.permission("deny", str(error))
        return protocol.refusal_of(question, event, str(error))


async def judged(house: House, asked: Asking, options: HookOptions) -> Reply:
    """To a tool that an agent wants to use."""
    settings = house.settings.hook
    is_inside = options.run_inside or settings.commands == "inside"
    want = UseTool(
        asked.tool,
        asked.input,
        asked.cwd,
        agent_session=asked.session,
        call=asked.call,
        is_inside=is_inside,
        host_asks=settings.questions == "agent" and asked.mode in _ASKING_MODES,
    )
    action = Action(principal=principal("hook"), want=want, policy=named_policy(options.policy))
    outcome = await house.runtime.perform(action)
    if outcome.status is not Status.OK:
        return _refused(outcome)
    updated = rewrite.cautious(asked.tool, asked.input)
    if is_inside:
        rewritten = _inside(house, asked, options)
        updated = rewritten if rewritten is not None else updated
    return protocol.permission("allow", _reason(outcome), updated)


def _refused(outcome: Outcome) -> Reply:
    is_question = outcome.error is not None and outcome.error.code == "CW-ASK"
    if is_question and outcome.decision.verdict is Verdict.ASK:
        return protocol.permission("ask", _reason(outcome))
    error = outcome.error or ErrorInfo("CW-DENIED", outcome.decision.reason)
    told = _reason(outcome) if error.code == "CW-DENIED" else f"{error.message} [{error.code}]"
    return protocol.permission("deny", f"{told} {error.mend}".rstrip())


def _reason(outcome: Outcome) -> str:
    decision = outcome.decision
    rule = f" (rule {decision.rule})" if decision.rule else ""
    about = "" if decision.verdict is Verdict.ALLOW else _culprit(decision)
    return f"Cellwall: {decision.reason}{rule}" + (f": {about}" if about else "")


def _culprit(decision: Decision) -> str:
    """The innermost part of a call that made the whole what it is."""
    for part in decision.parts:
        if part.verdict is decision.verdict:
            return _culprit(part) or part.subject
    return decision.subject


def _inside(house: House, asked: Asking, options: HookOptions) -> dict[str, Any] | None:
    extra: list[str] = []
    for name, value in (("--config", options.config), ("--profile", options.profile)):
        extra += [name, value] if value else []
    rewritten = rewrite.inside(
        asked.tool,
        asked.input,
        cwd=asked.cwd,
        project=options.project,
        program=own_program(),
        extra=extra,
    )
    if rewritten is not None:
        # Now, with a mend, rather than as a command that fails for reasons an agent would work
        # around.
        check_walls(house)
    return rewritten


async def reported(house: House, told: Reporting) -> Reply:
    """To what a tool has brought back."""
    response = plain(told.response)
    want = ToolResult(told.tool, response, agent_session=told.session, call=told.call)
    outcome = await house.runtime.perform(Action(principal=principal("hook"), want=want))
    if outcome.error is not None:
        error = outcome.error
        reason = f"{error.message} [{error.code}] {error.mend}"
        return protocol.refusal(protocol.AFTER, reason, tool=told.tool, response=told.response)
    return protocol.received(
        outcome.findings, response=outcome.value, is_changed=outcome.value != response
    )
