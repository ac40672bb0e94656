"""Names of users, teams and tokens: one spelling each, so that no two look alike."""

from __future__ import annotations

import re

from cellwall.accounts import failures

_NAME = re.compile(r"[a-z0-9][a-z0-9._@+-]{0,63}")


def canonical_name(text: str) -> str:
    """The name in lower case; raises `BadInput`. ASCII alone: no homoglyphs."""
    name = text.lower() if text.isascii() else ""
    if _NAME.fullmatch(name) is None:
        raise failures.bad_name()
    return name
