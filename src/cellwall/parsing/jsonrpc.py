"""JSON-RPC messages of the Model Context Protocol, one on each line, from an untrusted peer.

The SDK's own reader accepts lines of any length and silently drops what it cannot parse. Here a
line that is too long, has too many values or is no message becomes an error response.
"""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress

from mcp.shared.message import SessionMessage
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

_KEPT_BYTES = 512
_MAX_PARTS = 1024
MAX_VALUES = 10_000
"""In one message of a client. A value takes two bytes as text and over a hundred once parsed."""
# The id can be found without parsing where it is the first or last key of the message.
_ID = rb'"id"\s*:\s*(?:(\d{1,15})|"([^"\\\x00-\x1f]{1,128})")\s*'
_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID + rb",")
_ID_LAST = re.compile(_ID + rb"\}\s*\Z")
# Every infinite number has one of these: an exponent of three digits, a name, or many digits.
_UNUSUAL_NUMBER = re.compile(rb"[0-9.][eE]\+?[0-9]{3}|NaN|Infinity|[0-9]{200}")


class Lines:
    """Splits bytes into lines. A line beyond the limit is not stored and becomes an error."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self._head = b""
        """The start of a line beyond the limit; empty otherwise."""

    def feed(self, chunk: bytes) -> list[bytes | JSONRPCError]:
        """The lines that this chunk completes."""
        lines: list[bytes | JSONRPCError] = []
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            self._add(piece)
            lines.append(self._end_line())
        self._add(rest)
        return lines

    def _add(self, piece: bytes) -> None:
        self._parts.append(piece)
        self._size += len(piece)
        if len(self._parts) > _MAX_PARTS:  # attack: pieces of two bytes, each an object of its own
            self._parts = [b"".join(self._parts)]
        if self._head or self._size > self._max_bytes:
            whole = b"".join(self._parts)
            self._head = self._head or whole[:_KEPT_BYTES]
            self._parts = [whole[-_KEPT_BYTES:]]

    def _end_line(self) -> bytes | JSONRPCError:
        line, head = b"".join(self._parts), self._head
        self._parts, self._size, self._head = [], 0, b""
        if not head:
            return line
        problem = f"the message is longer than the {self._max_bytes} bytes allowed"
        return error_of(INVALID_REQUEST, problem, _id_of(head, line))


def parse_message(
    line: bytes, *, max_values: int = MAX_VALUES
) -> SessionMessage | JSONRPCError | None:
    """The message of a line; None for an empty line."""
    if not line.strip():
        return None
    if _has_too_many_values(line, max_values):
        problem = f"the message has more than the {max_values} values allowed"
        return error_of(INVALID_REQUEST, problem, _id_of(line, line))
    try:
        # Strict: replacement characters would change the agent's code.
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        return error_of(PARSE_ERROR, "the message is not UTF-8", _id_of(line, line))
    try:
        message = _validated(line, text)
    except ValueError:
        return error_of(PARSE_ERROR, "the message is not JSON-RPC", _id_of(line, line))
    if _UNUSUAL_NUMBER.search(line) and _has_infinite_number(message.model_dump()):
        # Judged as infinite, and sent on as null: the SDK writes it so.
        problem = "the message has a number that is too large, or is none"
        return error_of(INVALID_REQUEST, problem, _id_of(line, line))
    if isinstance(message, JSONRPCRequest) and _is_odd(message.id):
        return error_of(INVALID_REQUEST, "the id is too long", None)
    if isinstance(message, JSONRPCNotification) and _has_id(line, text):
        # The SDK treats it as a notification, so the client would wait for ever.
        return error_of(INVALID_REQUEST, "the id is neither a string nor an integer", None)
    return SessionMessage(message)


def _validated(line: bytes, text: str) -> JSONRPCMessage:
    """A call or its answer by its own model, as nearly always; any other message, and one with keys
    of two kinds, by the model that fits best, which takes three times as long."""
    likely: type[JSONRPCRequest | JSONRPCResponse] | None = None
    if b'"error"' not in line and b"\\u" not in line:  # an escape may hide a key
        is_call, is_answer = b'"method"' in line, b'"result"' in line
        if is_call and not is_answer and b'"id"' in line:
            likely = JSONRPCRequest
        elif is_answer and not is_call:
            likely = JSONRPCResponse
    if likely is not None:
        with suppress(ValueError):
            return likely.model_validate_json(text, by_name=False)
    return jsonrpc_message_adapter.validate_json(text, by_name=False)


def _has_too_many_values(line: bytes, max_values: int) -> bool:
    """Checked before parsing. Characters inside strings do not count: code is full of brackets."""
    if _signs(line) <= max_values:
        return False
    bare = line.replace(b"\\\\", b"").replace(b'\\"', b"")
    if bare.count(b'"') > 2 * max_values:
        return True
    return _signs(b"".join(bare.split(b'"')[::2])) > max_values


def _signs(text: bytes) -> int:
    return sum(map(text.count, (b"[", b"{", b",")))


def _has_infinite_number(value: object) -> bool:
    waiting = [value]
    while waiting:
        match waiting.pop():
            case float() as number if not math.isfinite(number):
                return True
            case dict() as fields:
                waiting += fields.values()
            case list() as items:
                waiting += items
            case _:
                pass
    return False


def _has_id(line: bytes, text: str) -> bool:
    if b'"id"' not in line and b"\\u" not in line:
        return False
    try:
        return "id" in json.loads(text)
    except (ValueError, RecursionError):
        return True


def _is_odd(request_id: int | str) -> bool:
    return len(str(request_id)) > _KEPT_BYTES


def _id_of(head: bytes, tail: bytes) -> int | str | None:
    """The request id, only at the edges of the message: code in the middle may imitate one."""
    match = _ID_FIRST.match(head[:_KEPT_BYTES]) or _ID_LAST.search(tail[-_KEPT_BYTES:])
    if match is None:
        return None
    if match[1] is not None:
        return int(match[1])
    with suppress(UnicodeDecodeError):
        return match[2].decode("utf-8")
    return None


def error_of(code: int, message: str, request_id: int | str | None) -> JSONRPCError:
    """An error response; without an id where the message has none that can be read."""
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=code, message=message))


def encode_message(message: SessionMessage) -> bytes:
    """The line of a message."""
    body = message.message
    try:
        return body.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
    except ValueError:  # a text that is not valid Unicode, such as a lone surrogate
        if not isinstance(body, JSONRPCResponse):
            return b""
        error = ErrorData(code=INTERNAL_ERROR, message="the answer cannot be written as JSON")
        failed = JSONRPCError(jsonrpc="2.0", id=body.id, error=error)
        return failed.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
