"""Outcomes and denial messages for the caller, event bodies for the audit log. Pure.

A denial's `message` names the rule: interfaces show it to a model only marked as data, since a
project's rules are text of its author. `hint` is our own text, with a file name as
`policy_places.shown_source` gives it: no host path (ERR-1).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, replace

from cellwall.core.errors import SandboxFailed
from cellwall.core.files import FileOperation, StreamedFile, Transfer
from cellwall.core.limits import LimitName
from cellwall.core.network import EgressUsage, Page
from cellwall.core.outcomes import ErrorInfo, Finding, Outcome, RunResult, Status
from cellwall.core.packages import InstallPackages
from cellwall.core.skills import Skill
from cellwall.core.tool_servers import CallServerTool, RunServer
from cellwall.core.types import (
    Action,
    CallTool,
    FetchUrl,
    Json,
    ProcessOperation,
    ReceiveMessage,
    RunCode,
    RunCommand,
    SendReply,
    ServeClient,
    ToolResult,
    UseAccount,
    UseTool,
)
from cellwall.core.verdict import Decision, Verdict, strictest
from cellwall.policy.rules import OTHERWISE
from cellwall.runtime.policy_places import shown_source

PACKAGES_RULE = "packages"
"""The rule of decisions by the package judge."""
_EXIT_WALL = 124
_EXIT_KILLED = 137
_MAX_SIGN_BYTES = 16_384
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


def decision_body(decision: Decision) -> dict[str, Json]:
    """A decision with the source of its rule."""
    return {**decision.to_json(), "source": decision.source}


def deny_unasked(decision: Decision) -> Decision:
    """A question that cannot be asked becomes a denial."""
    reason = f"no person can be asked here: {decision.reason}"
    return replace(decision, verdict=Verdict.DENY, reason=reason)


def with_all_reasons(first: Decision, second: Decision) -> Decision:
    """The stricter decision; two questions become one, so that a person answers both."""
    if first.verdict is second.verdict is Verdict.ASK:
        return replace(first, reason=f"{first.reason}; {second.reason}")
    return strictest(first, second)


def denial_body(action: Action, decision: Decision) -> dict[str, Json]:
    """The denied operation and the decision."""
    return {**decision_body(decision), **_operation_body(action)}


def tool_result_body(operation: ToolResult, result: RunResult) -> dict[str, Json]:
    """A tool's response by size and digest, never the text itself."""
    text = json.dumps(operation.response, default=str).encode("ascii")
    return {
        "status": "ok",
        "tool": operation.tool,
        "agent_session": operation.agent_session,
        "call": operation.call,
        "response_sha256": hashlib.sha256(text).hexdigest(),
        "response_bytes": len(text),
        "cleaned": result.value != operation.response,
        "findings": [dict(finding.to_json()) for finding in result.findings],
    }


def _tool_use_body(operation: UseTool) -> dict[str, Json]:
    # One escaped string: no key that the agent chose can be read as a key of the record.
    text = json.dumps(dict(operation.input), default=str)
    return {
        "tool": operation.tool,
        "arguments_sha256": hashlib.sha256(text.encode("ascii")).hexdigest(),
        "arguments": text,
        "cwd": operation.cwd,
        "agent_session": operation.agent_session,
        "call": operation.call,
    }


def _message_body(message: ReceiveMessage | SendReply) -> dict[str, Json]:
    """A message of a person by size and digest, never the text itself."""
    data = message.content.encode("utf-8", "surrogatepass")
    return {
        "message": "received" if isinstance(message, ReceiveMessage) else "reply",
        "channel": message.channel,
        "pairing": message.pairing,
        "content_sha256": hashlib.sha256(data).hexdigest(),
        "content_bytes": len(data),
    }


def _call_body(call: CallTool | CallServerTool) -> dict[str, Json]:
    if isinstance(call, CallTool):
        arguments = json.dumps([list(call.args), dict(call.kwargs)], default=str)
        return {"tool": call.name, "arguments": arguments, "parent": call.parent}
    text = json.dumps(dict(call.arguments), default=str)  # escaped, as for an agent's own tools
    return {
        "server": call.server,
        "tool": call.tool,
        "arguments_sha256": hashlib.sha256(text.encode("ascii")).hexdigest(),
        "arguments": text,
    }


def _serve_body(serve: ServeClient | RunServer) -> dict[str, Json]:
    if isinstance(serve, RunServer):
        reached: dict[str, Json] = {"url": serve.url} if serve.url else {"command": [*serve.argv]}
        return {"server": serve.server, **reached}
    body: dict[str, Json] = {"client": serve.client, "address": serve.address}
    return {
        **body,
        **({"without_token": serve.tokenless_address} if serve.tokenless_address else {}),
    }


def _operation_body(action: Action) -> dict[str, Json]:  # noqa: C901  # one case for each operation
    body: dict[str, Json] = {}
    match action.operation:
        case RunCommand(argv) as command:
            words = "\0".join(argv).encode("utf-8", "surrogateescape")
            body = {"command_sha256": hashlib.sha256(words).hexdigest(), "command": list(argv)}
            body |= {"cwd": command.cwd, "background": command.background}
        case CallTool() | CallServerTool() as call:
            body = _call_body(call)
        case InstallPackages(ecosystem, requirements, only_build):
            body = {"ecosystem": ecosystem, "requirements": list(requirements)}
            if only_build:
                body["only_build"] = True
        case ServeClient() | RunServer() as serve:
            body = _serve_body(serve)
        case FetchUrl() as fetch:
            body = {"url": fetch.url, "form": fetch.form}
        case ReceiveMessage() | SendReply() as message:
            body = _message_body(message)
        case UseAccount() as use_account:
            target = use_account.target
            body = {"account": use_account.account, "operation": use_account.name}
            body |= {} if target is None else {"account_id": target.id, "url": target.url}
        case UseTool() as use:
            body = _tool_use_body(use)
        case ProcessOperation() as operation:
            body = {"process": operation.name, "id": operation.process}
            body |= {"signal": operation.number, "data_bytes": len(operation.data)}
        case RunCode(language, code):
            body = {"language": language, "code_sha256": hashlib.sha256(code).hexdigest()}
            body["code"] = code.decode("utf-8", "replace")
        case FileOperation() as operation:
            body = {"file": operation.name, "path": operation.path, "target": operation.target}
            # The length of an archive is known only at its end: the outcome holds it.
            is_archive = operation.source is not None and not operation.source_sha256
            size = len(operation.content) + operation.source_bytes
            body["content_bytes"] = None if is_archive else size
    return body


def intent_body(action: Action, decision: Decision, skills: Sequence[Skill]) -> dict[str, Json]:
    """The operation about to run. Names of variables, never their values; code by digest."""
    # The operation comes first and with a digest: where the record must be truncated, a flood of
    # other names cannot push it out.
    body = _operation_body(action)
    workspace = action.workspace
    return {
        "decision": decision_body(decision),
        **body,
        **({"allow_domains": list(action.allow_domains)} if action.allow_domains else {}),
        **({"registries": list(action.registries)} if action.registries else {}),
        **({"secrets": list(action.secrets)} if action.secrets else {}),
        **({"skills": {skill.name: skill.digest for skill in skills}} if skills else {}),
        "workspace": {"mode": workspace.mode.value, "directory": workspace.directory},
        "stdin_bytes": None if action.stdin is None else len(action.stdin),
        "env_names": sorted({*action.env, *action.brief}),
    }


def outcome_body(outcome: Outcome) -> dict[str, Json]:
    """The outcome in numbers and digests, never the output itself."""
    payload = outcome.payload
    transfer = payload.to_json() if isinstance(payload, Transfer | StreamedFile) else None
    page: dict[str, Json] = {}
    if isinstance(payload, Page):
        page = {"url": payload.url, "status": payload.status}
    return {
        "status": outcome.status.value,
        "exit_code": outcome.exit_code,
        "limit": outcome.limit.value if outcome.limit else None,
        "usage": outcome.usage.to_json(),
        "stdout_sha256": hashlib.sha256(outcome.stdout_bytes).hexdigest(),
        "stderr_sha256": hashlib.sha256(outcome.stderr_bytes).hexdigest(),
        "stdout_bytes": len(outcome.stdout_bytes),
        "stderr_bytes": len(outcome.stderr_bytes),
        "findings": [dict(finding.to_json()) for finding in outcome.findings],
        "workspace_id": outcome.workspace_id,
        "sandbox_path": outcome.sandbox_path,
        **({"packages": [each.to_json() for each in outcome.packages]} if outcome.packages else {}),
        **({"transfer": transfer} if transfer else {}),
        **({"page": page} if page else {}),
        **({"egress": asdict(payload)} if isinstance(payload, EgressUsage) else {}),
    }


def host_failure(error: OSError) -> SandboxFailed:
    """The error for a full disk or no free descriptor: the host's failure, not a bug."""
    return SandboxFailed(
        f"the host refused an operation: {os.strerror(error.errno or errno.EIO)}",
        hint="Check the host's disk space, memory and descriptor limits, then try again.",
        code="CW-HOST",
        detail=str(error),
    )


_UNCLEAR = frozenset(("not-understood", "variables"))
_NO_RULE = frozenset(("default", OTHERWISE))
_LEARN = "`cellwall policy learn --write` proposes a rule"


def denial_error(action: Action, decision: Decision, *, by_role: bool) -> ErrorInfo:
    """The error of an action that is not allowed."""
    if by_role:
        hint = "The owner of this machine assigns roles in [roles] of the configuration."
        return ErrorInfo("CW-ROLE", decision.reason, hint)
    if decision.rule == PACKAGES_RULE:
        hint = "Check the name, or choose another package; `cellwall packages verify` shows why."
        return ErrorInfo("CW-PACKAGE-REFUSED", decision.reason, hint)
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
    cwd = action.operation.cwd if isinstance(action.operation, UseTool) else os.getcwd()
    return shown_source(decision.source, cwd=cwd, environ=os.environ)


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
