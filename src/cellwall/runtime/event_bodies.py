"""Bodies of the audit events of an action: no value of a variable, no output. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict

from cellwall.core.channel_messages import ReceiveMessage, SendReply
from cellwall.core.connections import UseAccount
from cellwall.core.files import FileOperation, StreamedFile, Transfer
from cellwall.core.network import EgressUsage, Page
from cellwall.core.outcomes import Outcome, RunResult
from cellwall.core.packages import InstallPackages
from cellwall.core.port_connections import ConnectPort, PortTraffic
from cellwall.core.skills import Skill
from cellwall.core.snapshots import RestoreSnapshot, TakeSnapshot, WorkspaceSnapshot
from cellwall.core.tool_servers import CallServerTool, RunServer
from cellwall.core.types import (
    Action,
    CallTool,
    FetchUrl,
    Json,
    ProcessOperation,
    ReachHost,
    RunCode,
    RunCommand,
    ServeClient,
    ToolResult,
    UseTool,
)
from cellwall.core.verdict import Decision

_encode = json.JSONEncoder(default=str).encode
"""Escaped, as one string. Built once: `json.dumps` makes an encoder for each call with options."""
_FETCH = "WebFetch("
"""The subject of a decision about a host; a run is denied for a domain as well."""


def decision_body(decision: Decision) -> dict[str, Json]:
    """A decision with the source of its rule."""
    return {**decision.to_json(), "source": decision.source}


def denial_body(action: Action, decision: Decision) -> dict[str, Json]:
    """The denied operation and the decision, with the host where it was denied for one."""
    host = decision.subject.removeprefix(_FETCH).removesuffix(")")
    domain = {"domain": host} if decision.subject.startswith(_FETCH) else {}
    return {**decision_body(decision), **_operation_body(action), **domain}


def tool_result_body(
    operation: ToolResult, result: RunResult, labels: dict[str, Json]
) -> dict[str, Json]:
    """A tool's response by size and digest, never the text itself."""
    text = _encode(operation.response).encode("ascii")
    return {
        "status": "ok",
        "tool": operation.tool,
        "agent_session": operation.agent_session,
        "call": operation.call,
        "response_sha256": hashlib.sha256(text).hexdigest(),
        "response_bytes": len(text),
        "cleaned": result.value != operation.response,
        **({"labels": labels} if labels else {}),
        "findings": [dict(finding.to_json()) for finding in result.findings],
    }


def _tool_use_body(operation: UseTool) -> dict[str, Json]:
    # One escaped string: no key that the agent chose can be read as a key of the record.
    text = _encode(dict(operation.input))
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
        arguments = _encode([list(call.args), dict(call.kwargs)])
        return {"tool": call.name, "arguments": arguments, "parent": call.parent}
    text = _encode(dict(call.arguments))  # escaped, as for an agent's own tools
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


def _operation_body(action: Action) -> dict[str, Json]:  # noqa: C901, PLR0912  # one case for each operation
    body: dict[str, Json] = {}
    match action.operation:
        case RunCommand(argv) as command:
            words = "\0".join(argv).encode("utf-8", "surrogateescape")
            body = {"command_sha256": hashlib.sha256(words).hexdigest(), "command": list(argv)}
            body |= {"cwd": command.cwd, "background": command.background}
            body |= {"user": command.user} if action.second_user else {}
        case CallTool() | CallServerTool() as call:
            body = _call_body(call)
        case InstallPackages(ecosystem, requirements, only_build):
            body = {"ecosystem": ecosystem, "requirements": list(requirements)}
            if only_build:
                body["only_build"] = True
        case ServeClient() | RunServer() as serve:
            body = _serve_body(serve)
        case ReachHost() as reach:
            body = {"destination": reach.destination, "method": reach.method}
            body["parent"] = reach.parent
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
        case ConnectPort(port):
            body = {"port": port}
        case ProcessOperation() as operation:
            body = {"process": operation.name, "id": operation.process}
            body |= {"signal": operation.number, "data_bytes": len(operation.data)}
        case RunCode(language, code):
            body = {"language": language, "code_sha256": hashlib.sha256(code).hexdigest()}
            body["code"] = code.decode("utf-8", "replace")
        case TakeSnapshot() | RestoreSnapshot() as operation:
            body = _snapshot_body(operation)
        case FileOperation() as operation:
            body = {"file": operation.name, "path": operation.path, "target": operation.target}
            # The length of an archive is known only at its end: the outcome holds it.
            is_archive = operation.source is not None and not operation.source_sha256
            size = len(operation.content) + operation.source_bytes
            body["content_bytes"] = None if is_archive else size
    return body


def _snapshot_body(operation: TakeSnapshot | RestoreSnapshot) -> dict[str, Json]:
    if isinstance(operation, RestoreSnapshot):
        return {"snapshot": "restore", "id": operation.snapshot}
    return {
        "snapshot": "take",
        "name": operation.name,
        "ttl_s": operation.ttl_s,
        "end_processes": operation.end_processes,
        "state_bytes": len(operation.state),
    }


def intent_body(
    action: Action,
    decision: Decision,
    skills: Sequence[Skill],
    labels: dict[str, Json] | None = None,
) -> dict[str, Json]:
    """The operation about to run. Names of variables, never their values; code by digest. `labels`:
    of the session, with the action (POL-9)."""
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
        **({"labels": labels} if labels else {}),
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
        **({"traffic": payload.to_json()} if isinstance(payload, PortTraffic) else {}),
        **({"snapshot": payload.id} if isinstance(payload, WorkspaceSnapshot) else {}),
        **({"egress": asdict(payload)} if isinstance(payload, EgressUsage) else {}),
    }
