"""Requests of E2B's clients: Connect messages, JSON bodies and uploads."""

from __future__ import annotations

import json
import logging
import struct
import tempfile
import zlib
from collections.abc import Coroutine
from contextlib import ExitStack, suppress
from typing import Any, cast

from starlette.requests import Request

from cellwall.core.errors import BadInput
from cellwall.interfaces.e2b import bodies, connect_rpc, uploads
from cellwall.interfaces.e2b.paths import WORKSPACE, absolute
from cellwall.interfaces.http.spools import Spools
from fuzz.second_readers import cut
from fuzz.targets import target, wild_text_of

logging.getLogger("python_multipart").disabled = True  # a line for each malformed form
_MODELS = tuple(
    each
    for each in vars(bodies).values()
    if isinstance(each, type) and issubclass(each, bodies.WireBody) and each is not bodies.WireBody
)


def _places(data: bytes) -> list[int]:
    return [zlib.crc32(data[:size]) for size in (1, 6, 23) if size < len(data)]


def _finished(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of work that has nothing to wait for."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    work.close()
    raise AssertionError("it waits")


def _request(pieces: list[bytes], **headers: str) -> Request:
    waiting = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    waiting.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> dict[str, object]:
        return waiting.pop(0)

    named = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    return Request({"type": "http", "headers": named}, cast("Any", receive))


@target(
    "interfaces.e2b.connect_rpc",
    "interfaces.e2b.bodies",
    "interfaces.http.checked_route",
    tokens=(
        b"\0\0\0\0\2{}", b'{"process":{"cmd":"', b'"args":["', b'"envs":{"', b'"cwd":"', b'"pid":', b'"tag":"', b'"pty":{"size":{"cols":',
        b'"input":{"stdin":"AAAA"}', b'"signal":"SIGNAL_SIGKILL"', b'"path":"', b'"depth":', b'"source":"', b'"destination":"', b'"watcherId":"',
        b'"code":"', b'"context_id":', b'"templateID":"', b'"timeout":', b'"metadata":{', b'"network":{"allowOut":["', b'"autoPause":true', b"1e999",
        b"NaN", b"\\ud800", b"\\u0000", b"null", b"[", b"]", b"}",
    ),
)  # fmt: skip
def e2b_message(data: bytes) -> None:
    """Connect messages and JSON bodies of E2B's clients: the same in any pieces; a body within its bounds, or
    one error that can be shown"""
    whole = _messages([data])
    assert _messages(cut(data, _places(data))) == whole
    if isinstance(whole, list):
        assert (
            b"".join(struct.pack(">BI", *each[:2]) + each[2] for each in _envelopes(data)) == data
        )
    for content in (data, *(whole if isinstance(whole, list) else ())):
        for model in _MODELS:
            _check_body(model, content)


def _messages(pieces: list[bytes]) -> list[bytes] | str:
    async def read() -> list[bytes]:
        return [each async for each in connect_rpc.read_messages(_request(pieces))]

    try:
        found: list[bytes] = _finished(read())
    except BadInput as error:
        assert str(error).isprintable()  # noqa: PT017
        return error.code
    return found


def _envelopes(data: bytes) -> list[tuple[int, int, bytes]]:
    """By the letter of the protocol: a flag, a length, that many bytes."""
    found = []
    while data:
        flag, size = data[0], int.from_bytes(data[1:5], "big")
        found.append((flag, size, data[5 : 5 + size]))
        data = data[5 + size :]
    return found


def _check_body(model: type[bodies.WireBody], content: bytes) -> None:
    try:
        found = bodies.parse(model, content)
    except BadInput as error:
        assert len(str(error)) < 500  # noqa: PT017
        str(error).encode()  # a lone surrogate of a key cannot be sent
        return
    if isinstance(found, bodies.NewSandbox):
        assert 0 <= found.timeout <= bodies.MAX_KEEP_ALIVE_S
        with suppress(BadInput):
            found.refuse_unoffered()
    for path in (getattr(found, name, "") for name in ("path", "source", "destination", "cwd")):
        assert absolute(path or "").startswith(WORKSPACE)
    json.dumps(found.model_dump(mode="python"), default=repr)


_FORM_TOKENS = (
    b"--b\r\n", b"\r\n--b\r\n", b"\r\n--b--\r\n", b"--b--", b'Content-Disposition: form-data; name="file"; filename="', b'"\r\n\r\n', b"\r\n\r\n",
    b"filename*=utf-8''", b"Content-Type: a/b\r\n", b"../../etc/passwd", b"\\", b";", b"\x1f\x8b\x08", b":", b"\r", b"\n",
)  # fmt: skip


@target("interfaces.e2b.uploads", tokens=_FORM_TOKENS)
def e2b_upload(data: bytes) -> None:
    """Uploads of E2B's clients, as forms and gzip: the same files in any pieces, never more than the bound, or
    one error"""
    kinds: tuple[dict[str, str], ...] = (
        {"content_type": "multipart/form-data; boundary=b"},
        {"content_type": "application/octet-stream", "content_encoding": "gzip"},
        {"content_type": wild_text_of(data[1:64]).encode("ascii", "replace").decode()},
    )
    headers = kinds[data[0] % 3 if data else 0]
    body = data[1:]
    whole = _files([body], headers)
    assert _files(cut(body, _places(body)), headers) == whole


_MAX_BYTES = 1 << 20


def _files(pieces: list[bytes], headers: dict[str, str]) -> list[tuple[str, bytes]] | str:
    async def receive(stack: ExitStack) -> list[uploads.UploadedFile]:
        spools = Spools(tempfile.gettempdir(), max_file_bytes=_MAX_BYTES)
        request = _request(pieces, **headers)
        return await uploads.receive_files(request, spools, stack, max_bytes=_MAX_BYTES)

    with ExitStack() as stack:
        try:
            found = _finished(receive(stack))
        except BadInput as error:
            assert str(error).isprintable()  # noqa: PT017
            return error.code
        files = [(each.name, each.source.read(_MAX_BYTES + 1)) for each in found]
        assert [len(content) for _, content in files] == [each.size_bytes for each in found]
    assert sum(len(content) for _, content in files) <= _MAX_BYTES
    return files
