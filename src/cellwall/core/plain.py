"""Values that came from code, made safe to hand on as JSON."""

from __future__ import annotations

import math
import re

from cellwall.core.types import Json

_SURROGATE = re.compile("[\ud800-\udfff]")
_DEEPEST = 100


def plain(value: object, depth: int = 0) -> Json:
    """The value without what JSON cannot carry.

    Lone surrogates make strict readers refuse the whole object, NaN makes all of them, and a deep
    nest would overflow their stack or ours.
    """
    if depth > _DEEPEST:
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
