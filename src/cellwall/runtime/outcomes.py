"""Outcomes and denial messages for the caller. Pure.

A denial's `message` names the rule: interfaces show it to a model only marked as data, since a
project's rules are text of its author. `hint` is our own text, with a file name as
`policy_places.shown_source` gives it: no host path (ERR-1).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import replace

from cellwall.core.errors import BadInput, CellwallError, SandboxFailed
from cellwall.core.labels import RULE_OF_TWO
from cellwall.core.limits import LimitName
from cellwall.core.outcomes import ErrorInfo, Finding, Outcome, RunResult, Status
from cellwall.core.types import Action, CallTool, RunCommand
from cellwall.core.verdict import Decision, Verdict, strictest
from cellwall.policy.rules import OTHERWISE
from cellwall.runtime.policy_places import project_folder, shown_source

PACKAGES_RULE = "packages"
"""The rule of decisions by the package judge."""
_EXIT_WALL = 124
_EXIT_KILLED = 137
_MAX_SIGN_BYTES = 16_384
_SHOWN_NAME = 80
# glibc's and musl's getaddrinfo, curl, wget, node and Go, and connect(2) without a route.
_NETWORK_SIGNS = (
    b"name resolution",
    b"Name or service not known",
    b"Name does not resolve",
    b"ould not resolve",
    b"unable to resolve host",
    b"getaddrinfo",
    b"EAI_AGAIN",
    b"ENOTFOUND",
    b"no such host",
    b"dial tcp",
    b"Network is unreachable",
    b"ENETUNREACH",
)
_INDEX_SIGN = b"/simple/"
"""Part of every URL by which pip and uv look up a package (PEP 503)."""


def failed_outcome(
    action: Action,
    status: Status,
    decision: Decision,
    findings: Sequence[Finding],
    audit_id: str,
    error: ErrorInfo,
) -> Outcome:
    """The outcome of an action that was refused, or failed before it had a result."""
    return Outcome(
        status=status,
        action_id=action.id,
        decision=decision,
        findings=tuple(findings),
        audit_id=audit_id,
        error=error,
    )


def allowed_outcome(
    action: Action, decision: Decision, findings: Sequence[Finding], audit_id: str
) -> Outcome:
    """The outcome of an action that was allowed and has no result of its own."""
    return Outcome(
        status=Status.OK,
        action_id=action.id,
        decision=decision,
        findings=tuple(findings),
        audit_id=audit_id,
    )


def run_outcome(
    action: Action,
    decision: Decision,
    audit_id: str,
    result: RunResult,
    workspace_id: str | None,
) -> Outcome:
    """The outcome of an action that ran."""
    if result.limit is not None:
        status = Status.LIMIT
    else:
        # A process that still runs, or a query about one, has no exit code and has not failed.
        status = Status.OK if not result.exit_code else Status.FAILED
    return Outcome(
        status=status,
        action_id=action.id,
        decision=decision,
        exit_code=_exit_code(result),
        stdout=result.stdout.decode("utf-8", "replace"),
        stderr=result.stderr.decode("utf-8", "replace"),
        stdout_bytes=result.stdout,
        stderr_bytes=result.stderr,
        truncated=result.truncated,
        limit=result.limit,
        value=result.value,
        text=result.text,
        results=result.results,
        code_error=result.code_error,
        usage=result.usage,
        findings=result.findings,
        audit_id=audit_id,
        workspace_id=workspace_id,
        sandbox_path=result.path,
        state=result.state,
        payload=result.payload,
        shown=result.shown,
    )


def network_hint(result: RunResult) -> tuple[Finding, ...]:
    """A hint for a failed run without network whose output shows a network error.

    The kernel does not count connections that were never made, so the error texts of resolvers
    and of connect(2) are the only sign. A program can forge them; a hint grants nothing.
    """
    ends = [output[-_MAX_SIGN_BYTES:] for output in (result.stderr, result.stdout)]
    if not result.exit_code or not any(sign in end for end in ends for sign in _NETWORK_SIGNS):
        return ()
    message = (
        "this sandbox has no network; to let it reach a host, name the host: "
        "--allow-domain HOST, or allow_domains=[…] in the SDK"
    )
    if any(_INDEX_SIGN in end for end in ends):
        message = (
            "this sandbox has no network, and so no package index; allow one with --packages "
            "pypi, or registries=['pypi'] in the SDK, or have packages installed before the run: "
            "--package NAME, packages=[…] in the SDK"
        )
    return (Finding("network", "low", message),)


def without_output(result: RunResult) -> RunResult:
    """The result without its output, which could not be redacted in time."""
    late = Finding(
        "late", "high", "the output was dropped: it could not be checked within the run's wall time"
    )
    return replace(
        result,
        stdout=b"",
        stderr=b"",
        truncated=True,
        limit=result.limit or LimitName.OUTPUT,
        value=None,
        text=None,
        results=(),
        code_error=None,
        findings=(*result.findings, late),
        shown="",
    )


def _exit_code(result: RunResult) -> int | None:
    """The program's exit code; a run that a limit ended never looks like a success."""
    if result.limit is LimitName.WALL:
        return _EXIT_WALL
    if result.limit is LimitName.MEMORY:
        return _EXIT_KILLED
    if result.limit is not None and not result.exit_code:
        return _EXIT_KILLED
    return result.exit_code


def deny_unasked(decision: Decision) -> Decision:
    """A question that cannot be asked becomes a denial."""
    reason = f"no person can be asked here: {decision.reason}"
    return replace(decision, verdict=Verdict.DENY, reason=reason)


def with_all_reasons(first: Decision, second: Decision) -> Decision:
    """The stricter decision; two questions become one, so that a person answers both."""
    if first.verdict is second.verdict is Verdict.ASK:
        return replace(first, reason=f"{first.reason}; {second.reason}")
    return strictest(first, second)


def host_failure(error: OSError) -> SandboxFailed:
    """The error for a full disk or no free descriptor: the host's failure, not a bug."""
    return SandboxFailed(
        f"the host refused an operation: {os.strerror(error.errno or errno.EIO)}",
        hint="Check the host's disk space, memory and descriptor limits, then try again.",
        code="CW-HOST",
        detail=str(error),
    )


_FLOW_HINT = (
    "A person can allow it: answer the question (`cellwall approvals`), or give the session an "
    "approver. Or go on in a new session that lacks one of the three."
)
_UNCLEAR = frozenset(("not-understood", "variables"))
_NO_RULE = frozenset(("default", OTHERWISE))
_LEARN = "`cellwall policy learn --write` proposes a rule"


_BUILT_IN = frozenset(
    (".", "alias", "cd", "eval", "exec", "export", "set", "source", "ulimit", "umask", "unset")
)
"""Commands that only shells have."""


def name_program(action: Action, error: CellwallError) -> CellwallError:
    """An error about a program that is not there, with its name and what was probably meant."""
    operation = action.operation
    if error.code != "CW-COMMAND-NOT-FOUND" or not isinstance(operation, RunCommand):
        return error
    program = operation.argv[0]
    hint = error.hint
    if len(program.split()) > 1:
        hint = (
            "A program and its arguments are separate words: ls -la, not 'ls -la'. A line of shell "
            "text needs a shell: sh -c 'ls | wc -l'."
        )
    elif program in _BUILT_IN:
        hint = f"Only a shell has it, as a command of its own: sh -c '{program} … && …'."
    message = f"{error.message}: {program[:_SHOWN_NAME]!r}"
    return BadInput(message, hint=hint, code=error.code, detail=error.detail)


def denial_error(action: Action, decision: Decision, *, by_role: bool) -> ErrorInfo:
    """The error of an action that is not allowed."""
    if by_role:
        hint = "The owner of this machine assigns roles in [roles] of the configuration."
        return ErrorInfo("CW-ROLE", decision.reason, hint)
    if decision.rule == PACKAGES_RULE:
        hint = "Check the name, or choose another package; `cellwall packages verify` shows why."
        return ErrorInfo("CW-PACKAGE-REFUSED", decision.reason, hint)
    if decision.rule == RULE_OF_TWO:
        return ErrorInfo("CW-RULE-OF-TWO", decision.reason, _FLOW_HINT)
    if decision.rule == "guard":
        hint = "Change the code, or the patterns in [guard] `denied_code`."
        return ErrorInfo("CW-DENIED", decision.reason, hint)
    place = _place(action, decision)
    return ErrorInfo("CW-DENIED", _message(action, decision, place), _hint(decision, place))


def host_question_error(action: Action, decision: Decision) -> ErrorInfo:
    """The error of an action about which the agent's host asks its own user."""
    message = _message(action, decision, _place(action, decision))
    return ErrorInfo("CW-ASK", message, "A person has to allow it.")


def _message(action: Action, decision: Decision, place: str) -> str:
    # Code inside learns that a host tool is denied, and nothing about the rules outside.
    if not decision.rule or isinstance(action.operation, CallTool):
        return decision.reason
    return f"{decision.reason} (rule {decision.rule}, {place})"


def _place(action: Action, decision: Decision) -> str:
    return shown_source(decision.source, cwd=project_folder(action), environ=os.environ)


def _hint(decision: Decision, place: str) -> str:
    """How to change a denial; some have no rule to write."""
    if decision.rule in _UNCLEAR:
        return "Rewrite the command; no rule can allow it as it stands."
    if decision.rule == "arguments":
        return "Leave this argument out, or ask a person for a rule that names it."
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
        return "No rule can allow it: work without it, or leave this step to a person."
    return (
        f"A person can change that rule in {place}; "
        "`cellwall policy explain CALL` shows what each part of a call meets."
    )
