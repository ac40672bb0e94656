"""Operations as frames. Every field of a request is checked; nothing is evaluated."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from cellwall.core.errors import BadInput
from cellwall.core.files import FileOperation
from cellwall.core.packages import InstallPackages, parse_install
from cellwall.core.port_connections import ConnectPort
from cellwall.core.snapshots import TakeSnapshot
from cellwall.core.types import Json, ProcessOperation, RunCode, RunCommand, SetDomains
from cellwall.core.users_inside import parse_user

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
