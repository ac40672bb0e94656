"""Why a call gets its verdict, and what it would touch: for a person who has to decide."""

from __future__ import annotations

from dataclasses import dataclass

from cellwall.core.verdict import Decision
from cellwall.policy.calls import ToolCall
from cellwall.policy.engine import Policy
from cellwall.policy.subjects import only_itself
from cellwall.policy.touched import touched
from cellwall.runtime.rule_judging import call_inside

_SUBJECTS = {"Bash": "command", "Read": "file_path", "Write": "file_path", "WebFetch": "url"}


@dataclass(frozen=True, slots=True)
class CallExplanation:
    """The decision with its parts, and what the rules see of the call."""

    decision: Decision
    touches: tuple[tuple[str, str], ...]
    """Pairs such as `("Writes", "/workspace/notes.txt")`."""


def explain_call(policy: Policy, call: ToolCall) -> CallExplanation:
    """The call as a sandbox would judge it. Nothing runs."""
    decision = policy.check(call, links=only_itself)
    return CallExplanation(decision, tuple(touched(call, policy.rules, links=only_itself)))


def call_in_sandbox(tool: str, subject: str) -> ToolCall | None:
    """A call by its one text, such as a command; None for tools with several."""
    name = _SUBJECTS.get(tool)
    return None if name is None else call_inside(tool, **{name: subject})
