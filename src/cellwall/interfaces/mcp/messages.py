"""The size of a client's messages, the same on every transport."""

from __future__ import annotations

_ESCAPED = 2
"""Upper bound of JSON bytes for one byte of code: quotes and line ends take two."""
_ENVELOPE_BYTES = 64 * 1024
_MESSAGE_BYTES = (4 * 1024 * 1024, 64 * 1024 * 1024)


def max_message_bytes(max_code_bytes: int) -> int:
    """The largest message: code of the permitted size fits, within bounds of our own."""
    least, most = _MESSAGE_BYTES
    return min(max(max_code_bytes * _ESCAPED + _ENVELOPE_BYTES, least), most)
