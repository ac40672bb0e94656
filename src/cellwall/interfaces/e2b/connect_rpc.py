"""The Connect protocol with its JSON codec, as far as envd's clients use it.

unary      POST /package.Service/Method, application/json; an error is JSON with `code`
streaming  application/connect+json; each message behind a flag byte and its length in four
           bytes. The last one has the flag 2, and `error` where the call failed
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cellwall.core.errors import BadInput
from cellwall.core.text import plain
from cellwall.interfaces.e2b.access import SandboxAccess, open_sandbox
from cellwall.interfaces.e2b.bodies import Body, parse
from cellwall.interfaces.e2b.callers import Message
from cellwall.interfaces.e2b.problems import Handler, Problem, not_offered, problem_of
from cellwall.interfaces.http.waiting import CountedStream

UNARY, STREAMING = "application/json", "application/connect+json"
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
MAX_MESSAGES = 20_000
"""Of one stream. Attack: messages of five bytes, each of which is parsed."""
_COMPRESSED, _END = 1, 2
_HEAD = struct.Struct(">BI")
_HTTP_STATUS = {
    "invalid_argument": 400,
    "unauthenticated": 401,
    "permission_denied": 403,
    "not_found": 404,
    "already_exists": 409,
    "failed_precondition": 400,
    "resource_exhausted": 429,
    "unimplemented": 501,
    "unavailable": 503,
    "deadline_exceeded": 504,
}


def method_routes(service: str, methods: Mapping[str, Handler]) -> list[Route]:
    """Below the prefix of the endpoints."""
    return [
        Route(f"/{service}/{name}", handler, methods=["POST"]) for name, handler in methods.items()
    ]


def unary(
    model: type[Body], method: Callable[[SandboxAccess, Body], Awaitable[Message]]
) -> Handler:
    """A method with one request and one response."""

    async def handle(request: Request) -> Response:
        try:
            _check_type(request, UNARY)
            access = await open_sandbox(request)  # before the body is read
            with access.service.waiting.counted(access.grant.identity.user_id):
                body = await request.body()
            return JSONResponse(plain(await method(access, parse(model, body))))
        except Exception as error:  # noqa: BLE001  # a client gets no trace (ERR-1)
            found = await problem_of(request, error)
            status = _HTTP_STATUS.get(found.connect_code, 500)
            return JSONResponse(_error(found), status_code=status)

    return handle


def server_stream(
    model: type[Body],
    method: Callable[[SandboxAccess, Body, float | None], AsyncIterator[Message]],
) -> Handler:
    """A method with one request and a stream of responses. The last argument is the deadline, on
    the monotonic clock."""

    async def begin(request: Request, access: SandboxAccess) -> AsyncIterator[Message]:
        # All of it, before the response watches the connection for its end.
        found: bytes | None = None
        async for message in read_messages(request):
            if found is not None:
                raise BadInput("the call has one message")
            found = message
        if found is None:
            raise BadInput("the call has one message")
        return method(access, parse(model, found), _deadline(request))

    return _streaming(begin)


def client_stream(
    method: Callable[[SandboxAccess, AsyncIterator[bytes]], Awaitable[Message]],
) -> Handler:
    """A method with a stream of requests and one response."""

    async def begin(request: Request, access: SandboxAccess) -> AsyncIterator[Message]:
        return _once(await method(access, read_messages(request)))

    return _streaming(begin)


async def _once(message: Message) -> AsyncIterator[Message]:
    yield message


def _streaming(
    begin: Callable[[Request, SandboxAccess], Awaitable[AsyncIterator[Message]]],
) -> Handler:
    async def handle(request: Request) -> Response:
        with ExitStack() as stack:
            try:
                _check_type(request, STREAMING)
                access = await open_sandbox(request)
                # Attack: streams that stay open take all connections.
                user_id = access.grant.identity.user_id
                stack.enter_context(access.service.waiting.counted(user_id))
                chunks = _encoded(request, await begin(request, access))
            except Exception as error:  # noqa: BLE001  # a client gets no trace (ERR-1)
                chunks = _failed(await problem_of(request, error))
            return CountedStream(chunks, stack.pop_all(), media_type=STREAMING, headers={})

    return handle


async def _failed(failure: Problem) -> AsyncIterator[bytes]:
    yield _envelope({"error": _error(failure)}, _END)


async def _encoded(request: Request, events: AsyncIterator[Message]) -> AsyncIterator[bytes]:
    end: Message = {}
    try:
        async for event in events:
            yield _envelope(event)
    except Exception as error:  # noqa: BLE001  # a client gets no trace (ERR-1)
        end = {"error": _error(await problem_of(request, error))}
    yield _envelope(end, _END)


def _envelope(message: Message, flag: int = 0) -> bytes:
    data = json.dumps(plain(message), separators=(",", ":")).encode()
    return _HEAD.pack(flag, len(data)) + data


def _error(found: Problem) -> Message:
    return {"code": found.connect_code, "message": found.message}


async def read_messages(request: Request) -> AsyncIterator[bytes]:
    """The messages of a request as they come; raises for a message that is cut off."""
    waiting, count = bytearray(), 0
    async for chunk in request.stream():
        waiting += chunk
        while len(waiting) >= _HEAD.size:
            flag, size = _HEAD.unpack_from(waiting)
            if size > MAX_MESSAGE_BYTES:
                raise BadInput(
                    f"a message has at most {MAX_MESSAGE_BYTES} bytes", code="CW-TOO-LARGE"
                )
            if flag & _COMPRESSED:
                raise not_offered("compressed messages", "messages are short")
            if len(waiting) < _HEAD.size + size:
                break
            message = bytes(waiting[_HEAD.size : _HEAD.size + size])
            del waiting[: _HEAD.size + size]
            count += 1
            if count > MAX_MESSAGES:
                raise BadInput(
                    f"a stream has at most {MAX_MESSAGES} messages",
                    hint="Send more bytes in a message.",
                    code="CW-TOO-LARGE",
                )
            yield message
    if waiting:
        raise BadInput("the last message of the stream is cut off")


def _check_type(request: Request, wanted: str) -> None:
    found = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if found != wanted:
        raise not_offered("this encoding", f"requests to this method are {wanted}")


def _deadline(request: Request) -> float | None:
    text = request.headers.get("connect-timeout-ms", "")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        raise BadInput("connect-timeout-ms is a number of at most ten digits")
    return time.monotonic() + int(text) / 1000
