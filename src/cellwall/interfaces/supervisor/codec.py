"""Operations and outcomes as frames. Every field of a request is checked; nothing is evaluated."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping, Sequence
from typing import Any

from cellwall.core.errors import BadInput
from cellwall.core.files import FileEntry, FileOperation, Transfer
from cellwall.core.limits import LimitName
from cellwall.core.outcomes import ErrorInfo, Finding, Outcome, PackageUse, Status, Usage
from cellwall.core.packages import InstallPackages, parse_install
from cellwall.core.port_connections import ConnectPort
from cellwall.core.snapshots import TakeSnapshot, WorkspaceSnapshot
from cellwall.core.types import Json, ProcessInfo, ProcessOperation, RunCode, RunCommand, SetDomains
from cellwall.core.users_inside import parse_user
from cellwall.core.verdict import Decision, Verdict

UNKNOWN_REQUEST = "unknown request to the supervisor"

Operation = (
    RunCommand
    | RunCode
    | FileOperation
    | ProcessOperation
    | ConnectPort
    | SetDomains
    | InstallPackages
    | TakeSnapshot
)
_FILE_NAMES = frozenset(
    ["read", "write", "list", "stat", "exists", "make_dir", "move", "remove", "upload", "download"]
)
_PROCESS_NAMES = frozenset(
    ["list", "read", "follow", "wait", "write", "close_stdin", "resize", "signal", "interrupt"]
)


class DownloadBuffer(io.BytesIO):
    """Holds a download on its way through the supervisor."""


def encode_operation(operation: Operation) -> tuple[dict[str, Json], bytes]:
    """A request for the supervisor; code and file content travel as raw bytes."""
    match operation:
        case RunCommand(argv, cwd, background, terminal, user):
            size = None if terminal is None else list(terminal)
            message: dict[str, Json] = {
                "kind": "command",
                "argv": list(argv),
                "cwd": cwd,
                "background": background,
                "terminal": size,
                "user": user,
            }
            return message, b""
        case RunCode(language, code, context):
            return {"kind": "code", "language": language, "context": context}, code
        case SetDomains(domains):
            return {"kind": "domains", "domains": list(domains)}, b""
        case TakeSnapshot(name, ttl_s, end_processes, state):
            asked = {"name": name, "ttl_s": ttl_s, "end_processes": end_processes}
            return {"kind": "snapshot", **asked}, state
        case InstallPackages(ecosystem, requirements):
            names = list(requirements)
            return {"kind": "install", "ecosystem": ecosystem, "requirements": names}, b""
        case ProcessOperation(name, process, data, number, size):
            fields = {"kind": "process", "name": name, "process": process, "number": number}
            return {**fields, "size": list(size)}, data
        case ConnectPort():
            raise BadInput(
                "a port of a sandbox in the supervisor cannot be reached from another process",
                hint="Create the sandbox without keep_alive, or in the service.",
                code="CW-NO-REMOTE-PORT",
            )
        case FileOperation() as file:
            if file.name == "watch":
                raise BadInput(
                    "a sandbox in the supervisor cannot be watched from another process",
                    hint="Watch from the process that made the sandbox, or list its files.",
                    code="CW-NO-REMOTE-WATCH",
                )
            content = file.content
            if file.source is not None:
                content = b"".join(iter(lambda: file.source.read(1 << 20), b""))  # type: ignore[union-attr]  # not None, see above
            fields = {"kind": "file", "name": file.name, "path": file.path, "target": file.target}
            return {**fields, "recursive": file.recursive, "skip_links": file.skip_links}, content


def decode_operation(message: Mapping[str, Any], blob: bytes) -> Operation:
    """The reverse, in the supervisor; raises `BadInput` for a request of any other form."""
    match message:
        case {
            "kind": "command",
            "argv": [*argv],
            "cwd": str(cwd),
            "background": bool(background),
            "terminal": terminal,
            "user": str(user),
        } if all(isinstance(word, str) for word in argv):
            size = None if terminal is None else _pair(terminal)
            return RunCommand(tuple(argv), cwd, background, size, parse_user(user))
        case {"kind": "code", "language": str(language), **rest}:
            return RunCode(language, blob, str(rest.get("context", "")))
        case {"kind": "domains", "domains": [*words]} if all(isinstance(w, str) for w in words):
            return SetDomains(tuple(words))
        case {
            "kind": "snapshot",
            "name": str(name),
            "ttl_s": (None | int() | float()) as ttl_s,
            "end_processes": bool(end_processes),
        }:
            return TakeSnapshot(name, ttl_s, end_processes, blob)
        case {"kind": "install", "ecosystem": ecosystem, "requirements": [*words]}:
            return parse_install(ecosystem, words)
        case {
            "kind": "process",
            "name": str(name),
            "process": int(process),
            "number": int(number),
            "size": size,
        } if name in _PROCESS_NAMES:
            return ProcessOperation(name, process, blob, number, _pair(size))  # type: ignore[arg-type]  # one of the names
        case {
            "kind": "file",
            "name": str(name),
            "path": str(path),
            "target": str(target),
            "recursive": bool(recursive),
            "skip_links": bool(skip_links),
        } if name in _FILE_NAMES:
            return FileOperation(
                name,  # type: ignore[arg-type]  # one of the names
                path,
                b"" if name == "upload" else blob,
                target,
                source=io.BytesIO(blob) if name == "upload" else None,
                sink=DownloadBuffer() if name == "download" else None,
                recursive=recursive,
                skip_links=skip_links,
            )
        case _:
            raise BadInput(UNKNOWN_REQUEST)


def _pair(value: object) -> tuple[int, int]:
    match value:
        case [int(rows), int(columns)]:
            return rows, columns
        case _:
            raise BadInput(UNKNOWN_REQUEST)


def encode_outcome(
    outcome: Outcome, operation: Operation | None = None
) -> tuple[dict[str, Json], bytes]:
    """Streams travel as raw bytes, `payload` as raw bytes or as JSON with its type."""
    body: dict[str, Json] = {
        **outcome.to_json(),
        "error": {**error.to_json(), "kind": error.kind} if (error := outcome.error) else None,
        "action_id": outcome.action_id,
        "code_error": outcome.code_error,
        "workspace_id": outcome.workspace_id,
        "sandbox_path": outcome.sandbox_path,
        "state": outcome.state,
        "shown": outcome.shown,
        "stdout": len(outcome.stdout_bytes),
        "stderr": len(outcome.stderr_bytes),
    }
    blob = outcome.stdout_bytes + outcome.stderr_bytes
    payload = outcome.payload
    if isinstance(operation, FileOperation) and isinstance(operation.sink, DownloadBuffer):
        body["downloaded"] = operation.sink.tell()
        blob += operation.sink.getvalue()
    match payload:
        case bytes():
            body["payload"] = {"of": "bytes"}
            blob += payload
        case WorkspaceSnapshot():
            body["payload"] = {"of": "snapshot", "snapshot": payload.to_json()}
        case FileEntry() | ProcessInfo() | Transfer():
            body["payload"] = _encode_item(payload)
        case tuple():
            body["payload"] = {"of": "tuple", "items": [_encode_item(item) for item in payload]}
        case _:
            body["payload"] = {"of": "plain", "value": payload}
    return body, blob


def _encode_item(item: FileEntry | ProcessInfo | Transfer) -> dict[str, Json]:
    return {"of": type(item).__name__, **dataclasses.asdict(item)}


_KINDS = {"FileEntry": FileEntry, "ProcessInfo": ProcessInfo, "Transfer": Transfer}


def decode_outcome(body: Mapping[str, Any], blob: bytes, operation: Operation) -> Outcome:
    """The reverse, in the client. The supervisor is trusted: a wrong form is a bug and raises."""
    out, err = blob[: body["stdout"]], blob[body["stdout"] : body["stdout"] + body["stderr"]]
    rest = blob[body["stdout"] + body["stderr"] :]
    if isinstance(operation, FileOperation) and operation.sink is not None and "downloaded" in body:
        operation.sink.write(rest[: body["downloaded"]])
        rest = rest[body["downloaded"] :]
    decision, error, usage = body["decision"], body["error"], body["usage"]
    return Outcome(
        status=Status(body["status"]),
        action_id=body["action_id"],
        decision=Decision(
            Verdict[decision["verdict"].upper()],
            decision["rule"],
            decision["reason"],
            decision["source"],
        ),
        exit_code=body["exit_code"],
        stdout=out.decode("utf-8", "replace"),
        stderr=err.decode("utf-8", "replace"),
        stdout_bytes=out,
        stderr_bytes=err,
        truncated=body["truncated"],
        limit=LimitName(body["limit"]) if body["limit"] else None,
        value=body["value"],
        text=body.get("text"),
        results=tuple(body["results"]),
        code_error=body["code_error"],
        usage=Usage(
            usage["wall_s"],
            usage["cpu_s"],
            usage["memory_peak"],
            usage.get("io_bytes"),
            usage.get("sent_bytes", 0),
        ),
        findings=tuple(Finding.of(finding) for finding in body["findings"]),
        error=ErrorInfo(**error) if error else None,
        audit_id=body["audit_id"],
        workspace_id=body["workspace_id"],
        sandbox_path=body["sandbox_path"],
        state=body["state"],
        payload=_decode_payload(body["payload"], rest),
        shown=body["shown"],
        packages=tuple(PackageUse.of(each) for each in body.get("packages", ())),
    )


def _decode_payload(message: Mapping[str, Any], rest: bytes) -> object:
    match message:
        case {"of": "bytes"}:
            return rest
        case {"of": "tuple", "items": items}:
            return tuple(_decode_item(item) for item in items)
        case {"of": "snapshot", "snapshot": known}:
            return WorkspaceSnapshot.of(known)
        case {"of": "plain", "value": value}:
            return value
        case _:
            return _decode_item(message)


def _decode_item(message: Mapping[str, Any]) -> object:
    fields = {key: value for key, value in message.items() if key != "of"}
    if isinstance(fields.get("command"), Sequence):
        fields["command"] = tuple(fields["command"])
    return _KINDS[message["of"]](**fields)
