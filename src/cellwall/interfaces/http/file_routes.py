"""`/v1/sessions/{id}/files/{path}`: the workspace of a sandbox (FS-7).

The path is the rest of the address, decoded once. It is judged and resolved by the runtime, below
the workspace and without following links out of it (FS-1).
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from starlette.requests import ClientDisconnect

from cellwall.core.errors import BadInput
from cellwall.core.files import ByteSink, FileEntry, FileOperation, StreamedFile, WorkspaceDiff
from cellwall.core.outcomes import Outcome
from cellwall.core.text import plain
from cellwall.interfaces.http.bodies import ERRORS, ErrorResponse
from cellwall.interfaces.http.bodies.sessions import ChangedEntry, DiffBody, Entry, Listing
from cellwall.interfaces.http.callers import Caller, CurrentCaller, current_caller
from cellwall.interfaces.http.checked_route import CheckedRoute
from cellwall.interfaces.http.owned_sandbox import OwnedSandbox
from cellwall.interfaces.http.problems import RefusedOutcome, raise_for_refusal
from cellwall.interfaces.http.service import CurrentService
from cellwall.interfaces.http.spools import Spool, SpoolResponse

routes = APIRouter(route_class=CheckedRoute, tags=["files"], responses=ERRORS)
_BINARY = "application/octet-stream"
_PATH = "/sessions/{session_id}/files/{path:path}"
_BYTES = {"schema": {"type": "string", "format": "binary"}, "example": "a,b\n1,2\n"}
_TAG = {"ETag": {"schema": {"type": "string"}, "description": "of the content"}}
_FAILED: dict[int | str, dict[str, Any]] = {
    412: {"model": ErrorResponse, "description": "The file is not the expected one."}
}
_WRITTEN: dict[int | str, dict[str, Any]] = {204: {"headers": _TAG}, **_FAILED}
_READ: dict[int | str, dict[str, Any]] = {
    200: {
        "model": Listing,
        "description": "The bytes of a file, or the listing of a directory.",
        "headers": _TAG,
        "content": {_BINARY: _BYTES},
    },
    206: {
        "description": "The range of the bytes that `Range` names.",
        "content": {_BINARY: _BYTES},
    },
    416: {"description": "The file has no such bytes."},
    304: {"description": "The file is the one that `If-None-Match` names."},
}
_BODY = {"requestBody": {"required": True, "content": {_BINARY: _BYTES}}}
_RANGE = re.compile(r"bytes=(?P<first>[0-9]{0,18})-(?P<last>[0-9]{0,18})")
Tags = Annotated[str | None, Header(max_length=1000)]


@routes.get(_PATH, response_class=Response, responses=_READ)
async def read_file(
    service: CurrentService,
    caller: CurrentCaller,
    session_id: str,
    path: str,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    after: Annotated[str, Query(max_length=255)] = "",
    if_none_match: Tags = None,
    if_range: Tags = None,
    range_: Annotated[str, Header(alias="Range", max_length=200)] = "",
) -> Response:
    """The bytes of a file, or with `Range` some of them; a path with a slash at its end, or none,
    lists a directory."""
    sandbox = await service.sandboxes.find(caller.identity, session_id)
    if not path or path.endswith("/"):
        found = await _perform(sandbox, caller, FileOperation("list", path or "."))
        listing = _listing(found.payload, limit, after)
        return Response(listing.model_dump_json(), media_type="application/json")
    with ExitStack() as stack:
        # Attack: downloads that are read slowly take all connections.
        stack.enter_context(service.waiting.counted(caller.id))
        spool = stack.enter_context(service.spools.spool())
        tag = await _read_into(spool, sandbox, caller, path)
        headers = {"ETag": tag, "Content-Disposition": "attachment", "Accept-Ranges": "bytes"}
        if if_none_match is not None and _names(if_none_match, tag):
            return Response(status_code=304, headers=headers)
        wanted = "" if if_range is not None and if_range.strip() != tag else range_
        answer = _content(spool, wanted, headers)
        if isinstance(answer, SpoolResponse):
            answer.held.push(stack.pop_all())
        return answer


def _content(spool: Spool, wanted: str, headers: dict[str, str]) -> Response:
    """All of a file, or the one range that is wanted."""
    size = spool.size_bytes
    found = _byte_range(wanted, size)
    if found is None:
        return SpoolResponse(spool, start=0, end=size, status=200, headers=headers)
    start, end = found
    if start >= end:
        return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{size}"})
    headers = {**headers, "Content-Range": f"bytes {start}-{end - 1}/{size}"}
    return SpoolResponse(spool, start=start, end=end, status=206, headers=headers)


def _byte_range(header: str, size: int) -> tuple[int, int] | None:
    """Start and end of a single range; empty where it lies behind the file. None: all of it, also
    for several ranges and for what is no range (RFC 9110, 14.2)."""
    match = _RANGE.fullmatch(header.strip())
    if match is None or match["first"] == match["last"] == "":
        return None
    if match["first"] == "":
        return max(0, size - int(match["last"])), size
    first = int(match["first"])
    if match["last"] == "":
        return min(first, size), size
    last = int(match["last"])
    return None if last < first else (min(first, size), min(last + 1, size))


@routes.put(_PATH, status_code=204, responses=_WRITTEN, openapi_extra=_BODY)
async def write_file(
    request: Request,
    service: CurrentService,
    caller: CurrentCaller,
    session_id: str,
    path: str,
    if_match: Tags = None,
    if_none_match: Tags = None,
) -> Response:
    """Write the body as a file: with `If-Match` only over the content that the tag names, with
    `If-None-Match: *` only as a new file."""
    sandbox = await service.sandboxes.find(caller.identity, session_id)
    # Attack: uploads that come slowly take all connections.
    with service.waiting.counted(caller.id), service.spools.spool() as spool:
        await _receive(request, spool)
        caller = await current_caller(request)  # the body may have taken long
        operation = FileOperation(
            "write",
            path,
            source=spool,
            source_bytes=spool.size_bytes,
            source_sha256=spool.sha256,
        )
        async with sandbox.writing:  # of two conditional writes the second sees the first
            if if_match is not None or if_none_match is not None:
                await _check_tags(sandbox, caller, path, if_match, if_none_match)
            await _perform(sandbox, caller, operation)
        return Response(status_code=204, headers={"ETag": _tag(spool.sha256)})


@routes.delete(_PATH, status_code=204, responses=_FAILED)
async def remove_file(
    service: CurrentService,
    caller: CurrentCaller,
    session_id: str,
    path: str,
    if_match: Tags = None,
) -> None:
    """Remove a file, or a directory with its content."""
    sandbox = await service.sandboxes.find(caller.identity, session_id)
    async with sandbox.writing:
        if if_match is not None:
            await _check_tags(sandbox, caller, path, if_match, None)
        await _perform(sandbox, caller, FileOperation("remove", path))


@routes.get("/sessions/{session_id}/diff")
async def read_diff(service: CurrentService, caller: CurrentCaller, session_id: str) -> DiffBody:
    """What was changed in the workspace since the start. Judged and recorded as a read of all."""
    sandbox = await service.sandboxes.find(caller.identity, session_id)
    found = (await _perform(sandbox, caller, FileOperation("diff", "."))).payload
    assert isinstance(found, WorkspaceDiff)  # noqa: S101  # by `Workspaces.operate`
    changes = [ChangedEntry.model_validate(plain(asdict(each))) for each in found.changes]
    return DiffBody(changes=changes, total=found.total, diff=str(plain(found.text)))


async def _perform(sandbox: OwnedSandbox, caller: Caller, operation: FileOperation) -> Outcome:
    return raise_for_refusal(await sandbox.perform(caller.principal, operation))


async def _receive(request: Request, spool: Spool) -> None:
    try:
        await spool.fill(request.stream())
    except ClientDisconnect:
        raise BadInput("the client left before the end of the file") from None


async def _read_into(sink: ByteSink, sandbox: OwnedSandbox, caller: Caller, path: str) -> str:
    """Returns the tag of the content."""
    done = await _perform(sandbox, caller, FileOperation("read", path, sink=sink))
    assert isinstance(done.payload, StreamedFile)  # noqa: S101  # by `Workspaces.operate`
    return _tag(done.payload.content_sha256)


class _Nowhere:
    """Only the tag is wanted."""

    def write(self, data: bytes, /) -> int:
        return len(data)


async def _check_tags(
    sandbox: OwnedSandbox,
    caller: Caller,
    path: str,
    if_match: str | None,
    if_none_match: str | None,
) -> None:
    try:
        tag: str | None = await _read_into(_Nowhere(), sandbox, caller, path)
    except RefusedOutcome as refused:
        if refused.error.code != "CW-NOT-FOUND":
            raise
        tag = None
    is_expected = if_match is None or (tag is not None and _names(if_match, tag))
    is_excluded = if_none_match is not None and tag is not None and _names(if_none_match, tag)
    if not is_expected or is_excluded:
        raise BadInput(
            "the file is not the expected one",
            hint="Read it again, then write.",
            code="CW-PRECONDITION",
        )


def _listing(entries: tuple[FileEntry, ...], limit: int, after: str) -> Listing:
    found = sorted((each for each in entries if each.name > after), key=lambda each: each.name)
    page = [
        Entry(
            name=str(plain(each.name)),
            path=str(plain(each.path)),
            kind=each.kind,
            size=each.size_bytes,
            mode=each.mode,
            modified=each.modified_s,
        )
        for each in found[:limit]
    ]
    return Listing(entries=page, next=page[-1].name if len(found) > limit else None)


def _tag(sha256: str) -> str:
    return f'"{sha256[:32]}"'


def _names(header: str, tag: str) -> bool:
    return header.strip() == "*" or tag in {
        each.strip().removeprefix("W/") for each in header.split(",")
    }
