"""What whoever asked is told of a denial: the rule, the file to change, and what a person can type.

`message` names the rule: interfaces show it to a model only marked as data, since a project's rules
are the words of whoever wrote the project. `hint` is in words of ours, with the name of a file as
`policy_places.shown_source` gives it: no path of the host (ERR-1).
"""

from __future__ import annotations

import os

from cellwall.core.outcomes import ErrorInfo
from cellwall.core.types import Action, CallTool, UseTool
from cellwall.core.verdict import Decision
from cellwall.policy.rules import OTHERWISE
from cellwall.runtime.policy_places import shown_source

_UNCLEAR = frozenset(("not-understood", "variables"))
_NO_RULE = frozenset(("default", OTHERWISE))
_LEARN = "`cellwall policy learn --write` proposes a rule"


def denied(action: Action, decision: Decision, *, by_role: bool) -> ErrorInfo:
    """The error of an action that is not allowed."""
    if by_role:
        hint = "Whoever owns this machine gives roles in [roles] of the configuration."
        return ErrorInfo("CW-ROLE", decision.reason, hint)
    if decision.rule == "guard":
        hint = "Change the code, or what [guard] `denied_code` names."
        return ErrorInfo("CW-DENIED", decision.reason, hint)
    place = _place(action, decision)
    return ErrorInfo("CW-DENIED", _message(action, decision, place), _hint(decision, place))


def asked_outside(action: Action, decision: Decision) -> ErrorInfo:
    """The error of an action that the agent's own host asks its person about."""
    message = _message(action, decision, _place(action, decision))
    return ErrorInfo("CW-ASK", message, "A person has to allow it.")


def _message(action: Action, decision: Decision, place: str) -> str:
    # Code inside learns that a tool of the host is denied, and nothing of the rules outside.
    if not decision.rule or isinstance(action.operation, CallTool):
        return decision.reason
    return f"{decision.reason} (rule {decision.rule}, {place})"


def _place(action: Action, decision: Decision) -> str:
    cwd = action.operation.cwd if isinstance(action.operation, UseTool) else os.getcwd()
    return shown_source(decision.source, cwd=cwd, environ=os.environ)


def _hint(decision: Decision, place: str) -> str:
    """What can be done about a denial: for some there is no rule to write."""
    if decision.rule in _UNCLEAR:
        return "Write the command in another way; no rule allows it as it stands."
    if decision.rule == "arguments":
        return "Write the command without this, or ask a person for a rule that names it."
    is_built_in = decision.source.startswith("built-in")
    if decision.rule in _NO_RULE:
        if is_built_in:
            return (
                "A person can write rules: `cellwall policy init` begins a policy, "
                f"and {_LEARN} for what was denied."
            )
        file = place.rpartition(":")[0] or place
        return f"A person can allow it in {file}: {_LEARN} for what was denied."
    if is_built_in:
        return "No rule can allow it: do the work without it, or leave this step to a person."
    return (
        f"A person can change that rule in {place}; "
        "`cellwall policy explain CALL` shows what each part of a call meets."
    )
