"""Whether bytes that were decoded are something to read."""

from __future__ import annotations

import re
import string

from cellwall.guard.normalise.characters import invisible

_PRINTABLE = string.printable.encode()
_LETTERS = (string.ascii_letters + " \r\n").encode()
_HEAD_BYTES = 96
_MAX_ODD_SHARE = 0.04
_MIN_CHARS = 6


def readable(data: bytes) -> str | None:
    """The text that the bytes are; None for pictures, keys, hashes and other noise."""
    if len(data) < _MIN_CHARS or not _may_be_text(data[:_HEAD_BYTES]):
        return None
    if data.isascii() and data.count(0) * 8 <= len(data):
        odd = len(data.translate(None, _PRINTABLE))
        return data.decode("ascii") if odd <= len(data) * _MAX_ODD_SHARE else None
    text = _decoded(data)
    if text is None or len(text) < _MIN_CHARS // 2:
        return None
    rest = "".join(text.split())
    if rest.isprintable():
        return text
    # Hidden text inside of an encoding is text as well.
    rest = invisible().sub("", rest)
    odd = sum(not character.isprintable() for character in rest[:1024])
    return text if odd <= min(len(rest), 1024) * _MAX_ODD_SHARE else None


_LONG_CHARS = 40
_FEW_LETTERS = 20
_CODED = re.compile(
    r"[%=](?:25|3[DQdq])?[0-9A-Sa-s]{2}|&#[xXkK]?[0-9A-Sa-s]{2,5};|\\[xukh][0-9A-Sa-s]{2,4}"
)
_HEX = re.compile(r"(?:(?:0x)?[0-9A-Fa-f]{2}[ ,:;]{0,2}){6,}|(?:[0-9A-Fa-f]{2}(?:x0)? ?){6,}")


def is_wordy(text: str) -> bool:
    """Letters and spaces for the most part, or characters that are encoded again."""
    if not text.isascii() or _HEX.fullmatch(text):
        return True
    if len(text) >= _LONG_CHARS and len(set(text)) <= _FEW_LETTERS:
        return True
    rest = _CODED.sub("", text)
    odd = len(rest.encode().translate(None, _LETTERS))
    return odd * 4 <= max(len(rest), len(text) // 2)


def _may_be_text(head: bytes) -> bool:
    """A quick look: text has few control characters and no bytes that begin nothing."""
    zeros = head.count(0)
    if zeros * 4 >= len(head):
        return zeros * 5 <= len(head) * 3  # UTF-16
    if head.isascii():
        return len(head.translate(None, _PRINTABLE)) * 8 <= len(head)
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return error.start >= len(head) - 3
    return True


def _decoded(data: bytes) -> str | None:
    zeros = data.count(0)
    if zeros * 4 >= len(data):
        codec = "utf-16-le" if data[1::2].count(0) >= data[::2].count(0) else "utf-16-be"
        data = data[: len(data) & ~1]
    else:
        codec = "utf-8"
    try:
        return data.decode(codec)
    except UnicodeDecodeError as error:
        # Cut in the middle of its last character.
        if codec == "utf-8" and error.start >= len(data) - 3:
            return data[: error.start].decode(codec)
    return None
