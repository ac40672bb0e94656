"""Messages of clients, bounded before they are parsed: the same on every transport.

The SDK parses messages of any number of values, and reports what it cannot parse in words of its
own, which may quote the message. Here such a message gets a short error.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress

from mcp.shared.message import SessionMessage
from mcp_types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    jsonrpc_message_adapter,
)

_ESCAPED = 2
"""Upper bound of JSON bytes for one byte of code: quotes and line ends take two."""
_ENVELOPE_BYTES = 64 * 1024
_MESSAGE_BYTES = (4 * 1024 * 1024, 64 * 1024 * 1024)
KEPT_BYTES = 512
"""At each edge of a message, in which its id is looked for."""
_MAX_VALUES = 10_000
"""In one message. A value takes two bytes in the text and over a hundred once parsed."""
# The id can be found without parsing where it is the first or last key of the message.
_ID = rb'"id"\s*:\s*(?:(\d{1,15})|"([^"\\\x00-\x1f]{1,128})")\s*'
_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID + rb",")
_ID_LAST = re.compile(_ID + rb"\}\s*\Z")


def max_message_bytes(max_code_bytes: int) -> int:
    """The largest message: code of the permitted size fits, within bounds of our own."""
    least, most = _MESSAGE_BYTES
    return min(max(max_code_bytes * _ESCAPED + _ENVELOPE_BYTES, least), most)


def parse_message(line: bytes) -> SessionMessage | JSONRPCError | None:
    """The message of a line; None for an empty line."""
    if not line.strip():
        return None
    if _has_too_many_values(line):
        problem = f"the message has more than the {_MAX_VALUES} values allowed"
        return error_of(INVALID_REQUEST, problem, id_of(line, line))
    try:
        # Strict: replacement characters would change the agent's code.
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        return error_of(PARSE_ERROR, "the message is not UTF-8", id_of(line, line))
    try:
        message = jsonrpc_message_adapter.validate_json(text, by_name=False)
    except ValueError:
        return error_of(PARSE_ERROR, "the message is not JSON-RPC", id_of(line, line))
    if isinstance(message, JSONRPCRequest) and _is_odd(message.id):
        return error_of(INVALID_REQUEST, "the id is too long", None)
    if isinstance(message, JSONRPCNotification) and _has_id(line, text):
        # The SDK treats it as a notification, so the client would wait for ever.
        return error_of(INVALID_REQUEST, "the id is neither a string nor an integer", None)
    return SessionMessage(message)


def _has_too_many_values(line: bytes) -> bool:
    """Checked before parsing. Characters inside strings do not count: code is full of brackets."""
    if _signs(line) <= _MAX_VALUES:
        return False
    bare = line.replace(b"\\\\", b"").replace(b'\\"', b"")
    if bare.count(b'"') > 2 * _MAX_VALUES:
        return True
    return _signs(b"".join(bare.split(b'"')[::2])) > _MAX_VALUES


def _signs(text: bytes) -> int:
    return sum(map(text.count, (b"[", b"{", b",")))


def _has_id(line: bytes, text: str) -> bool:
    if b'"id"' not in line and b"\\u" not in line:
        return False
    try:
        return "id" in json.loads(text)
    except (ValueError, RecursionError):
        return True


def _is_odd(request_id: int | str) -> bool:
    return len(str(request_id)) > KEPT_BYTES


def id_of(head: bytes, tail: bytes) -> int | str | None:
    """The request id, only at the edges of the message: code in the middle may imitate one."""
    match = _ID_FIRST.match(head[:KEPT_BYTES]) or _ID_LAST.search(tail[-KEPT_BYTES:])
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
