"""Text as bytes for the kernel, values as plain JSON, and invisible characters."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from cellwall.core.errors import BadInput

if TYPE_CHECKING:
    from cellwall.core.types import Json


def to_bytes(text: str | bytes | bytearray | memoryview, *, what: str) -> bytes:
    """Encode as UTF-8; surrogate escapes become the original bytes."""
    if isinstance(text, bytes | bytearray | memoryview):
        return bytes(text)
    if not isinstance(text, str):
        # `bytes(5)` would be five NUL bytes.
        raise BadInput(
            f"{what} must be text or bytes, not {type(text).__name__}",
            hint="Give a str or bytes.",
            code="CW-NOT-TEXT",
        )
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise BadInput(
            f"{what} holds a lone surrogate, which cannot be encoded",
            hint="Use valid text.",
            code="CW-NOT-TEXT",
        ) from error


# Fillers, joiners, variation selectors and a blank: letters to Unicode, nothing to the eye. Hidden
# instructions for a model are written in them; `str.isprintable` finds the others.
INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters that count as printable and are invisible."""


_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_DEPTH = 100


def plain(value: object, depth: int = 0) -> Json:
    """The value as JSON can carry it.

    Lone surrogates make strict readers refuse the whole object, NaN makes all of them, and a deep
    nest would overflow their stack or ours.
    """
    if depth > _MAX_DEPTH:
        return None
    match value:
        case str():
            return _SURROGATE.sub("\ufffd", value)
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {str(plain(str(key))): plain(item, depth + 1) for key, item in value.items()}
        case list() | tuple():
            return [plain(item, depth + 1) for item in value]
        case bool() | int() | None:
            return value
        case _:
            return str(value)
