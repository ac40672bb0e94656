"""`/files` and `/health` of envd: the content of files, up and down."""

from __future__ import annotations

from contextlib import ExitStack

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cellwall.core.errors import BadInput
from cellwall.core.files import FileOperation
from cellwall.interfaces.e2b.access import open_sandbox
from cellwall.interfaces.e2b.paths import absolute, below_workspace
from cellwall.interfaces.e2b.problems import not_offered
from cellwall.interfaces.e2b.uploads import receive_files
from cellwall.interfaces.http.spools import SpoolResponse


async def health(request: Request) -> Response:
    """Whether the sandbox runs; 502 once it has ended."""
    await open_sandbox(request)
    return Response(status_code=204)


async def download(request: Request) -> Response:
    """`GET /files?path=`: the bytes of a file."""
    _refuse_signature(request)
    access = await open_sandbox(request)
    path = _path(request)
    with ExitStack() as stack:
        # Attack: downloads that are read slowly take all connections.
        stack.enter_context(access.service.waiting.counted(access.grant.identity.user_id))
        spool = stack.enter_context(access.service.spools.spool())
        await access.perform(FileOperation("read", path, sink=spool))
        headers = {"Content-Disposition": "attachment"}
        answer = SpoolResponse(spool, start=0, end=spool.size_bytes, status=200, headers=headers)
        answer.held.push(stack.pop_all())
        return answer


async def upload(request: Request) -> Response:
    """`POST /files?path=`: one file, or each part of a form under its own name."""
    _refuse_signature(request)
    if any(name.startswith("x-metadata-") for name in request.headers):
        raise not_offered("metadata of files", "a workspace keeps no extended attributes")
    access = await open_sandbox(request)
    service = access.service
    with ExitStack() as stack:
        # Attack: uploads that come slowly take all connections.
        stack.enter_context(service.waiting.counted(access.grant.identity.user_id))
        files = await receive_files(
            request, service.spools, stack, max_bytes=service.settings.max_file_bytes
        )
        named = request.query_params.get("path", "")
        if not files:
            raise BadInput("the upload has no file")
        if named and len(files) > 1:
            raise BadInput("an upload of several files has no path")
        written = []
        async with access.sandbox.writing:
            for each in files:
                path = below_workspace(named or each.name)
                operation = FileOperation(
                    "write",
                    path,
                    source=each.source,
                    source_bytes=each.size_bytes,
                    source_sha256=each.sha256,
                )
                await access.perform(operation)
                name = path.rstrip("/").rpartition("/")[2]
                written.append({"name": name, "type": "file", "path": absolute(path)})
    return JSONResponse(written)


def _path(request: Request) -> str:
    path = request.query_params.get("path", "")
    if not path:
        raise BadInput("the request names no path")
    return below_workspace(path)


def _refuse_signature(request: Request) -> None:
    if "signature" in request.query_params:
        raise not_offered("signed URLs", "files are read and written with the token of the sandbox")
