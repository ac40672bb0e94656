"""`/v1/sessions/{id}/files/{path}`: the workspace of a sandbox (FS-7).

The path is the rest of the address, decoded once. It is judged and resolved by the runtime, below
the workspace and without following links out of it (FS-1).
"""

from __future__ import annotations

import hashlib
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from cellwall.core.errors import BadInput
from cellwall.core.outcomes import Outcome
from cellwall.core.types import FileEntry, FileOperation
from cellwall.interfaces.http.bodies import ERRORS, Entry, Listing
from cellwall.interfaces.http.callers import CurrentCaller
from cellwall.interfaces.http.problems import raise_for_refusal
from cellwall.interfaces.http.sandboxes import OwnedSandbox
from cellwall.interfaces.http.session_routes import sandboxes_of

routes = APIRouter(tags=["files"], responses=ERRORS)
_BINARY = "application/octet-stream"
Path = "/sessions/{session_id}/files/{path:path}"
IfMatch = Annotated[str | None, Header(max_length=200)]


@routes.get(
    Path,
    response_class=Response,
    responses={200: {"content": {_BINARY: {}, "application/json": {"model": Listing}}}},
)
async def read_file(
    request: Request,
    caller: CurrentCaller,
    session_id: str,
    path: str,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    after: Annotated[str, Query(max_length=255)] = "",
    if_none_match: IfMatch = None,
) -> Response:
    """The bytes of a file; a path with a slash at its end, or none, lists a directory."""
    sandbox = sandboxes_of(request).find(caller, session_id)
    if not path or path.endswith("/"):
        found = await _perform(sandbox, caller, FileOperation("list", path or "."))
        return Response(
            _listing(found.payload, limit, after).model_dump_json(), media_type="application/json"
        )
    content = bytes((await _perform(sandbox, caller, FileOperation("read", path))).payload)
    tag = _tag(content)
    headers = {"ETag": tag, "Content-Disposition": "attachment"}
    if if_none_match is not None and _names(if_none_match, tag):
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=_BINARY, headers=headers)


@routes.put(Path, status_code=204)
async def write_file(
    request: Request, caller: CurrentCaller, session_id: str, path: str, if_match: IfMatch = None
) -> Response:
    """Write the body as a file; with `If-Match` only over the content that the tag names."""
    sandbox = sandboxes_of(request).find(caller, session_id)
    content = await request.body()
    if if_match is not None:
        before = bytes((await _perform(sandbox, caller, FileOperation("read", path))).payload)
        if not _names(if_match, _tag(before)):
            raise BadInput(
                "the file has changed", hint="Read it again, then write.", code="CW-PRECONDITION"
            )
    await _perform(sandbox, caller, FileOperation("write", path, content))
    return Response(status_code=204, headers={"ETag": _tag(content)})


@routes.delete(Path, status_code=204)
async def remove_file(request: Request, caller: CurrentCaller, session_id: str, path: str) -> None:
    """Remove a file, or a directory with its content."""
    sandbox = sandboxes_of(request).find(caller, session_id)
    await _perform(sandbox, caller, FileOperation("remove", path))


async def _perform(
    sandbox: OwnedSandbox, caller: CurrentCaller, operation: FileOperation
) -> Outcome:
    with sandbox.in_use():
        return raise_for_refusal(await sandbox.host.perform(operation, principal=caller.principal))


def _listing(entries: tuple[FileEntry, ...], limit: int, after: str) -> Listing:
    found = sorted((each for each in entries if each.name > after), key=lambda each: each.name)
    page = [
        Entry(
            name=each.name,
            path=each.path,
            kind=each.kind,
            size=each.size_bytes,
            mode=each.mode,
            modified=each.modified_s,
        )
        for each in found[:limit]
    ]
    return Listing(entries=page, next=page[-1].name if len(found) > limit else None)


def _tag(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def _names(header: str, tag: str) -> bool:
    return header.strip() == "*" or tag in {
        each.strip().removeprefix("W/") for each in header.split(",")
    }
