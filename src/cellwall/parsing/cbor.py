"""The plain part of CBOR (RFC 8949), as authenticators write it (CTAP 2.1, section 8). Pure.

A decoder of all of CBOR is no match for hostile data: with shared values (tag 28, 29) as the key of
a map, 150 bytes take longer to hash than the universe lasts. Text that passes here has integers,
strings, arrays, maps with simple keys, true, false and null, all of definite length and in their
shortest form, so each decoder reads the same values and a value is encoded again to the same bytes.
"""

from __future__ import annotations

_MAX_DEPTH = 8
_BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = 2, 3, 4, 5, 6, 7
_PLAIN = frozenset({20, 21, 22})  # false, true, null


def plain_end(data: bytes, start: int = 0) -> int:
    """Where the value that begins at `start` ends; raises `ValueError` unless it is plain."""
    return _value_end(data, start, depth=0, is_key=False)


def _value_end(data: bytes, start: int, *, depth: int, is_key: bool) -> int:
    kind, count, at = _read_head(data, start)
    if kind in {_BYTES, _TEXT}:
        if count > len(data) - at:
            raise ValueError("a string is longer than the data")
        return at + count
    if kind in {_ARRAY, _MAP}:
        if is_key or depth == _MAX_DEPTH:
            raise ValueError("an array or map is a key, or too deep")
        for _ in range(count):  # each value takes a byte at least, so this ends with the data
            if kind == _MAP:
                at = _value_end(data, at, depth=depth + 1, is_key=True)
            at = _value_end(data, at, depth=depth + 1, is_key=False)
    return at


def _read_head(data: bytes, at: int) -> tuple[int, int, int]:
    """The major type, its argument, and where the content begins."""
    if at >= len(data):
        raise ValueError("the data end too early")
    kind, count = data[at] >> 5, data[at] & 31
    at += 1
    if kind == _TAG or (kind == _SIMPLE and count not in _PLAIN) or count > 27:
        raise ValueError("a tag, a float or an indefinite length")
    if count < 24 or kind == _SIMPLE:
        return kind, count, at
    size = 1 << (count - 24)
    argument = int.from_bytes(data[at : at + size], "big")
    least = 24 if size == 1 else 1 << (4 * size)
    if len(data) - at < size or argument < least:
        raise ValueError("a number is cut off, or not in its shortest form")
    return kind, argument, at + size
